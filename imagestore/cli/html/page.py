"""The frame of a page: head, style, skip link, contents.

The style's hash is the only thing that the page's Content-Security-Policy allows: should markup of an image ever get
through, a browser runs no script of it and sends no request.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import click

from imagestore.cli.html.markup import Markup, element, joined
from imagestore.util.files import write_whole
from imagestore.util.text import printable, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        id: what links name.
        title: its heading.
        body: what is in it.
        is_for_print: whether its heading is only printed, and the contents don't name it.
    """

    id: str
    title: str
    body: Markup
    is_for_print: bool = False


def page(title: str, intro: str, sections: Sequence[Section]) -> str:
    """A whole document.

    Args:
        title: of the window, and its first heading.
        intro: below the heading.
        sections: in their order.
    """
    links = [element("li", element("a", each.title, href=f"#{each.id}")) for each in sections if not each.is_for_print]
    parts = [element("section", _heading(each), each.body, id=each.id) for each in sections]
    body = element(
        "body",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("header", element("h1", title), element("p", intro, class_="quiet")),
        element("nav", element("ul", *links), aria_label="Contents"),
        element("main", *parts, id="main", tabindex=-1),
    )
    return joined([Markup("<!DOCTYPE html>\n"), element("html", _head(title), body, lang="en"), Markup("\n")])


def _heading(section: Section) -> Markup:
    return element("h2", section.title, class_="printed" if section.is_for_print else False)


def write_page(path: Path, text: str, output: str) -> None:
    """Write a document where --html says, and tell.

    Args:
        path: of the file; ``-`` for standard output.
        text: the document.
        output: of the command, which says what else is written to standard output.

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
    sys.stdout.flush()
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


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
