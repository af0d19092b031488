"""The order of recorded exchanges, and the numbers of their placeholders.

Exchanges stand in the canonical order of their requests, and placeholders are numbered in that order: both depend on
what was asked, not on when. Answers to one request stand in the order of the requests. If parallel clients got several
tokens for the same request, the tokens stand in the order of the requests that used them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from imagestore.testing.tapes.tape import TapeExchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# A placeholder that has no number yet; numbers are given in the tape's order when it is written.
_UNNUMBERED: Final = re.compile(r"tape-([a-z]+)-(@[0-9]+@)")
_NUMBERED: Final = re.compile(r"tape-([a-z]+)-([0-9]+)")
_NEVER: Final = 1 << 62


class Numbering:
    """Gives placeholders their numbers, in the order in which they come up; one per kind from 1.

    Args:
        used: texts whose placeholders keep their numbers; new ones come after them.
    """

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}
        for text in used:
            for kind, number in _NUMBERED.findall(text):
                # A longer number is no placeholder of a recording; counting must not continue from it.
                if len(number) <= 9:
                    self._counts[kind] = max(self._counts.get(kind, 0), int(number))

    def __call__(self, text: str) -> str:
        """The text with every placeholder numbered."""
        return _UNNUMBERED.sub(self._number, text)

    def _number(self, found: re.Match[str]) -> str:
        kind, mark = found.groups()
        if (kind, mark) not in self._numbers:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[kind, mark] = self._counts[kind]
        return f"tape-{kind}-{self._numbers[kind, mark]}"


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
    """The exchange's place in a tape, whatever number its placeholders will get."""
    query, authorization, form = (
        _UNNUMBERED.sub(r"tape-\1-", text) for text in (one.query, one.authorization, one.form)
    )
    return replace(one, query=query, authorization=authorization, form=form).order


def _by_use(ordered: Sequence[TapeExchange]) -> list[TapeExchange]:
    """Swap answers to one request that gave out something, by where that was used first."""
    used: dict[str, int] = {}
    for position, one in enumerate(ordered):
        for found in _UNNUMBERED.finditer(f"{one.authorization} {one.query} {one.form}"):
            used.setdefault(found.group(), position)
    out: list[TapeExchange] = []
    for _, group in groupby(ordered, key=_key):
        members = list(group)
        slots = [index for index, one in enumerate(members) if _UNNUMBERED.search(one.text or "")]
        fitting = sorted((members[index] for index in slots), key=lambda one: _first_use(one, used))
        for index, one in zip(slots, fitting, strict=True):
            members[index] = one
        out += members
    return out


def _first_use(one: TapeExchange, used: Mapping[str, int]) -> int:
    return min((used.get(found.group(), _NEVER) for found in _UNNUMBERED.finditer(one.text or "")), default=_NEVER)
