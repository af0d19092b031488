"""A page of HTML read with the standard library's parser, as a tree of elements."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VOID = {"meta", "link", "img", "br", "input"}
#: What ends by itself when one of these begins.
_ENDED_BY = {
    "td": {"td", "th", "tr", "tbody"},
    "th": {"td", "th", "tr", "tbody"},
    "tr": {"tr", "tbody"},
    "li": {"li"},
}


@dataclass
class Element:
    """One element; ``parts`` are texts and elements, ``children`` the elements among them."""

    tag: str
    attributes: dict[str, str | None]
    parts: list[Element | str] = field(default_factory=list)
    children: list[Element] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it."""
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    def all(self, *tags: str) -> Iterator[Element]:
        """The elements of these names in it, all of them without a name."""
        waiting = self.children[::-1]
        while waiting:
            each = waiting.pop()
            if not tags or each.tag in tags:
                yield each
            waiting += each.children[::-1]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.stack = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        while tag in _ENDED_BY.get(self.stack[-1].tag, set()):
            self.stack.pop()
        assert len({name for name, _ in attrs}) == len(attrs), self.get_starttag_text()
        element = Element(tag, dict(attrs))
        self.stack[-1].parts.append(element)
        self.stack[-1].children.append(element)
        if tag not in _VOID:
            self.stack.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self.stack[-1].tag != tag:
            assert self.stack[-1].tag in _ENDED_BY, f"{self.stack[-1].tag} ends with {tag}"
            self.stack.pop()
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].parts.append(data)


def read(page: str) -> Element:
    """The document of a page.

    Raises:
        AssertionError: an element isn't closed, or closed in another one.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.stack) == 1, reader.stack[-1].tag
    return reader.stack[0]
