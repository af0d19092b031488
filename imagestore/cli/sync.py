"""``imagestore sync``: images of several repositories, from registries into others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus, exit_status, note, say_untried
from imagestore.cli.options import GivenPath, output_option, plain_http_option, progress_option
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import ImageStoreError, OperationCancelledError
from imagestore.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.registry.credentials.lookup import CredentialResolver
    from imagestore.store.copy.sync_file import SyncFile
    from imagestore.store.copy.syncing import Failed, SyncItem, SyncResult
    from imagestore.util.cancel import CancelToken


@click.command()
@click.argument("file", type=GivenPath(dir_okay=False, path_type=Path))
@click.argument("target", required=False, default="")
@click.option("--scoped", is_flag=True, help="Keep the source's host and whole path below the target.")
@click.option("--referrers", is_flag=True, help="Also what refers to the images: signatures, bills of materials.")
@click.option("--keep-going", "-k", is_flag=True, help="Go on with the other images after a failure.")
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be copied.")
@progress_option()
@plain_http_option
@output_option
@pass_app
def sync(
    app: App,
    file: Path,
    target: str,
    scoped: bool,
    referrers: bool,
    keep_going: bool,
    dry_run: bool,
    progress: str,
    output: str,
) -> ExitStatus:
    """Copy the images that FILE names into TARGET, a registry with or without a path, unless they are there already.

    FILE is skopeo's YAML for 'skopeo sync'. Images go with all their platforms. As in skopeo, the last part of a
    repository's path is kept below TARGET; with --scoped the source's host and whole path. Own keys stand below
    x-imagestore: target or targets, and referrers, for a registry or at the top for all; and tags with a pattern of *,
    ? and [...] for each repository of a registry.

    A failure ends it, unless --keep-going is given; then the exit status is that of the first failure. It can be run
    again at any time: what is there costs one request on each side, which registries don't count as a pull.

    \b
    imagestore sync images.yml mirror.example/team --dry-run
    imagestore sync images.yml mirror.example/team --scoped --keep-going
    """
    from imagestore.store.copy.sync_file import check_target, read_sync_file
    from imagestore.store.copy.syncing import plan

    if target:
        check_target(target)
    wanted = read_sync_file(file, target=target)
    for remark in wanted.remarks:
        note(f"{file}: {remark}")
    app.missing, app.credentials = "empty", _logins(wanted, file)

    def _plan(failed: Failed, cancel: CancelToken) -> list[SyncItem]:
        return plan(app.store, wanted, scoped=scoped, referrers=referrers, failed=failed, cancel=cancel)

    return bring(app, _plan, keep_going=keep_going, dry_run=dry_run, progress=progress, output=output)


def bring(
    app: App,
    plan: Callable[[Failed, CancelToken], list[SyncItem]],
    *,
    keep_going: bool,
    dry_run: bool,
    progress: str,
    output: str,
    deadline: float | None = None,
) -> ExitStatus:
    """Bring the images of a plan where they belong, and say what was done, however it ends."""
    from imagestore.store.copy.syncing import sync as sync_one

    done: list[SyncResult] = []
    failures: list[tuple[SyncItem, ImageStoreError]] = []

    def _failed(item: SyncItem, error: ImageStoreError) -> None:
        failures.append((item, error))
        if not keep_going or isinstance(error, OperationCancelledError):
            raise error
        note(f"{item.source}: {error}")

    try:
        with cancelled_by_signals(deadline_seconds=deadline) as cancel, observer_for(progress) as observer:
            items = plan(_failed, cancel)
            for number, item in enumerate(items):
                try:
                    done.append(sync_one(app.store, item, dry_run=dry_run, observer=observer, cancel=cancel))
                except ImageStoreError as error:
                    if not keep_going:
                        say_untried((each.source, "") for each in items[number + 1 :])
                    _failed(item, error)
                else:
                    if output != "json":
                        _show(done[-1])
    finally:
        if output == "json":
            render.dump_json(_document(done, failures, is_dry_run=dry_run))
        elif done or failures:
            print(_summary(done, len(failures)))
    return exit_status(failures[0][1]) if failures else ExitStatus.OK


def _logins(wanted: SyncFile, file: Path) -> CredentialResolver | None:
    """The file's logins, each for its registry; None for the stored ones alone."""
    if not wanted.logins:
        return None
    from imagestore.registry.credentials.lookup import CredentialResolver
    from imagestore.registry.credentials.model import FoundCredential
    from imagestore.registry.credentials.sources import ExplicitSource

    found = [ExplicitSource(FoundCredential(login, str(file)), host) for host, login in wanted.logins.items()]
    return CredentialResolver.standard(*found)


def _show(result: SyncResult) -> None:
    line = f"{result.state.value} {result.item.source} to {result.item.destination}"
    sent = f", {render.size(result.sent)}" if result.sent else ""
    more = f", with {counted(result.referrers, 'referrer')}" if result.referrers else ""
    print(render.printable(f"{line}: {result.digest}{sent}{more}"))


def _summary(done: list[SyncResult], failed: int) -> str:
    from imagestore.store.copy.syncing import SyncState

    numbers = {state.value: sum(each.state is state for each in done) for state in SyncState} | {"failed": failed}
    parts = [f"{number} {word}" for word, number in numbers.items() if number]
    return f"{counted(len(done) + failed, 'image')}: {', '.join(parts)}"


def _document(
    done: list[SyncResult], failed: list[tuple[SyncItem, ImageStoreError]], *, is_dry_run: bool
) -> dict[str, Any]:
    return {
        "images": [
            {
                "source": each.item.source,
                "destination": each.item.destination,
                "state": each.state.value,
                "digest": str(each.digest),
                "sent": each.sent,
                "referrers": each.referrers,
            }
            for each in done
        ],
        "failed": [
            {
                "source": item.source,
                "destination": item.destination,
                "message": str(error),
                "hint": error.hint,
                "status": exit_status(error).value,
            }
            for item, error in failed
        ],
        "dryRun": is_dry_run,
    }
