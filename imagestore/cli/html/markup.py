"""HTML: elements, and the frame of a page. Texts that aren't Markup are escaped, so a text from an image stays a text.

A page's Content-Security-Policy allows its own style by hash and nothing else: if markup of an image ever got through,
a browser would run no script of it and send no request.

>>> element("p", "1 < 2 ", element("b", "is true"), class_="note")
'<p class=note>1 &lt; 2 <b>is true</b></p>'
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final

import click

from imagestore.cli import render
from imagestore.util.files import write_whole
from imagestore.util.text import printable, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: HTML allows to leave out their end tags, and a page has tens of thousands of them.
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
        parts: its content; texts are escaped.
        attributes: True means no value, False leaves it out. A trailing ``_`` is dropped, others become ``-``.
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
    """A table whose first column has the headings of the rows; ``numbers`` are the columns of numbers, from 0."""
    aligned = set(numbers)
    heads = [
        element("th", each, scope="col", class_="n" if number in aligned else False)
        for number, each in enumerate(headings)
    ]
    lines = []
    for first, *rest in rows:
        cells = (element("td", each, class_="n" if n in aligned else False) for n, each in enumerate(rest, 1))
        lines.append(element("tr", element("th", first, scope="row"), *cells))
    return framed(caption, element("thead", element("tr", *heads)), element("tbody", *lines))


def framed(caption: str, *parts: str, **attributes: str | int | bool) -> Markup:
    """A table in a box that scrolls in a narrow window, with the keyboard too."""
    whole = element("table", element("caption", caption), *parts, **attributes)
    return element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else f'"{escaped(value)}"'


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        id: the target of links.
        title: its heading.
        body: its content.
        is_for_print: its heading is only printed, and the table of contents leaves it out.
    """

    id: str
    title: str
    body: Markup
    is_for_print: bool = False


def page(title: str, intro: str, sections: Sequence[Section]) -> str:
    """A whole document; the intro stands below the title."""
    links = [element("li", element("a", each.title, href=f"#{each.id}")) for each in sections if not each.is_for_print]
    parts = [
        element(
            "section",
            element("h2", each.title, class_="printed" if each.is_for_print else False),
            each.body,
            id=each.id,
        )
        for each in sections
    ]
    body = element(
        "body",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("header", element("h1", title), element("p", intro, class_="quiet")),
        element("nav", element("ul", *links), aria_label="Contents"),
        element("main", *parts, id="main", tabindex=-1),
    )
    return joined([Markup("<!DOCTYPE html>\n"), element("html", _head(title), body, lang="en"), Markup("\n")])


def write_page(path: Path, text: str, output: str) -> None:
    """Write a document to the file of --html, or to standard output for ``-``.

    Raises:
        UsageError: standard output would get two documents.
        InvalidInputError, PreconditionError, AlreadyExistsError: the file can't be written.
    """
    raw = text.encode("utf-8")
    if str(path) != "-":
        write_whole(path, raw)
        if output != "json":
            print(f"{printable(str(path))}: {size(len(raw))}")
        return
    if output == "json":
        raise click.UsageError("--html - and --output json would both write to standard output")
    render.write_raw(raw)


def _head(title: str) -> Markup:
    style = resources.files("imagestore.cli.html").joinpath("page.css").read_text("utf-8")
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv=Content-Security-Policy content="{policy}">'),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(style)),
    )
