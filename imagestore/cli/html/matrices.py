"""Runtime handlers and matrices as tables of HTML; the cells of a matrix open their reasons.

A page has each reason once, as a *popover* that any number of cells opens without a script: a thousand images of a
store have the same few reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.cli import describe
from imagestore.cli.html.markup import Markup, Section, element, escaped, framed, joined
from imagestore.oci.selection import place
from imagestore.util.text import counted, cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.config import HandlerPlatform
    from imagestore.oci.select import Verdict
    from imagestore.store.report import Matrix, Row

#: Longer texts of images are cut; JSON has them whole.
SHOWN: Final = 200
_PRESS: Final = "Press a verdict to read its reason; Escape closes it."


class Matrices:
    """The matrices of one page, with their reasons."""

    def __init__(self, handlers: Mapping[str, HandlerPlatform]) -> None:
        self._handlers = handlers
        self._reasons: dict[tuple[str, str], str] = {}
        self._parts: list[Markup] = []
        #: Characters of all matrices and reasons.
        self.length = 0

    def add(self, matrix: Matrix, *, is_open: bool) -> None:
        """Add a matrix, unfolded or not."""
        number, rows = len(self._parts), matrix.rows
        names = [part for name in matrix.names for part in (", ", element("code", name))][1:]
        heading = joined([*names, " ", element("small", _gist(matrix, len(rows)))])
        if matrix.failure:
            body = element("p", matrix.failure)
        else:
            body = joined([self._table(matrix, rows, number), self._notes(matrix)])
        part = element("details", element("summary", heading), body, open=is_open)
        self._parts.append(part)
        self.length += len(part)

    @property
    def section(self) -> Section:
        """All that was added."""
        how = element("p", _PRESS, class_="quiet")
        return Section("matrices", "Index entries and runtime handlers", joined([how, *self._parts]))

    @property
    def reasons(self) -> Section:
        """What the cells open; a list where the page is printed."""
        found = [
            element("div", element("code", rule), ": ", reason, popover=True, id=number)
            for (rule, reason), number in self._reasons.items()
        ]
        return Section("reasons", "Reasons", element("div", *found), is_for_print=True)

    def _table(self, matrix: Matrix, rows: Iterable[Row], number: int) -> Markup:
        heads = [element("th", each, scope="col") for each in ("Entry", "Platform", "Digest")]
        heads += [
            element("th", name, " ", element("small", found.wanted), scope="col")
            for name, found in matrix.selections.items()
        ]
        lines = [element("tr", *self._cells(row)) for row in rows]
        caption = f"Entries of {matrix.names[0]}"
        if matrix.target is not None:
            caption += f", {matrix.target.digest}"
        return framed(caption, element("thead", element("tr", *heads)), element("tbody", *lines), id=f"m{number}")

    def _cells(self, row: Row) -> list[Markup]:
        return [
            element("th", place(row.position), scope="row"),
            element("td", cut(describe.platform_or_none(row.platform), SHOWN)),
            element("td", element("code", row.descriptor.digest.short)),
            *(self._cell(verdict) for verdict in row.verdicts),
        ]

    def _cell(self, verdict: Verdict | None) -> Markup:
        if verdict is None:
            return element("td", "-")
        style: str | bool = "y" if verdict.rank == 0 else False
        shown = element("button", describe.verdict(verdict), class_=style, popovertarget=self._number(verdict))
        return element("td", shown)

    def _number(self, verdict: Verdict) -> str:
        key = (str(verdict.rule), verdict.reason)
        if key not in self._reasons:
            self._reasons[key] = f"r{len(self._reasons) + 1}"
            self.length += sum(map(len, map(escaped, key))) + 50
        return self._reasons[key]

    def _notes(self, matrix: Matrix) -> Markup:
        """What else each handler could get, and what to do if it gets nothing."""
        notes = []
        for name, found in matrix.selections.items():
            wanted = self._handlers[name]
            notes += [(name, f"note: {remark}") for remark in wanted.remarks(found)]
            if found.chosen is None:
                hint = wanted.advise(found)
                notes.append((name, f"takes nothing; {hint}" if hint else "takes nothing"))
        items = [element("li", element("b", name), " ", said) for name, said in notes]
        return element("ul", *items) if items else Markup()


def _gist(matrix: Matrix, count: int) -> str:
    """A summary: how many entries, and which one each handler takes."""
    if matrix.failure:
        return "no matrix"
    taken = [
        f"{name}: {'nothing' if found.chosen is None else found.chosen.place}"
        for name, found in matrix.selections.items()
    ]
    return f"{counted(count, 'entry', 'entries')}; {', '.join(taken)}"


def handlers_table(handlers: Iterable[HandlerPlatform], default_handler: str) -> Markup:
    """Each handler with its platform, and where each member of that comes from."""
    headings = ("Handler", "Runtime", "Wanted platform", "Member", "Value", "From")
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in headings)))
    bodies = [_body(each, is_default=each.handler.name == default_handler) for each in handlers]
    return framed("Runtime handlers, and where the platform of each comes from", head, *bodies)


def _body(resolved: HandlerPlatform, *, is_default: bool) -> Markup:
    members = list(describe.members(resolved.platform))
    name = element("small", " (default)") if is_default else ""
    span = len(members)
    first = [
        element("th", resolved.handler.name, name, scope="rowgroup", rowspan=span),
        element("td", resolved.handler.runtime_type or "-", rowspan=span),
        element("td", platforms.format_all(resolved.platform), rowspan=span),
    ]
    rows = []
    for member, value in members:
        cells = [element("td", each) for each in (member, value, resolved.origin[member])]
        rows.append(element("tr", *first, *cells))
        first = []
    return element("tbody", *rows)
