"""``imagestore gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import click

from imagestore.cli import describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import duration_option, handler_option, output_option
from imagestore.errors import ImageStoreError, UndeletableError
from imagestore.util.text import counted

if TYPE_CHECKING:
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.maintenance.eviction import EvictionPolicy, EvictionReport

#: Unknown after a collection that failed.
_UNKNOWN: Final = dict.fromkeys(("blobs", "ingests", "bytesFreed", "keptBlobs", "failures"))


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be removed and freed.")
@click.option("--keep-last", type=click.IntRange(min=0), metavar="N", help="Keep the newest N of each repository.")
@duration_option("--unused-for", help="Remove images that weren't pulled or used for so long, for example 7d.")
@click.option(
    "--high", type=click.FloatRange(0, 100), metavar="PERCENT", help="Remove images if disk usage is above this."
)
@click.option(
    "--low", type=click.FloatRange(0, 100), metavar="PERCENT", help="Stop at this disk usage [default: high]."
)
@click.option(
    "--strays", is_flag=True, help="Also delete what a shared store's bucket has and its database doesn't name."
)
@handler_option("Remove only this handler's images by these rules.")
@output_option
@pass_app
def gc(
    app: App,
    dry_run: bool,
    keep_last: int | None,
    unused_for: float | None,
    high: float | None,
    low: float | None,
    strays: bool,
    runtime_handler: str | None,
    output: str,
) -> None:
    """Free the content that no image and no lease needs. Safe while other processes pull.

    With rules, images are removed first: --keep-last spares the newest of each repository and handler; of the others go
    those --unused-for long enough and, while the disk is above --high, the longest unused ones until it would be at
    --low. With --keep-last alone all others go. Pinned images are always spared. Bytes count as free with the last
    image that needs them; what a lease, a label or a client keeps as well stays.

    --strays is for a shared store whose database was restored from a backup: it lists the bucket, and deletes objects
    older than a day that no row names.
    """
    if strays and dry_run:
        raise click.UsageError("--strays deletes; it doesn't go with --dry-run")
    app.is_freeing = not dry_run
    rules = _policy(app, (keep_last, unused_for, high, low), runtime_handler)
    evicted = None if rules is None else _evict(app, rules, dry_run=dry_run)
    # Printed before the collection, which may fail.
    for each in evicted.evicted if evicted is not None and output != "json" else ():
        verb = "would remove" if dry_run else "removed"
        print(f"{verb} {render.printable(each.record.reference)} ({each.record.handler}): {each.reason}")
    failure: UndeletableError | None = None
    try:
        report = app.store.collect_garbage(dry_run=dry_run)
    except UndeletableError as error:
        failure, report = error, cast("GarbageReport", error.report)
    except (ImageStoreError, KeyboardInterrupt):
        if evicted is not None and output == "json":
            render.dump_json({**evicted_json(evicted), "dryRun": dry_run, **_UNKNOWN})
        raise
    stray = app.store.sweep_strays() if strays else None
    if output == "json":
        found = {} if stray is None else {"strays": stray}
        render.dump_json({**evicted_json(evicted), "dryRun": dry_run, **garbage_json(report, evicted), **found})
    else:
        _print(app, report, evicted)
        if stray is not None:
            print(f"{counted(stray, 'object')} without a row deleted")
    if failure is not None:
        raise failure


def _evict(app: App, rules: EvictionPolicy, *, dry_run: bool) -> EvictionReport:
    try:
        return app.store.evict(rules, dry_run=dry_run)
    except UndeletableError as error:
        return cast("EvictionReport", error.report)  # the collection below tries again, and reports


def _print(app: App, report: GarbageReport, evicted: EvictionReport | None) -> None:
    dry_run = report.dry_run
    for digest in report.digests:
        print(f"{'would free' if dry_run else 'freed'} {digest}")
    for ref in report.ingests:
        print(f"{'would drop' if dry_run else 'dropped'} stale ingest {render.printable(ref)}")
    for subject, reason in report.failures.items():
        print(f"not freed {render.printable(subject)}: {render.printable(reason)}")
    verb = "would be freed" if dry_run else "freed"
    if evicted is not None:
        images = counted(len(evicted.evicted), "removed image")
        print(f"{render.size(evicted.bytes_freed)} of {images} {verb}")
    freed, kept = counted(len(report.digests), "blob"), counted(_kept(report, evicted), "blob")
    print(f"{render.size(report.bytes_freed)} in {freed} {verb}; {kept} {'would be kept' if dry_run else 'kept'}")
    leases = sum(1 for _ in app.store.metadata.leases.find())
    if leases:
        keep = "1 lease keeps content until it ends" if leases == 1 else f"{leases} leases keep content until they end"
        print(f"{keep} (each running pull has one); see 'imagestore leases list'")


def _kept(report: GarbageReport, evicted: EvictionReport | None) -> int:
    """How many blobs stay; the collection of a dry run still counts those of the images to be evicted."""
    return report.kept_blobs - (evicted.blobs_freed if evicted is not None and report.dry_run else 0)


def _policy(
    app: App, rules: tuple[int | None, float | None, float | None, float | None], handler: str | None
) -> EvictionPolicy | None:
    keep_last, unused_for, high, low = rules
    if low is not None and high is None:
        raise click.UsageError("--low goes with --high")
    if all(rule is None for rule in rules):
        if handler is not None:
            raise click.UsageError("--runtime-handler goes with --keep-last, --unused-for or --high")
        return None
    from imagestore.store.maintenance.eviction import EvictionPolicy

    if handler:
        # Refuses an unknown handler, for which nothing would be evicted.
        app.store.list(runtime_handler=handler)
    return EvictionPolicy(
        keep_last=keep_last,
        unused_seconds=unused_for,
        high_percent=high,
        low_percent=high if low is None else low,
        handler=app.config.default_handler if handler == "" else handler,
    )


def garbage_json(report: GarbageReport, evicted: EvictionReport | None = None) -> dict[str, object]:
    """A collection, with the numbers of the eviction in front of it."""
    return {
        "blobs": [str(digest) for digest in report.digests],
        "ingests": list(report.ingests),
        "bytesFreed": report.bytes_freed + (evicted.bytes_freed if evicted is not None else 0),
        "keptBlobs": _kept(report, evicted),
        "failures": [{"subject": subject, "reason": reason} for subject, reason in report.failures.items()],
    }


def evicted_json(evicted: EvictionReport | None) -> dict[str, object]:
    """The evicted images; no member without an eviction."""
    if evicted is None:
        return {}
    return {
        "evicted": [
            {**describe.key(each.record.reference, each.record.handler), "reason": each.reason}
            for each in evicted.evicted
        ]
    }
