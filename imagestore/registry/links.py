"""``Link`` header fields (RFC 8288 section 3), as far as paging needs them.

A field is a comma list of links, a link is ``<target>`` with parameters, and both targets and quoted values may contain
commas and semicolons, so this is a scanner and no splitting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_LENGTH: Final = 16 * 1024
_MAX_LINKS: Final = 32
_BETWEEN: Final = re.compile(r"[ \t,]*")
_TARGET: Final = re.compile(r"<([^<>\s]*)>")
_PARAMETER: Final = re.compile(
    r"""[ \t]*;[ \t]*(?:(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)
        (?:[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[!#$%&'*+.^_`|~0-9A-Za-z/:-]+)))?)?""",
    re.VERBOSE,
)
_END: Final = re.compile(r"[ \t]*(?:,|\Z)")


@dataclass(frozen=True, slots=True)
class Link:
    """One link: its target as written, and its relation names in lower case."""

    target: str
    relations: frozenset[str]


def parse_links(values: Iterable[str]) -> tuple[Link, ...]:
    """Read every Link field of an answer.

    Raises:
        ProtocolError: no valid field, or an unreasonable one.

    >>> parse_links(['</v2/a/tags/list?last=b&n=2>; rel="next"'])[0].target
    '/v2/a/tags/list?last=b&n=2'
    """
    found: list[Link] = []
    for value in values:
        if len(value) > _MAX_LENGTH:
            raise ProtocolError(f"Link header: longer than {_MAX_LENGTH} characters")
        position = _skip(value, 0)
        while position < len(value):
            link, position = _link(value, position)
            found.append(link)
            if len(found) > _MAX_LINKS:
                raise ProtocolError(f"Link header: more than {_MAX_LINKS} links")
            position = _skip(value, position)
    return tuple(found)


def next_target(values: Iterable[str]) -> str:
    """Target of the link to the next page; empty when there is none.

    Raises:
        ProtocolError: no valid field.
    """
    return next((link.target for link in parse_links(values) if "next" in link.relations), "")


def _skip(value: str, position: int) -> int:
    found = _BETWEEN.match(value, position)
    return found.end() if found is not None else position


def _link(value: str, position: int) -> tuple[Link, int]:
    target = _TARGET.match(value, position)
    if target is None:
        raise ProtocolError(f"Link header: expected <target> at position {position}")
    position = target.end()
    relations: frozenset[str] | None = None
    while (parameter := _PARAMETER.match(value, position)) is not None:
        position = parameter.end()
        # Only the first rel counts (RFC 8288 section 3.3).
        if (parameter["name"] or "").lower() == "rel" and relations is None:
            words = parameter["bare"] or re.sub(r"\\(.)", r"\1", parameter["quoted"] or "")
            relations = frozenset(words.lower().split())
    end = _END.match(value, position)
    if end is None:
        raise ProtocolError(f"Link header: expected a parameter or the next link at position {position}")
    return Link(target[1], relations or frozenset()), end.end()
