"""``imagestore check``, ``repair``, ``backup`` and ``restore``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus
from imagestore.cli.options import GivenPath, output_option, progress_option
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.store.maintenance.check import CheckReport
    from imagestore.store.maintenance.hashing import CheckProgress
    from imagestore.store.maintenance.repair import RepairReport
    from imagestore.store.maintenance.restoring import RebuildReport

_LINE_SECONDS: Final = 2.0


_rate_option: Final = click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="MIB", help="Read at most MIB a second."
)


@click.command()
@_rate_option
@click.option("--resume", is_flag=True, help="Continue where an interrupted check stopped.")
@click.option("--rebuild", is_flag=True, help="Restore the records of a damaged database first.")
@click.option("--force", is_flag=True, help="With --rebuild: also without content, or if the database looks whole.")
@output_option
@pass_app
def check(app: App, rate: float | None, resume: bool, rebuild: bool, force: bool, output: str) -> ExitStatus:
    """Hash every blob again, and compare every edge and every record with what the content says.

    Only reads, while others go on. Ends with status 7 when something is wrong; 'imagestore repair' fixes it. If all
    that is wrong is content that the disk can't read, which may be whole, the status is 8.

    With --rebuild a damaged database is put aside, and the records of its newest good copy are restored, as far as
    their content is all there. Names that were given after that copy was made are lost; a pull gives them again and
    fetches nothing that is still here. A lease keeps all content for a day. Stop what uses the store before.

    A rebuild ends with nothing changed if there is no content, or content can't be read; --force goes on all the same.
    If a record of the copy isn't restored, the status is 7, and that copy is kept for 'imagestore restore'.
    """
    if force and not rebuild:
        raise click.UsageError("--force goes with --rebuild")
    app.missing = "refuse"
    rebuilt = None
    if rebuild:
        app.refuse_shared("check --rebuild", "restore the database from its backup")
        from imagestore.store.maintenance import rebuild as rebuilding

        rebuilt = rebuilding.rebuild(app.root, is_forced=force)
    if rebuilt is not None and output != "json":
        # Before hashing, which may take hours, and be interrupted.
        _print_rebuild(rebuilt)
        sys.stdout.flush()
    report = _checked(app, rate, resume=resume)
    if output == "json":
        shown: dict[str, Any] = _report_json(report)
        render.dump_json(shown if rebuilt is None else {**shown, "rebuild": _rebuild_json(rebuilt)})
    else:
        _print_report(report)
    return _status(report, rebuilt)


@click.command()
@_rate_option
@progress_option("What to show of fetching on standard error.")
@output_option
@pass_app
def repair(app: App, rate: float | None, progress: str, output: str) -> ExitStatus:
    """Check, then fetch only what is damaged or missing from where the images came from, and hash what came.

    Blobs that are damaged, or still can't be read, and that no image needs are deleted. Ends with status 7 when
    something could not be repaired.
    """
    app.missing = "refuse"
    report = _checked(app, rate, resume=False)
    if output != "json":
        # Before fetching, which may take long, and be interrupted.
        _print_report(report)
        sys.stdout.flush()
    with cancelled_by_signals() as token, observer_for(progress) as observer:
        repaired = app.store.repair(report, observer=observer, cancel=token)
    if output == "json":
        render.dump_json({"check": _report_json(report), **_repair_json(repaired)})
    else:
        _print_repair(repaired)
    return ExitStatus.INTEGRITY if repaired.failures else ExitStatus.OK


def _status(report: CheckReport, rebuilt: RebuildReport | None) -> ExitStatus:
    if rebuilt is not None and not rebuilt.is_complete:
        return ExitStatus.INTEGRITY
    if not report.faults:
        return ExitStatus.OK
    return ExitStatus.STORE if len(report.unreadable) == len(report.faults) else ExitStatus.INTEGRITY


def _checked(app: App, rate: float | None, *, resume: bool) -> CheckReport:
    from imagestore.store.maintenance.hashing import CheckOptions

    options = CheckOptions(
        bytes_per_second=None if rate is None else rate * 1024 * 1024,
        state=app.root / "check.json",
        resume=resume,
        progress=_lines(),
    )
    with cancelled_by_signals() as token:
        return app.store.check(options=options, cancel=token)


def _lines() -> Callable[[CheckProgress], None]:
    """Prints progress every two seconds; nothing for short checks."""
    due = time.monotonic() + _LINE_SECONDS

    def _print_progress(progress: CheckProgress) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _LINE_SECONDS
        done, total = render.size(progress.bytes_done), render.size(progress.bytes_total)
        line = f"hashed {progress.blobs_done} of {progress.blobs_total} blobs, {done} of {total}"
        print(line, file=sys.stderr, flush=True)

    return _print_progress


def _print_rebuild(report: RebuildReport) -> None:
    if report.was_whole:
        print("the database is whole; nothing was rebuilt")
        return
    if report.reindexed:
        print("indexes of the database were damaged; they were rebuilt")
    else:
        if report.kept_as is not None:
            print(f"the damaged database is now {render.printable(str(report.kept_as))}")
        source = "no copy of it is whole" if report.copy is None else render.printable(str(report.copy))
        print(f"records restored from: {source}")
    for record in report.restored:
        print(f"restored {render.printable(record.reference)} ({record.handler})")
    for record, reason in report.skipped:
        print(f"not restored {render.printable(record.reference)} ({record.handler}): {render.printable(reason)}")
    for digest in report.unnamed:
        print(f"without a name: {digest}; pull it again if you know its name")
    if report.found_lease:
        print(f"lease {render.printable(report.found_lease)} keeps all content for a day")


def _print_report(report: CheckReport) -> None:
    for fault in report.faults:
        print(f"{fault.kind.value}: {render.printable(fault.subject)}: {render.printable(fault.detail)}")
    counts = f"{report.blobs} blobs ({render.size(report.bytes_hashed)} hashed) and {report.records} records"
    print(f"{counts}: {len(report.faults) or 'no'} {'fault' if len(report.faults) == 1 else 'faults'}")


def _print_repair(report: RepairReport) -> None:
    for digest in report.fetched:
        print(f"fetched and verified {digest}")
    for digest in report.edges:
        print(f"rewrote the edges of {digest}")
    for digest in report.deleted:
        print(f"deleted {digest}: damaged or unreadable, and no image needs it")
    for subject, reason in report.failures:
        print(f"not repaired: {render.printable(subject)}: {render.printable(reason)}")


def _report_json(report: CheckReport) -> dict[str, Any]:
    return {
        "faults": [
            {"kind": fault.kind.value, "subject": fault.subject, "detail": fault.detail} for fault in report.faults
        ],
        "blobs": report.blobs,
        "bytesHashed": report.bytes_hashed,
        "records": report.records,
    }


def _repair_json(report: RepairReport) -> dict[str, Any]:
    return {
        "fetched": [str(digest) for digest in report.fetched],
        "bytesFetched": report.bytes_fetched,
        "deleted": [str(digest) for digest in report.deleted],
        "edges": [str(digest) for digest in report.edges],
        "failures": [{"subject": subject, "reason": reason} for subject, reason in report.failures],
    }


def _rebuild_json(report: RebuildReport) -> dict[str, Any]:
    return {
        "wasWhole": report.was_whole,
        "keptAs": None if report.kept_as is None else str(report.kept_as),
        "restored": [[record.reference, record.handler] for record in report.restored],
        "skipped": [[record.reference, record.handler, reason] for record, reason in report.skipped],
        "copy": None if report.copy is None else str(report.copy),
        "unnamed": [str(digest) for digest in report.unnamed],
        "found": [str(digest) for digest in report.found],
        "foundLease": report.found_lease or None,
        "reindexed": report.reindexed,
    }


@click.command()
@click.argument("file", type=GivenPath(dir_okay=False, path_type=Path))
@output_option
@pass_app
def backup(app: App, file: Path, output: str) -> None:
    """Copy the records (not the content) to a new FILE while other processes go on reading and writing.

    'imagestore restore FILE' puts them back.
    """
    app.missing = "refuse"
    app.store.backup(file)
    size = file.stat().st_size
    render.show(output, {"file": str(file), "bytes": size}, [f"{file}: {render.size(size)}"])


@click.command()
@click.argument("file", type=GivenPath(dir_okay=False, path_type=Path))
@output_option
@pass_app
def restore(app: App, file: Path, output: str) -> None:
    """Replace the store's records with those of a backup FILE; the old ones are kept under another name.

    Stop what uses the store before. The content stays: 'imagestore check' then says what of the backup's images is
    missing, 'imagestore repair' fetches it, and 'imagestore gc' frees what no image of the backup needs.
    """
    app.refuse_shared("restore", "use pg_restore, or the base backup and its write-ahead log")
    from imagestore.store.maintenance.rebuild import restore_backup

    kept_as = restore_backup(app.root, file)
    lines = [f"{file} restored; run 'imagestore check' before anything uses the store"]
    if kept_as is not None:
        lines.append(f"the records that were there: {kept_as}")
    render.show(output, {"restored": str(file), "keptAs": None if kept_as is None else str(kept_as)}, lines)


@click.command("finish-upgrade")
@output_option
@pass_app
def finish_upgrade(app: App, output: str) -> None:
    """Finish the upgrade of a shared store, when every machine has the new version.

    Until then the version before reads and writes too. From then on it is refused, also in processes that run. A store
    in a folder has nothing to finish: it is upgraded when the new version opens it.
    """
    app.missing = "refuse"
    if not app.is_shared:
        raise UnsupportedError(
            f"{app.root}: is upgraded when a new version opens it; there is nothing to finish",
            hint="for a shared store, name its database with --root",
        )
    from imagestore.metadata.postgres import PostgresMetadataStore

    metadata = app.store.metadata
    assert isinstance(metadata, PostgresMetadataStore)
    is_finished = metadata.finish_upgrade()
    said = "finished; older versions are refused from now on" if is_finished else "there is no upgrade to finish"
    render.show(output, {"finished": is_finished}, [said])
