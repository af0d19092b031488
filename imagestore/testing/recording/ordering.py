"""The order of recorded exchanges, and the numbers of their placeholders: a function of what was asked, not of when.

Exchanges stand in the canonical order of their requests; answers to one request stand in the order of the requests.
Where parallel clients got several tokens for one and the same request, the tokens stand in the order of the requests
that used them, so that the chance of who came first leaves no trace.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from imagestore.testing.recording.placeholders import Numbering, unmarked
from imagestore.testing.tapes.tape_write import exchange_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.testing.tapes.tape import TapeExchange

_MARK: Final = re.compile(r"tape-[a-z]+-@[0-9]+@")
_NEVER: Final = 1 << 62


def in_order(exchanges: Sequence[TapeExchange], base: Sequence[TapeExchange] = ()) -> list[TapeExchange]:
    """Sorted, with numbered placeholders, and runs of the same answer counted.

    Args:
        exchanges: in the order in which the requests came.
        base: of a tape that is continued; its numbers are not used again.
    """
    ordered = _by_use(sorted(exchanges, key=_key))
    number = Numbering(text for one in base for text in _texts(one))
    out: list[TapeExchange] = []
    for one in ordered:
        numbered = replace(
            one,
            authorization=number(one.authorization),
            query=number(one.query),
            form=number(one.form),
            headers=tuple(
                (name, number(value)) for name, value in sorted(one.headers, key=lambda item: item[0].lower())
            ),
            text=None if one.text is None else number(one.text),
        )
        if out and replace(out[-1], times=1) == numbered:
            out[-1] = replace(out[-1], times=out[-1].times + 1)
        else:
            out.append(numbered)
    return out


def _texts(one: TapeExchange) -> tuple[str, ...]:
    return (one.query, one.authorization, one.form, one.text or "", *(value for _, value in one.headers))


def _key(one: TapeExchange) -> tuple[object, ...]:
    bare = replace(one, query=unmarked(one.query), authorization=unmarked(one.authorization), form=unmarked(one.form))
    return exchange_key(bare)


def _by_use(ordered: Sequence[TapeExchange]) -> list[TapeExchange]:
    """Swap answers to one request that gave out something, by where that was used first."""
    used: dict[str, int] = {}
    for position, one in enumerate(ordered):
        for mark in _MARK.findall(f"{one.authorization} {one.query} {one.form}"):
            used.setdefault(mark, position)
    out: list[TapeExchange] = []
    for _, group in groupby(ordered, key=_key):
        members = list(group)
        slots = [index for index, one in enumerate(members) if _MARK.search(one.text or "")]
        fitting = sorted((members[index] for index in slots), key=lambda one: _first_use(one, used))
        for index, one in zip(slots, fitting, strict=True):
            members[index] = one
        out += members
    return out


def _first_use(one: TapeExchange, used: Mapping[str, int]) -> int:
    return min((used.get(mark, _NEVER) for mark in _MARK.findall(one.text or "")), default=_NEVER)
