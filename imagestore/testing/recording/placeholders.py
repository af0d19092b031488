"""Which values are secret, and what is written in their place.

Everything is decided by name: a header, query parameter or JSON member is *plain* (kept), *secret* (replaced) or
unknown. Unknown headers and parameters are never written as they are; an unknown member in a token service's answer
stops the recording, because guessing there is how tokens leak. A value gets one placeholder wherever it occurs, so a
token in an answer and in the next request's header stay the same word, and the tape replays.

Recorded exchanges stand in the canonical order of their requests, and placeholders are numbered in that order: both
depend on what was asked, not on when. Answers to one request stand in the order of the requests. If parallel clients
got several tokens for the same request, the tokens stand in the order of the requests that used them.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.urls import is_placeholder
from imagestore.testing.tapes.tape_write import exchange_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.testing.tapes.tape import TapeExchange


# Marks a placeholder that has no number yet; numbers are given in the tape's order when it is written.
_MARK: Final = re.compile(r"tape-([a-z]+)-@([0-9]+)@")
_PLACEHOLDER: Final = re.compile(r"tape-([a-z]+)-([0-9]+)")
# Values shorter than this are too common to look for in other places. A user's name or an unknown parameter may well be
# an ordinary word that occurs elsewhere for other reasons.
_LEAST: Final = 6
_LEAST_SEARCHED: Final = {"user": 1 << 30, "client": 1 << 30, "private": 1 << 30, "signed": 16, "password": 4}
_UNNUMBERED: Final = re.compile(r"tape-[a-z]+-@[0-9]+@")
_NEVER: Final = 1 << 62


@dataclass(slots=True)
class Vault:
    """Remembers every secret value that was seen, and its placeholder.

    Attributes:
        known: values given beforehand (passwords of the user, for example); they are searched for however short.
    """

    known: tuple[str, ...] = ()
    _marks: dict[tuple[str, str], str] = field(default_factory=dict)
    _learned: set[str] = field(default_factory=set)
    _sources: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def mark(self, kind: str, value: str, source: str = "") -> str:
        """The placeholder for a value, one for each kind and value; ``source`` says in messages where it was seen."""
        if not value:
            return ""
        with self._lock:
            self._sources.setdefault(value, source)
            return self._marks.setdefault((kind, value), f"tape-{kind}-@{len(self._marks)}@")

    def learn(self, value: str, source: str = "") -> None:
        """Remember a secret that has no place in a tape, so that it is found when it comes back; see mark()."""
        if len(value) >= _LEAST:
            with self._lock:
                self._sources.setdefault(value, source)
                self._learned.add(value)

    def values(self) -> dict[str, str]:
        """Every secret to search for, as it is (the search knows the spellings), and where it was seen."""
        with self._lock:
            seen = {value for kind, value in self._marks if len(value) >= _LEAST_SEARCHED.get(kind, _LEAST)}
            basics = [value for kind, value in self._marks if kind == "basic"]
            found = {value: self._sources[value] for value in seen | self._learned}
            parts = {part: self._sources[value] for value in basics for part in parts_of_basic(value)}
        found |= {part: source for part, source in parts.items() if len(part) >= _LEAST_SEARCHED["password"]}
        found |= {value: "named beforehand" for value in self.known if value}
        # A tape recorded from a replay holds placeholders from the start.
        return {value: source for value, source in found.items() if not is_placeholder(value)}

    def users(self) -> frozenset[str]:
        """User names that were seen; a password may come back together with one."""
        with self._lock:
            names = {value for kind, value in self._marks if kind == "user"}
            basics = [value for kind, value in self._marks if kind == "basic"]
        return frozenset(names | {user for value in basics if (user := user_of_basic(value))})


def _basic_texts(value: str) -> list[str]:
    """A Basic value decoded as clients encode it: UTF-8 (RFC 7617), and Latin-1 before that."""
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return []
    out = [raw.decode("latin-1")]
    try:
        out.append(raw.decode())
    except UnicodeDecodeError:
        return out
    return out


def parts_of_basic(value: str) -> set[str]:
    """The secrets inside the value of a Basic credential: password, and user with password; empty when it is none."""
    out: set[str] = set()
    for text in _basic_texts(value):
        _, colon, password = text.partition(":")
        out |= {password, text} if colon and password else set()
    return out


def user_of_basic(value: str) -> str:
    """The user's name in a Basic credential, or empty."""
    texts = [text for text in _basic_texts(value) if ":" in text]
    return texts[-1].partition(":")[0] if texts else ""


class Numbering:
    """Gives placeholders their numbers, in the order in which they come up; one per kind from 1.

    Args:
        used: texts whose placeholders keep their numbers; new ones come after them.
    """

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}
        for text in used:
            for kind, number in _PLACEHOLDER.findall(text):
                # A longer number is no placeholder of a recording; counting must not continue from it.
                if len(number) <= 9:
                    self._counts[kind] = max(self._counts.get(kind, 0), int(number))

    def __call__(self, text: str) -> str:
        """The text with every mark numbered."""
        return _MARK.sub(self._number, text)

    def _number(self, found: re.Match[str]) -> str:
        kind, mark = found.groups()
        if (kind, mark) not in self._numbers:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[kind, mark] = self._counts[kind]
        return f"tape-{kind}-{self._numbers[kind, mark]}"


def unmarked(text: str) -> str:
    """A text with placeholders made equal, for sorting independent of who came first."""
    return _MARK.sub(r"tape-\1-", text)


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
        for mark in _UNNUMBERED.findall(f"{one.authorization} {one.query} {one.form}"):
            used.setdefault(mark, position)
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
    return min((used.get(mark, _NEVER) for mark in _UNNUMBERED.findall(one.text or "")), default=_NEVER)
