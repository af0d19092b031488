"""The pages of ``report --html`` (a whole store) and ``match --html`` (one index).

The page of a store with a thousand images stays below 5 MB, however long their indexes are: unless images are named,
matrices stop at 3 MB; lists of images to remove stop after a hundred names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.cli import describe
from imagestore.cli.html.markup import Markup, Section, element, joined, page, table
from imagestore.cli.html.matrices import SHOWN, Matrices, handlers_table
from imagestore.store.maintenance.eviction import last_use
from imagestore.store.report import LEFT_OUT, Matrix
from imagestore.util.text import counted, cut, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.config import HandlerPlatform
    from imagestore.platforms import Platform
    from imagestore.store.maintenance.usage import ImageUsage
    from imagestore.store.report import StoreReport

#: Characters of matrices and reasons when no image is named.
MOST_MATRICES: Final = 3_000_000
#: The most that a cell with its reason takes.
_CELL: Final = 250
#: As many tables or matrices are open from the start, and as long ones.
_OPEN_MATRICES: Final = 3
_OPEN_ROWS: Final = 50
_NAMED: Final = 100
_UNKNOWN_HANDLER: Final = "This runtime handler is not in the configuration."


def store_page(report: StoreReport, matrices: Iterable[Matrix]) -> str:
    """The page of a store; its matrices are read one after the other."""
    shown = Matrices(report.handlers)
    for matrix in matrices:
        is_full = not report.is_chosen and shown.length + _most(matrix) > MOST_MATRICES
        fitting = Matrix(matrix.names, matrix.target, {}, LEFT_OUT) if is_full else matrix
        shown.add(fitting, is_open=len(report.targets) <= _OPEN_MATRICES)
    sections = [
        Section("handlers", "Runtime handlers", handlers_table(report.handlers.values(), report.default_handler)),
        Section("findings", "Configuration", _findings(report)),
        Section("disk", "Disk", _disk(report)),
        Section("free", "What could be freed", _free(report)),
        Section("images", "Images by runtime handler", _images(report)),
        shown.section,
        shown.reasons,
    ]
    intro = (
        f"{report.root} on {report.node} ({platforms.format_all(report.host)}), {describe.minute(report.made_at)}: "
        f"{counted(len(report.usage.images), 'image')}, {size(report.usage.content_bytes)}."
    )
    return page("Image store report", intro, sections)


def _most(matrix: Matrix) -> int:
    """How many characters a matrix may take, if every cell has a reason of its own."""
    rows = max((len(found.verdicts) for found in matrix.selections.values()), default=0)
    return rows * (len(matrix.handlers) + 1) * _CELL


def _findings(report: StoreReport) -> Markup:
    checked = ", ".join(report.files) or "the built-in default (no file was found)"
    said = element("p", "Checked: ", checked, ".", "" if report.findings else " Nothing is wrong.")
    if not report.findings:
        return said
    rows = [
        (
            element("span", each.severity.value, class_=each.severity.value),
            str(each.location),
            element("code", each.key),
            each.text,
            each.hint,
        )
        for each in report.findings
    ]
    return joined([said, table("Findings", ("Severity", "Where", "Key", "What", "Hint"), rows)])


def _disk(report: StoreReport) -> Markup:
    usage = report.usage
    by_handler = [
        (each.handler, str(each.images), size(each.size), size(each.unique_bytes), size(each.shared_bytes))
        for each in report.uses
    ]
    headings = ("Handler", "Images", "Size", "Unique", "Shared")
    explained = (
        "Compressed bytes, as they travel. Unique: no other handler's image needs them (in lists of images: no other "
        "image). Shared: others need them too."
    )
    return joined(
        [
            _full(usage.disk.used_bytes, usage.disk.total_bytes),
            table("What the store has", ("What", "Bytes"), describe.sizes(usage), numbers=[1]),
            table("What the images of each runtime handler take", headings, by_handler, numbers=range(1, 5)),
            element("p", explained, class_="quiet"),
        ]
    )


def _full(used: int, total: int) -> Markup:
    if not total:
        return element("p", "The file system doesn't count its space.")
    said = f"{size(used)} of {size(total)} used on its disk, {size(total - used)} free"
    bar = element("meter", said, min=0, max=total, value=used, high=int(total * 0.85), aria_label=said)
    return element("p", bar, " ", said, ".")


def _free(report: StoreReport) -> Markup:
    garbage = report.garbage
    rows = [
        (element("code", "imagestore gc"), "-", str(len(garbage.digests)), size(garbage.bytes_freed)),
        *(
            (
                element("code", f"imagestore gc {options}"),
                str(len(each.evicted)),
                str(each.blobs_freed + len(garbage.digests)),
                size(each.bytes_freed + garbage.bytes_freed),
            )
            for options, each in report.evictions
        ),
    ]
    lists = [
        _listed(
            f"imagestore gc {options}",
            [(each.record.reference, f"({each.record.handler}): {each.reason}") for each in plan.evicted],
        )
        for options, plan in report.evictions
    ]
    dropped = _listed("imagestore gc", [(str(each), "") for each in garbage.digests])
    kept = _listed("What can't be deleted", list(garbage.failures.items()))
    headings = ("Command", "Images", "Blobs", "Bytes")
    about = "Nothing was removed. Pinned and leased images are spared."
    return joined(
        [
            element("p", about, class_="quiet"),
            table("What each command would free", headings, rows, numbers=range(1, 4)),
            dropped,
            kept,
            *lists,
        ]
    )


def _listed(title: str, items: Sequence[tuple[str, str]]) -> Markup:
    """A list that unfolds below its title; nothing without items."""
    if not items:
        return Markup()
    lines = [element("li", element("code", name), " ", said) for name, said in items[:_NAMED]]
    if len(items) > _NAMED:
        lines.append(element("li", f"and {len(items) - _NAMED} more"))
    return element("details", element("summary", f"{title}: {len(items)}"), element("ul", *lines))


def _images(report: StoreReport) -> Markup:
    links = {name: f"#m{number}" for number, each in enumerate(report.targets) for name in each.names}
    by_handler: dict[str, list[ImageUsage]] = {}
    for each in report.usage.images:
        by_handler.setdefault(each.record.handler, []).append(each)
    parts = [
        element(
            "details",
            element("summary", f"{handler}: {counted(len(images), 'image')}"),
            "" if handler in report.handlers else element("p", _UNKNOWN_HANDLER, class_="warning"),
            _table(report, handler, images, links),
            open=len(images) <= _OPEN_ROWS,
        )
        for handler, images in by_handler.items()
    ]
    return joined(parts) if parts else element("p", "The store has no image.")


def _table(report: StoreReport, handler: str, images: Iterable[ImageUsage], links: dict[str, str]) -> Markup:
    rows = []
    for each in images:
        record = each.record
        link = links.get(record.reference)
        is_pinned = record.is_pinned or record.reference in report.pins
        rows.append(
            (
                element("a", record.reference, href=link) if link else record.reference,
                cut(platforms.format_all(record.platform), SHOWN),
                size(each.size),
                size(each.unique_bytes),
                size(each.shared_bytes),
                describe.minute(last_use(record)),
                "pinned" if is_pinned else "",
                cut("; ".join(record.warnings), SHOWN),
            )
        )
    headings = ("Image", "Platform", "Size", "Unique", "Shared", "Last used", "Pinned", "Warnings")
    return table(f"Images of {handler}", headings, rows, numbers=range(2, 5))


def match_page(matrix: Matrix, handlers: Mapping[str, HandlerPlatform], default_handler: str, host: Platform) -> str:
    """The page of one index, for a node of a platform."""
    matrices = Matrices(handlers)
    matrices.add(matrix, is_open=True)
    sections = [
        matrices.section,
        Section("handlers", "Runtime handlers", handlers_table(handlers.values(), default_handler)),
        matrices.reasons,
    ]
    intro = f"Which manifest each runtime handler of a node ({platforms.format_all(host)}) would get, and why."
    return page(f"Match: {matrix.names[0]}", intro, sections)
