"""Making markup: whatever isn't markup already is escaped, so that a text from an image stays a text.

>>> element("p", "1 < 2 ", element("b", "is true"), class_="note")
'<p class=note>1 &lt; 2 <b>is true</b></p>'
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: HTML lets their ends be left out, and a page has tens of thousands of them.
_OPEN_ENDED: Final = frozenset({"li", "td", "th", "tr", "meta", "link"})
_PLAIN: Final = re.compile(r"[A-Za-z0-9_#-]+")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    r"""A text as HTML, with control characters made visible.

    >>> escaped("<b>\x1b[31m")
    '&lt;b&gt;\\x1b[31m'
    """
    return text if isinstance(text, Markup) else Markup(html.escape(printable(text)))


def joined(parts: Iterable[str]) -> Markup:
    """Several parts, those that aren't markup escaped."""
    return Markup("".join(map(escaped, parts)))


def element(name: str, *parts: str, **attributes: str | int | bool) -> Markup:
    """An element.

    Args:
        name: of the element.
        parts: what is in it; texts are escaped.
        attributes: True for one without value, False to leave it out; a trailing ``_`` is dropped, and others are
            written as ``-``.
    """
    given = "".join(
        f" {key}" if value is True else f" {key}={_quoted(str(value))}"
        for key, value in ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
        if value is not False
    )
    end = "" if name in _OPEN_ENDED else f"</{name}>"
    return Markup(f"<{name}{given}>{joined(parts)}{end}")


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()
) -> Markup:
    """A table whose first column names the rows.

    Args:
        caption: what it shows.
        headings: of the columns.
        rows: as many cells each as there are headings.
        numbers: columns of numbers, from 0.
    """
    aligned = set(numbers)
    heads = [
        element("th", each, scope="col", class_="n" if number in aligned else False)
        for number, each in enumerate(headings)
    ]
    lines = [
        element("tr", element("th", first, scope="row"), *(_cell(each, n in aligned) for n, each in enumerate(rest, 1)))
        for first, *rest in rows
    ]
    return framed(caption, element("thead", element("tr", *heads)), element("tbody", *lines))


def framed(caption: str, *parts: str, **attributes: str | int | bool) -> Markup:
    """A table in a box that scrolls by itself where the window is narrow, with the keyboard too."""
    whole = element("table", element("caption", caption), *parts, **attributes)
    return element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(text: str, is_number: bool) -> Markup:
    return element("td", text, class_="n" if is_number else False)


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else f'"{escaped(value)}"'
