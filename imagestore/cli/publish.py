"""``imagestore publish`` and ``unpublish``: the store's images in a containerd, once, without a server."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from imagestore.cli import completion, publish_status, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus, needed, note, warn
from imagestore.cli.options import duration_option, handler_option, output_option, progress_option, refuse_together
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import StoreBusyError, StoreCorruptError
from imagestore.publish import ImageState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set

    from imagestore.publish import Publisher, PublisherStatus, ReconcileReport
    from imagestore.util.cancel import CancelToken

_SHARED_HINT: Final = "its records aren't one node's; give the node a store of its own"
_address_option = click.option(
    "--address",
    metavar="unix:///PATH",
    help="containerd's socket. Default: that of the configuration, else the one that a server of this store uses.",
)


@click.command()
@click.argument("names", nargs=-1, metavar="[IMAGE]...", shell_complete=completion.images)
@handler_option("Only this handler's images of these names.")
@_address_option
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be published and taken away.")
@click.option("--status", "is_status", is_flag=True, help="Show how publishing stands, or trace these images.")
@click.option(
    "--take-over",
    is_flag=True,
    help="Treat what this store's copy on another machine published as this store's (after a restore).",
)
@duration_option("--deadline", default="5m", show_default=True, help="Give up after this time; a server goes on.")
@progress_option("What to show on standard error.")
@output_option
@pass_app
def publish(
    app: App,
    names: tuple[str, ...],
    runtime_handler: str | None,
    address: str | None,
    dry_run: bool,
    is_status: bool,
    take_over: bool,
    deadline: float,
    progress: str,
    output: str,
) -> ExitStatus:
    """Publish images of the store into containerd, so that its pods run them.

    Without IMAGE everything that the store has is published, and what this store had published and doesn't have any
    more is taken away. 'imagestore serve --publish' does the same all the time; beside such a server this command waits
    until the server has done it.

    --dry-run and --status change nothing. --status shows containerd, how layers come into it, images by state, names
    that somebody else has there, and warnings; with IMAGE the way of each image from its references and runtime
    handlers to containerd's names, snapshotters and containers.

    Ends with status 6 if containerd can't be reached, and with 1 if an image failed.
    """
    refuse_together(dry_run=dry_run, status=is_status)
    if runtime_handler is not None and not names:
        raise click.UsageError("--runtime-handler goes with IMAGE")
    with opened(app, address, take_over=take_over, deadline_seconds=deadline) as (publisher, token):
        if is_status or dry_run:
            found = _statuses(publisher, names, runtime_handler)
            show = _show_plan if dry_run else _show_status
            return show(found, output, is_trace=bool(names))
        image_ids = _image_ids(app, names, runtime_handler)
        report, process_id = _settle(publisher, image_ids, token, progress)
    _show_report(app, report, process_id, output)
    return ExitStatus.FAILURE if report.failed else ExitStatus.OK


@click.command()
@click.argument("names", nargs=-1, metavar="[IMAGE]...", shell_complete=completion.images)
@click.option("--all", "is_all", is_flag=True, help="Everything that this store published, as before uninstalling.")
@handler_option("Only this handler's images of these names.")
@_address_option
@output_option
@pass_app
def unpublish(
    app: App, names: tuple[str, ...], is_all: bool, runtime_handler: str | None, address: str | None, output: str
) -> None:
    """Take images of this store away from containerd, with what only they keep there; the store keeps them.

    Running containers go on. Refused while a server publishes this store, which would bring the images back: remove
    them from the store by 'imagestore rmi', or stop the server first.
    """
    if bool(names) is is_all:
        raise click.UsageError("expected IMAGE, or --all")
    if runtime_handler is not None and is_all:
        raise click.UsageError("--runtime-handler goes with IMAGE")
    with opened(app, address) as (publisher, _):
        image_ids = _image_ids(app, names, runtime_handler)
        try:
            removed = publisher.unpublish_all() if image_ids is None else publisher.unpublish(image_ids)
        except StoreBusyError as error:
            hint = "remove them from the store by 'imagestore rmi', or stop the server first"
            raise StoreBusyError(f"{error}, and would bring the images back", hint=hint) from error
    render.show(output, {"removed": list(removed)}, (f"removed {name}" for name in removed))


@contextlib.contextmanager
def opened(
    app: App, address: str | None, *, take_over: bool = False, deadline_seconds: float | None = None
) -> Iterator[tuple[Publisher, CancelToken]]:
    """A publisher of the store, and the token that signals and the deadline cancel.

    Raises:
        UnsupportedError: the store is one that machines share.
        UsageError: no containerd is named anywhere.
    """
    app.refuse_shared("publishing", _SHARED_HINT)
    app.missing = "refuse"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else a failed connection is logged next to our message
    with needed("cri", what="publishing"):
        from imagestore.publish import PUBLISH_PLUGIN, Publisher
    settings = app.plugin(PUBLISH_PLUGIN)
    found = address or address_of(app)
    if not found:
        raise click.UsageError(
            'no containerd is named: give --address, or address in plugins."io.imagestore.publish.v1"'
        )
    with (
        cancelled_by_signals(deadline_seconds=deadline_seconds) as token,
        Publisher(
            app.store, found, namespace=settings.namespace, content=settings.content, take_over=take_over
        ) as publisher,
        token.on_cancel(lambda: publisher.cancel("interrupted")),
    ):
        yield publisher, token


def address_of(app: App) -> str:
    """The socket of the containerd that the configuration names, or that a server of this store publishes into."""
    from imagestore.publish import PUBLISH_PLUGIN
    from imagestore.publish.owner_lock import owners

    configured = app.plugin(PUBLISH_PLUGIN).address
    if configured:
        return configured
    try:
        addresses = {owner.address for owner in owners(app.root) if owner.address}
    except StoreCorruptError as error:
        warn("", [str(error)])
        return ""
    return addresses.pop() if len(addresses) == 1 else ""


def _image_ids(app: App, names: Iterable[str], handler: str | None) -> Set[str] | None:
    """The ids that the names mean; None without names.

    Raises:
        ImageNotFoundError: the store has no image of a name.
    """
    from imagestore.publish.status import image_ids_of

    found: set[str] | None = None
    for name in names:
        found = (found or set()) | image_ids_of(app.store, name, handler)
    return found


def _settle(
    publisher: Publisher, image_ids: Set[str] | None, token: CancelToken, progress: str
) -> tuple[ReconcileReport, int | None]:
    """Publish, or wait for the process that does; returns its number, too."""
    from imagestore.publish import PublisherRunningError

    with observer_for(progress) as observer:
        while True:
            try:
                if image_ids is None:
                    return publisher.reconcile(cancel=token, observer=observer), None
                return publisher.publish_images(image_ids, cancel=token, observer=observer), None
            except PublisherRunningError as error:
                note(f"{error}; waiting until it is done")
                report = publisher.wait_for_owner(image_ids, cancel=token)
                if report is not None:
                    return report, error.process_id


def _statuses(publisher: Publisher, names: tuple[str, ...], handler: str | None) -> PublisherStatus:
    """The status of everything, or of the images of all names together."""
    if not names:
        return publisher.status()
    found = [publisher.status(name, runtime_handler=handler) for name in names]
    images = {image.image_id: image for status in found for image in status.images}
    return replace(found[0], images=tuple(images.values()))


def _show_report(app: App, report: ReconcileReport, process_id: int | None, output: str) -> None:
    if output == "json":
        render.dump_json(
            {
                "published": list(report.published),
                "unchanged": report.unchanged,
                "removed": list(report.removed),
                "failed": _reasons(report.failed),
                "notRunnable": _reasons(report.not_runnable),
                "processId": process_id,
            }
        )
        return
    references = _references(app)
    for verb, ids in (("published", dict.fromkeys(report.published, "")), ("not runnable", report.not_runnable)):
        for image_id, reason in ids.items():
            print(f"{verb} {image_id}{references.get(image_id, '')}{publish_status.reason(reason)}")
    for name in report.removed:
        print(f"removed {render.printable(name)}")
    for image_id, reason in report.failed.items():
        print(f"failed {image_id}{references.get(image_id, '')}{publish_status.reason(reason)}")
    whole = f"{len(report.published)} published, {report.unchanged} were already, {len(report.removed)} names removed"
    print(f"{whole}, {len(report.failed)} failed")


def _references(app: App) -> Mapping[str, str]:
    """The references of each image id, in brackets."""
    return {
        image_id: f" ({', '.join(map(render.printable, group.references))})"
        for image_id, group in app.store.images_by_id().items()
    }


def _reasons(reasons: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"id": image_id, "reason": reason} for image_id, reason in reasons.items()]


def _show_plan(status: PublisherStatus, output: str, *, is_trace: bool) -> ExitStatus:
    """What a publish would do."""
    done = (ImageState.PUBLISHED, ImageState.NOT_RUNNABLE)
    work = [image for image in status.images if image.state not in done]
    removed = [] if is_trace else list(status.unwanted)
    if output == "json":
        shown = {
            "toPublish": [publish_status.image_json(image) for image in work],
            "toRemove": removed,
            "way": status.way.value if status.way is not None else None,
        }
        render.dump_json({**publish_status.head_json(status), **shown})
        return publish_status.exit_status(status)
    for image in work:
        print(f"would publish {image.image_id} ({publish_status.owners(image)}) for {', '.join(image.snapshotters)}")
    for name in removed:
        print(f"would remove {render.printable(name)}")
    published = sum(1 for image in status.images if image.state is ImageState.PUBLISHED)
    whole = f"{len(work)} to publish, {len(removed)} names to remove, {published} published"
    print(f"{whole}; content: {publish_status.way(status)}")
    if not status.is_connected:
        note(status.reason)
    return publish_status.exit_status(status)


def _show_status(status: PublisherStatus, output: str, *, is_trace: bool) -> ExitStatus:
    """How publishing stands, or the traces of the images alone."""
    if output == "json":
        render.dump_json(publish_status.status_json(status))
        return publish_status.exit_status(status)
    if is_trace:
        for number, image in enumerate(status.images):
            if number:
                print()
            render.table(("FIELD", "VALUE"), publish_status.trace(image))
        if not status.is_connected:
            note(status.reason)
        return publish_status.exit_status(status)
    render.table(("WHAT", "STATE"), publish_status.summary(status))
    warn("", status.warnings)
    return publish_status.exit_status(status)
