"""``imagestore df`` and ``report``: what the store has and takes; as text, as JSON, as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import imagestore.platforms as platforms
from imagestore.cli import completion, describe, render
from imagestore.cli.app import App, all_plugins, pass_app
from imagestore.cli.options import html_option, output_option
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import StoreMissingError
from imagestore.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Set
    from pathlib import Path

    from imagestore.store.maintenance.usage import ImageUsage, StoreUsage
    from imagestore.store.report import Matrix, Row, StoreReport


@click.command()
@output_option
@pass_app
def df(app: App, output: str) -> None:
    """Show how much space each image takes: in all, alone (freed when it goes), and shared with others."""
    usage = _usage(app)
    if output == "json":
        render.dump_json({"images": [_image_json(each, app.pins) for each in usage.images], **_sizes_json(usage)})
        return
    headings = ("IMAGE", "TAG", "RUNTIME HANDLER", "SIZE", "UNIQUE", "SHARED", "LAST USED", "PINNED")
    render.table(headings, (_row(each, app.pins) for each in usage.images))
    print()
    disk = usage.disk
    free = f"{render.size(disk.free_bytes)} of {render.size(disk.total_bytes)}" if disk.total_bytes else "not counted"
    render.table(("WHAT", "BYTES"), [*describe.sizes(usage), ("disk free", free)])


def _usage(app: App) -> StoreUsage:
    app.missing = "refuse"
    try:
        return app.store.usage()
    except StoreMissingError:
        if app.given_root is not None:
            raise
        from imagestore.store.maintenance.usage import nothing

        return nothing(app.root)


def _row(usage: ImageUsage, pins: Set[str]) -> tuple[str, ...]:
    from imagestore.store.maintenance.eviction import last_use

    record = usage.record
    sizes = (render.size(each) for each in (usage.size, usage.unique_bytes, usage.shared_bytes))
    used = describe.minute(last_use(record))
    pinned = "yes" if record.is_pinned else "config" if record.reference in pins else ""
    return (*describe.familiar(record.reference), record.handler, *sizes, used, pinned)


def _image_json(usage: ImageUsage, pins: Set[str]) -> dict[str, Any]:
    from imagestore.store.maintenance.eviction import last_use

    record = usage.record
    return {
        "reference": record.reference,
        "runtimeHandler": record.handler,
        "id": str(record.image_id),
        "bytes": usage.size,
        "uniqueBytes": usage.unique_bytes,
        "sharedBytes": usage.shared_bytes,
        "lastUsedAt": describe.time(last_use(record)),
        "pinned": record.is_pinned or record.reference in pins,
    }


def _sizes_json(usage: StoreUsage) -> dict[str, int]:
    return {
        "blobs": usage.blobs,
        "contentBytes": usage.content_bytes,
        "linkedBytes": usage.linked_bytes,
        "keptBytes": usage.kept_bytes,
        "otherBytes": usage.other_bytes,
        "ingests": usage.ingests,
        "ingestBytes": usage.ingest_bytes,
        "metadataBytes": usage.metadata_bytes,
        "diskBytes": usage.disk.total_bytes,
        "diskFreeBytes": usage.disk.free_bytes,
    }


@click.command()
@click.argument("names", nargs=-1, metavar="[REFERENCE]...", shell_complete=completion.images)
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

    app.missing, app.plugins = "refuse", all_plugins()
    found = gather(app.store, names=names)
    if html is not None:
        from imagestore.cli.html.markup import write_page
        from imagestore.cli.html.pages import store_page

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
    render.print_findings(found.findings)
    if not found.findings:
        print("nothing is wrong with the configuration")


def _as_json(found: StoreReport, matrices: Iterable[Matrix], app: App) -> dict[str, Any]:
    from imagestore.cli.gc import evicted_json, garbage_json

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
        "images": [_image_json(each, app.pins) for each in found.usage.images],
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
        "usage": _sizes_json(found.usage),
        "garbage": garbage_json(found.garbage),
        "evictions": [
            {
                "options": options,
                **evicted_json(plan),
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
