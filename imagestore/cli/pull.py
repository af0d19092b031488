"""``imagestore pull``."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import click

import imagestore.platforms as platforms
from imagestore.cli import completion, describe, options, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus, note, say_untried, warn
from imagestore.cli.options import (
    access_options,
    duration_option,
    handlers_option,
    limit_rate_option,
    output_option,
    progress_option,
    refuse_together,
)
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals
from imagestore.config.findings import Severity
from imagestore.errors import ImageStoreError, OperationCancelledError
from imagestore.events import BlobStarted, Noticed
from imagestore.oci.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from imagestore.content import ContentStore
    from imagestore.events import Event
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.image import Image
    from imagestore.store.pull.plan import PullPlan


@click.command()
@click.argument("references", nargs=-1, metavar="REFERENCE...", shell_complete=completion.images)
@click.option("--sandbox", is_flag=True, help="Fetch the handler's sandbox (pause) image, for the same platform.")
@handlers_option(
    "Pull for this handler's platform and keep it under its name; may be repeated. "
    "Default: the configured default handler."
)
@click.option("--all-handlers", is_flag=True, help="Pull for every configured runtime handler.")
@click.option("--platform", metavar="P", help="Pull for this platform, for example 'windows(10.0.17763)/amd64'.")
@duration_option("--deadline", help="Give up after this time, for example 90s; what came can be resumed.")
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be fetched, and what is here already.")
@click.option("--quiet", "-q", is_flag=True, help="Print image ids alone, and no progress.")
@progress_option()
@limit_rate_option
@access_options
@output_option
@pass_app
def pull(
    app: App,
    references: tuple[str, ...],
    sandbox: bool,
    handlers: tuple[str, ...],
    all_handlers: bool,
    platform: str | None,
    deadline: float | None,
    dry_run: bool,
    quiet: bool,
    progress: str,
    limit_rate: int | None,
    creds_stdin: bool,
    anonymous: bool,
    output: str,
) -> ExitStatus:
    """Fetch an image for a runtime handler (or a platform) and keep it.

    Of a multi-platform image only the manifest that the handler's sandbox can run is fetched. Content that another
    handler's image has already is not fetched again.
    """
    refuse_together(runtime_handler=handlers, all_handlers=all_handlers, platform=platform)
    if quiet and output == "json":
        raise click.UsageError("--quiet and --output json exclude each other")
    if not references and not sandbox:
        raise click.UsageError("Missing argument 'REFERENCE...'")
    if app.remote is not None:
        local = {
            "--sandbox": sandbox,
            "--all-handlers": all_handlers,
            "--platform": platform,
            "--dry-run": dry_run,
            "--quiet": quiet,
            "--limit-rate": limit_rate,
        }
        if progress not in ("auto", "none"):
            raise click.UsageError("--progress is for a local store; CRI doesn't report a pull's progress")
        _pull_remotely(app, references, handlers, {**local, "--anonymous": anonymous}, creds_stdin, deadline, output)
        return ExitStatus.OK
    if all_handlers:
        handlers = tuple(app.config.handlers)
    work = [(reference, handler) for reference in references for handler in handlers or ("",)]
    if sandbox:
        work += [(app.config.sandbox_image(handler), handler) for handler in handlers or ("",)]
    host = _single_host((reference for reference, _ in work), creds_stdin=creds_stdin)
    app.credentials = options.lookup(host, creds_stdin=creds_stdin, anonymous=anonymous)
    app.bytes_per_second = limit_rate
    # A misspelt member of a guest platform decides what is pulled.
    warn("", [str(each) for each in app.config.findings if each.severity is Severity.WARNING])
    if dry_run:
        return _plan(app, work, platform, deadline, output)
    style = "none" if quiet else progress
    _pull(app, work, platform, deadline_seconds=deadline, progress=style, output="ids" if quiet else output)
    return ExitStatus.OK


def _pull(
    app: App,
    work: Sequence[tuple[str, str]],
    platform: str | None,
    *,
    deadline_seconds: float | None,
    progress: str,
    output: str,
) -> None:
    """Pull images, pairs of reference and runtime handler, and print what came, as ``table``, ``json`` or ``ids``."""
    app.missing = "make"
    for reference, _ in work:
        Reference.parse(reference)
    pulled: list[Image] = []
    begun: dict[Digest, Descriptor] = {}
    try:
        with cancelled_by_signals(deadline_seconds=deadline_seconds) as token, observer_for(progress) as shown_by:

            def _observe(event: Event) -> None:
                if isinstance(event, BlobStarted):
                    begun[event.descriptor.digest] = event.descriptor
                shown_by(event)

            for reference, handler in work:
                before = _kept(app, reference) if platform is not None else None
                image = app.store.pull(
                    reference, runtime_handler=handler, platform=platform, observer=_observe, cancel=token
                )
                pulled.append(image)
                if before is not None and before.platform != image.platform:
                    _observe(
                        Noticed(f"{image.reference}: replaces the image for {platforms.format_all(before.platform)}")
                    )
    except OperationCancelledError as error:
        say_untried(work[len(pulled) + 1 :])
        kept = _bytes_of(begun.values(), app.store.content) if begun else 0
        if kept:
            text = f"{error}; the next pull goes on from here, with {render.size(kept)}"
            raise type(error)(text, hint=error.hint) from error
        raise
    except ImageStoreError:
        say_untried(work[len(pulled) + 1 :])
        raise
    finally:
        # Also the images pulled before a failure; after the bars, which would overwrite these lines.
        if pulled:
            shown = {"images": [describe.image(image, app.pins) for image in pulled]}
            whole = (f"{image.reference} ({image.runtime_handler}): {image.id}" for image in pulled)
            render.show(output, shown, (str(image.id) for image in pulled) if output == "ids" else whole)


def _bytes_of(blobs: Iterable[Descriptor], content: ContentStore) -> int:
    """How many bytes of these the store has, whole or in ingests."""
    total = 0
    for blob in blobs:
        ingest = content.status(blob.ingest_ref)
        total += ingest.offset if ingest is not None else blob.size if content.exists(blob.digest) else 0
    return total


def _kept(app: App, reference: str) -> Image | None:
    """The default handler's image of a reference."""
    found = app.store.list(name=reference, runtime_handler=app.config.default_handler)
    return next((image for image in found if image.reference == str(Reference.parse(reference))), None)


def _plan(
    app: App, work: list[tuple[str, str]], platform: str | None, deadline: float | None, output: str
) -> ExitStatus:
    """Show what a pull would do; ends as the pull would where the disk has no room for it."""
    plans: list[PullPlan] = []
    try:
        with cancelled_by_signals(deadline_seconds=deadline) as token:
            app.store.plan(work, platform=platform, tell=plans.append, cancel=token)
    except ImageStoreError:
        say_untried(work[len(plans) + 1 :])
        raise
    finally:
        # Also what was planned before a failure.
        if plans:
            _show_plan(app, plans, output)
    missing = sum(each.added_bytes for each in plans)
    # Each layer is on this machine's disk until the bucket has it.
    free = _free_bytes(app.root)
    if missing > free:
        note(f"{app.root}: the disk has {render.size(free)} free, the pull needs {render.size(missing)}")
        return ExitStatus.STORE
    return ExitStatus.OK


def _free_bytes(root: Path) -> int:
    """Free bytes of the file system where a folder is, or would be made."""
    there = next(each for each in (root, *root.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def _pull_remotely(
    app: App,
    references: tuple[str, ...],
    handlers: tuple[str, ...],
    local: dict[str, object],
    creds_stdin: bool,
    deadline: float | None,
    output: str,
) -> None:
    """Pull by a CRI server. No stored login is sent to it: it may belong to other people."""
    from imagestore.cli import remote
    from imagestore.registry.credentials.cri import AuthConfig

    remote.refuse_local_options(local)
    host = _single_host(references, creds_stdin=creds_stdin)
    auth = None
    if creds_stdin:
        credential = options.read_stdin()
        auth = AuthConfig(server_address=host, username=credential.username, password=credential.password)
    work = [(reference, handler) for reference in references for handler in handlers or ("",)]
    remote.pull(app.service, work, auth=auth, deadline_seconds=deadline, output=output)


def _single_host(references: Iterable[str], *, creds_stdin: bool) -> str:
    """A registry of the references; the only one, when credentials are given for it."""
    hosts = sorted({Reference.parse(reference).host for reference in references})
    if creds_stdin and len(hosts) > 1:
        raise click.UsageError(f"--creds-stdin is for one registry, but the references name {', '.join(hosts)}")
    return hosts[0]


def _show_plan(app: App, plans: list[PullPlan], output: str) -> None:
    from imagestore.store.pull.plan import Presence

    used = sum(info.size for info in app.store.content.walk())
    missing = sum(each.missing_bytes for each in plans)
    after = used + sum(each.added_bytes for each in plans)
    if output == "json":
        pulls = [_plan_json(app, each) for each in plans]
        render.dump_json({"pulls": pulls, "bytesToFetch": missing, "contentBytes": used, "contentBytesAfter": after})
        return
    rows = [
        (
            *describe.familiar(each.reference),
            each.handler,
            describe.platform(each.choice.platform)["text"],
            "up to date" if each.is_current else render.size(each.missing_bytes),
            render.size(each.bytes_of(Presence.HERE) + each.bytes_of(Presence.SOURCE)),
            render.size(each.bytes_of(Presence.PLANNED)),
            ", ".join(_sources(app, each.reference)),
        )
        for each in plans
    ]
    render.table(("IMAGE", "TAG", "RUNTIME HANDLER", "PLATFORM", "TO FETCH", "HERE", "SHARED", "FROM"), rows)
    print(f"{render.size(missing)} to fetch; the store has {render.size(used)}, and would have {render.size(after)}")


def _plan_json(app: App, plan: PullPlan) -> dict[str, Any]:
    from imagestore.store.pull.plan import Presence

    return {
        "reference": plan.reference,
        "runtimeHandler": plan.handler,
        "wantedPlatform": plan.wanted,
        "platform": describe.platform(plan.choice.platform),
        "manifest": plan.choice.chosen.members(),
        "upToDate": plan.is_current,
        "bytesToFetch": plan.missing_bytes,
        "bytesHere": plan.bytes_of(Presence.HERE),
        "bytesAtSource": plan.bytes_of(Presence.SOURCE),
        "bytesShared": plan.bytes_of(Presence.PLANNED),
        "hosts": _sources(app, plan.reference),
        "blobs": [
            {
                **blob.descriptor.members(),
                "presence": blob.presence.value,
                "bytesToFetch": blob.missing_bytes,
            }
            for blob in plan.blobs
        ],
    }


def _sources(app: App, reference: str) -> list[str]:
    """The hosts that would be asked for content, in order."""
    from imagestore.config.hosts import reader_for
    from imagestore.registry.endpoints import PULL, endpoints_from

    host = Reference.parse(reference).host
    endpoints = endpoints_from(host, reader_for(app.config)(host))
    return [endpoint.host for endpoint in endpoints if PULL in endpoint.capabilities]
