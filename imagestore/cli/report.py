"""``imagestore report``: a look at the whole store, as a page, as text, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import imagestore.platforms as platforms
from imagestore.cli import complete, describe, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.options import html_option
from imagestore.cli.signals import cancelled_by_signals
from imagestore.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from imagestore.store.report import Matrix, Row, StoreReport


@click.command()
@click.argument("names", nargs=-1, metavar="[REFERENCE]...", shell_complete=complete.images)
@html_option
@output_option
@pass_app
def report(app: App, names: tuple[str, ...], html: Path | None, output: str) -> None:
    """Report on the store: handlers, matrices, images, disk, what could be freed, what is wrong.

    The matrices are those of the images named, or of every image in the store. Nothing is changed, and no registry is
    asked. Without --html a summary is printed; as JSON all that the page has.

    \b
    imagestore report --html report.html
    imagestore report --html python.html python:3
    """
    from imagestore.store.report import gather, matrices

    app.missing = "refuse"
    found = gather(app.store, names=names)
    if html is not None:
        from imagestore.cli.html.page import write_page
        from imagestore.cli.html.store_page import store_page

        with cancelled_by_signals() as token:
            text = store_page(found, matrices(app.store, found, cancel=token))
        # Only now: a pipe may wait for its reader, which no token ends.
        write_page(html, text, output)
    if output == "json":
        with cancelled_by_signals() as token:
            document = _as_json(found, matrices(app.store, found, cancel=token), app)
        render.dump_json(document)
    elif html is None:
        with cancelled_by_signals() as token:
            _print(found, matrices(app.store, found, cancel=token))


def _print(found: StoreReport, matrices: Iterable[Matrix]) -> None:
    usage = found.usage
    served = dict.fromkeys(found.handlers, 0)
    unjudged = 0
    for matrix in matrices:
        unjudged += bool(matrix.failure)
        for name, selection in matrix.selections.items():
            served[name] += selection.chosen is not None
    free = f", {render.size(usage.disk.free_bytes)} of {render.size(usage.disk.total_bytes)} free on its disk"
    count = counted(len(usage.images), "image")
    place = render.printable(found.root)
    print(f"{place}: {count}, {render.size(usage.content_bytes)}{free if usage.disk.total_bytes else ''}\n")
    total = len(found.targets)
    rows = [
        (
            f"{each.handler} (default)" if each.handler == found.default_handler else each.handler,
            platforms.format_all(found.handlers[each.handler].platform) if each.handler in found.handlers else "-",
            f"{served[each.handler]} of {total}" if each.handler in served else "not configured",
            str(each.images),
            *(render.size(number) for number in (each.size, each.unique_bytes, each.shared_bytes)),
        )
        for each in found.uses
    ]
    render.table(("HANDLER", "PLATFORM", "MATCHES", "IMAGES", "SIZE", "UNIQUE", "SHARED"), rows)
    if unjudged:
        print(f"\n{counted(unjudged, 'index', 'indexes')} of {total} could not be judged; --html or JSON say why")
    garbage = found.garbage
    print()
    freed = [("imagestore gc", "-", render.size(garbage.bytes_freed))]
    for options, plan in found.evictions:
        bytes_freed = render.size(plan.bytes_freed + garbage.bytes_freed)
        freed.append((f"imagestore gc {options}", str(len(plan.evicted)), bytes_freed))
    render.table(("WOULD FREE", "IMAGES", "BYTES"), freed)
    print()
    for each in found.findings:
        print(f"{each.severity.value}: {render.printable(str(each))}")
        if each.hint:
            print(f"  hint: {render.printable(each.hint)}")
    if not found.findings:
        print("nothing is wrong with the configuration")


def _as_json(found: StoreReport, matrices: Iterable[Matrix], app: App) -> dict[str, Any]:
    from imagestore.cli import df

    numbers: dict[str, int] = {}
    return {
        "madeAt": describe.time(found.made_at),
        "node": found.node,
        "host": platforms.format_all(found.host),
        "root": found.root,
        "files": list(found.files),
        "defaultRuntimeHandler": found.default_handler,
        "handlers": [describe.handler(each) for each in found.handlers.values()],
        "findings": [describe.finding(each) for each in found.findings],
        "images": [df.image_as_json(each, app.pins) for each in found.usage.images],
        "byHandler": [
            {
                "runtimeHandler": each.handler,
                "images": each.images,
                "bytes": each.size,
                "uniqueBytes": each.unique_bytes,
                "sharedBytes": each.shared_bytes,
            }
            for each in found.uses
        ],
        "usage": df.sizes_as_json(found.usage),
        "garbage": {
            "blobs": [str(digest) for digest in found.garbage.digests],
            "ingests": list(found.garbage.ingests),
            "bytesFreed": found.garbage.bytes_freed,
            "keptBlobs": found.garbage.kept_blobs,
            "failures": [{"subject": name, "reason": reason} for name, reason in found.garbage.failures.items()],
        },
        "evictions": [
            {
                "options": options,
                "evicted": [
                    {"reference": each.record.reference, "runtimeHandler": each.record.handler, "reason": each.reason}
                    for each in plan.evicted
                ],
                "bytesFreed": plan.bytes_freed,
                "blobsFreed": plan.blobs_freed,
            }
            for options, plan in found.evictions
        ],
        "matrices": [_matrix(each, found, numbers) for each in matrices],
        "reasons": list(numbers),
    }


def _matrix(matrix: Matrix, found: StoreReport, numbers: dict[str, int]) -> dict[str, Any]:
    return {
        "references": list(matrix.names),
        "target": None if matrix.target is None else matrix.target.members(),
        "failure": matrix.failure,
        "handlers": [
            {
                "runtimeHandler": name,
                "wantedPlatform": selection.wanted,
                "chosen": None if selection.chosen is None else list(selection.chosen.position),
                "remarks": list(found.handlers[name].remarks(selection)),
                "hint": found.handlers[name].advise(selection),
            }
            for name, selection in matrix.selections.items()
        ],
        "entries": [_entry(row, matrix.handlers, numbers) for row in matrix.rows],
    }


def _entry(row: Row, handlers: tuple[str, ...], numbers: dict[str, int]) -> dict[str, Any]:
    return {
        "position": list(row.position),
        "digest": str(row.descriptor.digest),
        "platform": None if row.platform is None else platforms.format_all(row.platform),
        "verdicts": [
            {
                "runtimeHandler": handler,
                "accepted": verdict.accepted,
                "rank": verdict.rank,
                "rule": str(verdict.rule),
                "reason": numbers.setdefault(verdict.reason, len(numbers)),
            }
            for handler, verdict in zip(handlers, row.verdicts, strict=True)
            if verdict is not None
        ],
    }
