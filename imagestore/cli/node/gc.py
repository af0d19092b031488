"""``imagestore node gc``: one round of image collection, or its plan."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from imagestore.cli import render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus, report
from imagestore.cli.node.ensure import records_of
from imagestore.cli.node.services import (
    clean_up_command,
    connected,
    events_json,
    metrics_for,
    print_events,
    service_options,
    write_metrics,
)
from imagestore.cli.options import duration_option
from imagestore.errors import ImageCollectionError, StoreError, StoreFullError
from imagestore.node.gate_change import GateMarker, clean_up
from imagestore.node.image_gc import ImageCollector
from imagestore.node.image_names import with_default_tag
from imagestore.node.image_uses import CollectorState
from imagestore.util.durations import Duration
from imagestore.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.cli.node.services import Connected, ServiceChoice
    from imagestore.errors import ImageStoreError
    from imagestore.node.eviction import CollectionReport
    from imagestore.node.image_gc import CollectorStats
    from imagestore.node.image_uses import ImageUse
    from imagestore.node.kubelet_config import KubeletImageSettings
    from imagestore.node.kubelet_messages import NodeEvent
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.pull_record_manager import PullManager

_PERCENT = click.IntRange(0, 100)
_UNCHANGED: Final = "as it was when images were pulled, so there is nothing to clean up"
_UNKNOWN: Final = (
    "its value when these images were pulled is unknown, so nothing is removed; from now on it is recorded. "
    "If it was changed before, clean up with --force"
)


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Only show the plan.")
@click.option("--high", type=_PERCENT, metavar="PERCENT", help="Free space from this usage on [default: 85].")
@click.option("--low", type=_PERCENT, metavar="PERCENT", help="Down to this usage [default: 80].")
@duration_option("--min-age", help="Keep images that were seen for a shorter time [default: 2m].")
@duration_option(
    "--max-age",
    help="Remove images unused for longer, for example 7d, whatever the usage; with those that were never seen in use.",
)
@click.option("--all", "is_all", is_flag=True, help="Remove all that is unused, as under disk pressure.")
@click.option("--after-gate-change", is_flag=True, help="Clean up after a change of RuntimeClassInImageCriApi.")
@click.option("--force", is_flag=True, help="With --after-gate-change: even if no change is recorded.")
@click.option(
    "--in-use",
    metavar="IMAGE[,HANDLER]",
    multiple=True,
    help="An image that a container of the store uses, by name or id; may be repeated. Other services report theirs.",
)
@click.option("--sandbox-image", metavar="IMAGE", default="", help="Spared, like pinned images.")
@service_options
@pass_app
def gc(
    app: App,
    choice: ServiceChoice,
    dry_run: bool,
    high: int | None,
    low: int | None,
    min_age: float | None,
    max_age: float | None,
    is_all: bool,
    after_gate_change: bool,
    force: bool,
    in_use: tuple[str, ...],
    sandbox_image: str,
    metrics: Path | None,
    output: str,
) -> int:
    """Collect images as a kubelet does: by age, then by space, least recently used first, by (image, handler).

    When an image was first seen and last used is remembered in the state folder from run to run (not with --dry-run),
    so that a timer can replace a daemon; every image is therefore new in the first run. Images of the store itself
    that are in use are named by --in-use. As for a kubelet, --max-age counts from the first run at the earliest, and
    spares no image for being new. --after-gate-change removes nothing unless a change of the gate is recorded; its
    value is recorded by the first 'node ensure' or 'node gc'.
    """

    _check(sandbox_image, is_all=is_all, after_gate_change=after_gate_change, force=force)
    numbers = metrics_for(metrics)
    app.missing, app.is_freeing = "refuse", not dry_run
    with connected(app, choice, in_use) as found:
        found = replace(found, settings=_settings(found.settings, (high, low), (min_age, max_age)))
        done = _round(
            found,
            sandbox_image,
            numbers,
            clean_up_command(app, choice, sandbox_image=sandbox_image),
            dry_run=dry_run,
            is_all=is_all,
            after_gate_change=after_gate_change,
            force=force,
        )
    if output == "json":
        render.dump_json(_json(found.name, done))
    else:
        _print(found.name, done)
    statuses = [report(failure) for failure in done.failures]
    if done.left and not dry_run:
        statuses.append(ExitStatus.FAILURE)
    statuses.append(write_metrics(metrics, numbers))
    return statuses[0]


@dataclass(slots=True)
class _Round:
    """A round and its output.

    Attributes:
        collector: of the round.
        heard: events, in order.
        result: report of the collection; None if there was none.
        steps: what to do after a change of the gate.
        unchanged: why there was nothing to clean up.
        left: images that a clean-up couldn't remove.
        failures: errors of the round.
    """

    collector: ImageCollector
    heard: list[NodeEvent]
    result: CollectionReport | None = None
    steps: tuple[str, ...] = ()
    unchanged: str = ""
    left: Sequence[ImageUse] = ()
    failures: list[ImageStoreError] = field(default_factory=list)


def _round(
    found: Connected,
    sandbox_image: str,
    numbers: NodeMetrics | None,
    command: str,
    *,
    dry_run: bool,
    is_all: bool,
    after_gate_change: bool,
    force: bool,
) -> _Round:
    state = CollectorState.load(found.folder, now=time.time_ns())
    marker, gates = GateMarker(found.folder), found.settings.gates
    is_known, change = marker.is_recorded, marker.check(gates, dry_run=dry_run)
    heard: list[NodeEvent] = []
    # Pull records are pruned after a collection; a plan changes none.
    records = None if dry_run else _records(found, numbers)
    collector = _collector(found, state, sandbox_image, heard, numbers, records)
    done = _Round(collector, heard)
    try:
        if after_gate_change and change is None and not force:
            done.unchanged = _UNCHANGED if is_known else _UNKNOWN
            collector.detect()
        elif after_gate_change:
            done.result, done.left = clean_up(collector, marker, gates, dry_run=dry_run)
        else:
            done.result = (collector.delete_unused if is_all else collector.collect)(dry_run=dry_run)
    except (ImageCollectionError, StoreError) as error:
        done.result = collector.last_report
        if done.result is None:
            raise
        done.failures.append(error)
    finally:
        # Report what was done in any case, then a full or read-only disk.
        if not dry_run:
            try:
                state.save(found.folder, collector.images())
            except StoreError as error:
                done.failures.append(error)
    if change is not None and after_gate_change:
        change = marker.check(gates, dry_run=dry_run)
    done.steps = () if change is None else change.steps(command)
    return done


def _check(sandbox_image: str, *, is_all: bool, after_gate_change: bool, force: bool) -> None:
    """Refuse contradicting options before anything is read."""
    if is_all and after_gate_change:
        raise click.UsageError("give --all or --after-gate-change, not both")
    if force and not after_gate_change:
        raise click.UsageError("--force is for --after-gate-change")
    if sandbox_image:
        with_default_tag(sandbox_image)


def _collector(
    found: Connected,
    state: CollectorState,
    sandbox_image: str,
    heard: list[NodeEvent],
    metrics: NodeMetrics | None,
    records: PullManager | None,
) -> ImageCollector:
    return ImageCollector(
        found.service,
        found.settings.collection_policy(),
        gates=found.settings.gates,
        sandbox_image=sandbox_image or found.sandbox_image,
        recorder=heard.append,
        metrics=metrics,
        default_handler=found.default_handler,
        records=records,
        state=state,
        clock=lambda: state.now(time.time_ns()),
    )


def _records(found: Connected, metrics: NodeMetrics | None) -> PullManager | None:
    if not found.settings.gates.ensure_secret_pulled_images:
        return None
    try:
        return records_of(found, metrics)
    except StoreFullError:
        # The disk may be full before a collection; without folders there are no records to prune.
        return None


def _settings(
    settings: KubeletImageSettings,
    percents: tuple[int | None, int | None],
    ages: tuple[float | None, float | None],
) -> KubeletImageSettings:
    high, low = percents
    if high is not None and low is not None and low >= high:
        raise click.UsageError(f"--low {low} must be less than --high {high}")
    high = settings.image_gc_high_threshold_percent if high is None else high
    if low is None:
        # A high threshold below the default low one lowers that one too.
        low = min(settings.image_gc_low_threshold_percent, high)
    settings = replace(settings, image_gc_high_threshold_percent=high, image_gc_low_threshold_percent=low)
    minimum, maximum = (None if age is None else Duration.of_seconds(age) for age in ages)
    if minimum is not None:
        settings = replace(settings, image_minimum_gc_age=minimum)
    if maximum is not None:
        settings = replace(settings, image_maximum_gc_age=maximum)
    least, limit = settings.image_minimum_gc_age, settings.image_maximum_gc_age
    if Duration(0) < limit <= least:
        # If both are given, either may be wrong.
        hint = "" if minimum is not None else "; a lower --min-age makes room"
        raise click.UsageError(f"the maximum age {limit} must be greater than the minimum age {least}{hint}")
    return settings


def _print(service: str, done: _Round) -> None:
    print(f"service: {render.printable(service)}")
    print_events(done.heard)
    if done.result is not None:
        _print_report(done.result)
    for image in done.left:
        print(f"left: {_name(image)}")
    for step in done.steps:
        print(f"gate: {render.printable(step)}")
    numbers = _left(done)
    by_handler = ", ".join(f"{name or 'default'} {count}" for name, count in numbers.by_handler.items())
    is_plan = done.result is not None and done.result.is_dry_run
    verb = "would be" if is_plan else "is" if numbers.images == 1 else "are"
    print(
        f"{counted(numbers.images, 'image')} {verb} left, {numbers.in_use} in use, {numbers.pinned} pinned"
        + (f"; by handler: {by_handler}" if by_handler else "")
    )
    if done.unchanged:
        print(f"gate: {done.unchanged}")


def _left(done: _Round) -> CollectorStats:
    """Numbers after the round, or after the planned one."""
    planned = done.result.removed if done.result is not None and done.result.is_dry_run else ()
    return done.collector.stats(without={each.image.key for each in planned})


def _print_report(result: CollectionReport) -> None:
    if result.disk is not None:
        target = "" if result.target_bytes is None else f", {render.size(result.target_bytes)} to be freed"
        print(f"disk: {result.disk.usage_percent}% of {render.size(result.disk.capacity_bytes)} used{target}")
    for each in result.removed:
        verb = "would remove" if result.is_dry_run else "removed"
        print(f"{verb} {_name(each.image)} ({each.reason}, {render.size(each.image.size_bytes)})")
    for each in result.failed:
        print(f"failed to remove {_name(each.image)}: {render.printable(each.error)}")
    for image, why in result.spared:
        print(f"spared {_name(image)}: {why}")
    if result.missing_bytes and result.is_dry_run:
        print(f"{render.size(result.missing_bytes)} would be missing")


def _name(image: ImageUse) -> str:
    return render.printable(f"{image.key} {image.names[0]}" if image.names else str(image.key))


def _json(service: str, done: _Round) -> dict[str, object]:
    numbers, result = _left(done), done.result
    shown: dict[str, object] = {
        "service": service,
        "events": events_json(done.heard),
        "gateChange": list(done.steps),
        "gateNote": done.unchanged,
        "left": [_image(image) for image in done.left],
        "error": "; ".join(map(str, done.failures)),
        "images": numbers.images,
        "inUse": numbers.in_use,
        "pinned": numbers.pinned,
        "byHandler": dict(numbers.by_handler),
    }
    if result is None:
        return shown
    disk = result.disk
    return {
        **shown,
        "dryRun": result.is_dry_run,
        "usagePercent": disk.usage_percent if disk is not None else None,
        "targetBytes": result.target_bytes,
        "freedBytes": result.freed_bytes,
        "missingBytes": result.missing_bytes,
        "removed": [{**_image(each.image), "reason": str(each.reason)} for each in result.removed],
        "failed": [{**_image(each.image), "error": each.error} for each in result.failed],
        "spared": [{**_image(image), "reason": str(why)} for image, why in result.spared],
    }


def _image(image: ImageUse) -> dict[str, object]:
    return {
        "id": image.key.image_id,
        "runtimeHandler": image.key.runtime_handler,
        "names": list(image.names),
        "bytes": image.size_bytes,
    }
