"""``imagestore match``: a table with a row for each entry and a column for each handler; the reasons below."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import imagestore.platforms as platforms
from imagestore.cli import completion, describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus
from imagestore.cli.options import handlers_option, host_option, html_option, output_option
from imagestore.errors import StoreError
from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from imagestore.config import HandlerPlatform
    from imagestore.content.api import ContentStore
    from imagestore.oci.select import Selection, Verdict
    from imagestore.store.report import Matrix

_LEAST_PLATFORM: Final = 8
#: Characters of a platform where the terminal is too narrow for all of a matrix; "windows(10.0.20348.1970)/amd64" fits.
_PLATFORM: Final = 32


@click.command()
@click.argument("reference", required=False, shell_complete=completion.images)
@handlers_option("Only this handler; may be repeated.")
@click.option(
    "--index",
    "index_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Judge the image index (or manifest) in FILE instead of asking a registry; - reads standard input.",
)
@click.option("--offline", is_flag=True, help="Use only what the store has.")
@host_option
@html_option
@output_option
@pass_app
def match(
    app: App,
    reference: str | None,
    handlers: tuple[str, ...],
    index_file: Path | None,
    offline: bool,
    host: str | None,
    html: Path | None,
    output: str,
) -> ExitStatus:
    """Show which manifest each runtime handler would get, and why not the others.

    Nothing is stored and no layer is fetched. The exit status is 4 when a handler named with --runtime-handler, or
    every handler, would get nothing.
    """
    if (reference is None) == (index_file is None):
        raise click.UsageError("give either a REFERENCE or --index FILE")
    from imagestore.store.pull.choice import wanted_platforms
    from imagestore.store.report import Matrix

    if host is not None:
        app.host = platforms.parse(host)
    wanted = wanted_platforms(app.config, handlers or None, host=app.host)
    if index_file is not None:
        selections = _from_file(app, index_file, wanted)
        title = str(index_file)
    else:
        assert reference is not None
        if offline:
            app.missing = "unnamed"
        selections = app.store.match(reference, runtime_handlers=handlers or None, offline=offline)
        title = reference
    matrix = Matrix((title,), None, selections)
    if html is not None:
        from imagestore.cli.html.markup import write_page
        from imagestore.cli.html.pages import match_page

        write_page(html, match_page(matrix, wanted, app.config.default_handler, app.host), output)
    if output == "json":
        render.dump_json(_as_json(title, selections, wanted))
    elif html is None:
        _print_matrix(matrix)
        for name, selection in selections.items():
            _print_reasons(name, selection, wanted[name])
    unmatched = [name for name, selection in selections.items() if selection.chosen is None]
    if unmatched and (handlers or len(unmatched) == len(selections)):
        return ExitStatus.NO_MATCH
    return ExitStatus.OK


def _from_file(app: App, path: Path, wanted: Mapping[str, HandlerPlatform]) -> dict[str, Selection]:
    from imagestore.store.pull.choice import match_handlers, target_of
    from imagestore.store.pull.sources import Documents
    from imagestore.util.cancel import CancelToken

    raw = _read(path)
    documents = Documents(_content(app), None, None, CancelToken())
    target = target_of(raw, what="standard input" if str(path) == "-" else str(path))
    documents.remember(target, raw)
    return match_handlers(target, documents, wanted)


def _content(app: App) -> ContentStore | None:
    """The store's content, if there is a store; a file may do without."""
    try:
        return app.store.content if app.is_shared or app.root.is_dir() else None
    except (OSError, StoreError):
        return None


def _read(path: Path) -> bytes:
    from imagestore.oci.decode import MAX_INDEX_BYTES

    try:
        with click.open_file(str(path), "rb") as file:
            raw: bytes = file.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"--index {path}: {error.strerror}") from error
    if len(raw) > MAX_INDEX_BYTES:
        raise click.UsageError(f"--index {path}: longer than the {MAX_INDEX_BYTES} bytes a document may have")
    return raw


def _print_matrix(matrix: Matrix) -> None:
    from imagestore.oci.selection import place

    names = matrix.handlers
    rows = [
        (
            place(row.position),
            describe.platform_or_none(row.platform),
            row.descriptor.digest.short,
            *("-" if verdict is None else describe.verdict(verdict) for verdict in row.verdicts),
        )
        for row in matrix.rows
    ]
    # Names of handlers differ by case too, so they stay as they are.
    headings = ("ENTRY", "PLATFORM", "DIGEST", *names)
    if render.fits(headings, rows):
        render.table(headings, rows)
        return
    letters = [chr(ord("A") + number % 26) * (1 + number // 26) for number in range(len(names))]
    verdicts = [[cell.rpartition(".")[2] for cell in cells] for _, _, _, *cells in rows]
    # One handler's verdicts must fit next to it.
    alone = [(max(row[0], "ENTRY", key=len), max(cells, key=len)) for row, cells in zip(rows, verdicts, strict=True)]
    most = min(_PLATFORM, max(_LEAST_PLATFORM, render.room(alone)))
    short = [(row[0], cut(render.printable(row[1]), most), *cells) for row, cells in zip(rows, verdicts, strict=True)]
    for first, last in _columns(letters, short):
        heading = ("ENTRY", "PLATFORM", *letters[first:last])
        render.table(heading, [(*row[:2], *row[2 + first : 2 + last]) for row in short])
        if last < len(names):
            print()
    for letter, name in zip(letters, names, strict=True):
        print(f"{letter} = {render.printable(name)}")


def _columns(letters: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[tuple[int, int]]:
    """Ranges of handlers that fit the terminal together; at least one handler each."""
    first = 0
    while first < len(letters):
        last = len(letters)
        while last > first + 1 and not render.fits(
            ("ENTRY", "PLATFORM", *letters[first:last]), [(*row[:2], *row[2 + first : 2 + last]) for row in rows]
        ):
            last -= 1
        yield first, last
        first = last


def _print_reasons(name: str, selection: Selection, wanted: HandlerPlatform) -> None:
    origin = render.printable(describe.origin(wanted))
    print(f"\n{render.printable(name)} wants {render.printable(selection.wanted)} (from {origin})")
    if selection.chosen is not None:
        print(f"  takes entry {_line(selection.chosen)}")
        if selection.runner_up is not None:
            print(f"  next would be {_line(selection.runner_up)}")
    else:
        print("  takes nothing")
    refused: dict[str, list[str]] = {}
    for verdict in selection.verdicts:
        if verdict.rank is None:
            refused.setdefault(verdict.reason, []).append(verdict.place)
    for reason, numbers in refused.items():
        print(f"  not {', '.join(numbers)}: {render.printable(reason)}")
    for remark in wanted.remarks(selection):
        print(f"  note: {render.printable(remark)}")
    hint = wanted.advise(selection)
    if hint:
        print(f"  hint: {render.printable(hint)}")


def _line(verdict: Verdict) -> str:
    return f"{verdict.place}: {render.printable(verdict.reason)}"


def _as_json(title: str, selections: Mapping[str, Selection], wanted: Mapping[str, HandlerPlatform]) -> dict[str, Any]:
    return {
        "image": title,
        "handlers": [
            {
                "runtimeHandler": name,
                "wantedPlatform": selection.wanted,
                "origin": dict(wanted[name].origin),
                "declared": wanted[name].is_declared,
                "chosen": None if selection.chosen is None else _verdict_json(selection.chosen),
                "runnerUp": None if selection.runner_up is None else _verdict_json(selection.runner_up),
                "entries": [_verdict_json(verdict) for verdict in selection.verdicts],
                "remarks": list(wanted[name].remarks(selection)),
                "hint": wanted[name].advise(selection),
            }
            for name, selection in selections.items()
        ],
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "position": list(verdict.position),
        "descriptor": verdict.descriptor.members(),
        "platform": None if verdict.platform is None else describe.platform(verdict.platform),
        "accepted": verdict.accepted,
        "rank": verdict.rank,
        "rule": str(verdict.rule),
        "reason": verdict.reason,
    }
