"""Regular expressions from callers, in time linear in text and expression, as Go's (RE2) are.

Python's own matcher backtracks: an expression of twenty characters can hold a thread for years. This one follows all
alternatives at once (Thompson's construction): no expression costs more than its length times that of the text.

Known: literals, ``.``, classes with ranges, negation and ``[:alpha:]``, ``\\d \\w \\s`` and their negations (ASCII, as
in Go), ``\\b \\B \\A \\z ^ $``, groups of any name, ``|``, ``* + ? {n} {n,} {n,m}`` with or without the lazy ``?``, and
``(?i)`` at the beginning. Anything else is refused: Unicode classes, other flags.
"""

from __future__ import annotations

import enum
import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_EXPRESSION: Final = 1024
_LONGEST_TEXT: Final = 4096
#: Go's bound of a repetition, and our bound of what an expression may grow to.
_MOST_REPEATED: Final = 1000
_MOST_STEPS: Final = 1024
_DEEPEST: Final = 32

_DIGIT: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_SPACE: Final = frozenset("\t\n\f\r ")
_CLASS_ESCAPES: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "blank": frozenset("\t "),
    "digit": _DIGIT,
    "lower": frozenset(string.ascii_lowercase),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CHARACTER_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})")
_COUNTS: Final = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_GROUP: Final = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")
_QUANTIFIERS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Place(enum.Enum):
    """Assertions: nothing is read."""

    BEGIN = enum.auto()
    END = enum.auto()
    WORD_EDGE = enum.auto()
    NO_WORD_EDGE = enum.auto()


@dataclass(frozen=True, slots=True)
class _Set:
    """Which characters fit: single ones and ranges, or all others."""

    members: frozenset[str]
    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = False

    def has(self, character: str) -> bool:
        found = character in self.members or any(low <= character <= high for low, high in self.ranges)
        return found != self.is_negated


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    branches: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: _Node
    least: int
    most: int | None


_Node = _Set | _Place | _Sequence | _Choice | _Repeat


@dataclass(slots=True)
class _Step:
    """One state: what is read (nothing for a fork), and where to go on."""

    reads: _Set | _Place | None
    targets: list[int]


class Expression:
    """A compiled expression.

    Raises:
        InvalidInputError: it can't be read, isn't supported, or is too big.

    >>> Expression("a+b").is_found_in("xaab"), Expression("^(a|aa)*$").is_found_in("a" * 4000 + "b")
    (True, False)
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST_EXPRESSION:
            raise InvalidInputError(f"regular expression of {len(text)} characters: at most {_LONGEST_EXPRESSION}")
        self._ignores_case = text.startswith("(?i)")
        tree = _Parser(text, 4 if self._ignores_case else 0).parse()
        self._steps: list[_Step] = []
        self._emitted = 0
        self._start = self._emit(tree, self._add(None, []))

    def is_found_in(self, text: str) -> bool:
        """Whether it fits anywhere in the text, of which the first 4096 characters count."""
        text = text[:_LONGEST_TEXT]
        waiting: set[int] = set()
        for position in range(len(text) + 1):
            # Starting anew at every character is what makes it unanchored.
            active, is_done = self._closure([*waiting, self._start], text, position)
            if is_done:
                return True
            if position == len(text):
                break
            waiting = set()
            for number in active:
                step = self._steps[number]
                if isinstance(step.reads, _Set) and self._fits(step.reads, text[position]):
                    waiting.update(step.targets)
        return False

    def _fits(self, wanted: _Set, character: str) -> bool:
        if wanted.has(character):
            return True
        return self._ignores_case and wanted.has(character.swapcase())

    def _closure(self, numbers: Iterable[int], text: str, position: int) -> tuple[set[int], bool]:
        """Everywhere that can be reached without reading, and whether the end is among it."""
        seen: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self._steps[number]
            if number == 0:
                return seen, True
            if step.reads is None or (isinstance(step.reads, _Place) and _holds(step.reads, text, position)):
                waiting.extend(step.targets)
        return seen, False

    def _add(self, reads: _Set | _Place | None, targets: list[int]) -> int:
        if len(self._steps) >= _MOST_STEPS:
            raise _too_big()
        self._steps.append(_Step(reads, targets))
        return len(self._steps) - 1

    def _emit(self, node: _Node, after: int) -> int:
        """The step a node begins with, when ``after`` follows it; step 0 is the end."""
        self._emitted += 1
        if self._emitted > 4 * _MOST_STEPS:
            raise _too_big()
        if isinstance(node, _Set | _Place):
            return self._add(node, [after])
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                after = self._emit(part, after)
            return after
        if isinstance(node, _Choice):
            return self._add(None, [self._emit(branch, after) for branch in node.branches])
        if node.most is None:
            fork = self._add(None, [after])
            self._steps[fork].targets.append(self._emit(node.body, fork))
            after = fork
        else:
            end = after
            for _ in range(node.most - node.least):
                after = self._add(None, [end, self._emit(node.body, after)])
        for _ in range(node.least):
            after = self._emit(node.body, after)
        return after


def _too_big() -> InvalidInputError:
    return InvalidInputError("regular expression: its repetitions make it too big")


def _holds(place: _Place, text: str, position: int) -> bool:
    if place is _Place.BEGIN:
        return position == 0
    if place is _Place.END:
        return position == len(text)
    before = position > 0 and text[position - 1] in _WORD
    behind = position < len(text) and text[position] in _WORD
    return (before != behind) == (place is _Place.WORD_EDGE)


class _Parser:
    """Recursive descent over one expression."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._position = position
        self._depth = 0

    def parse(self) -> _Node:
        node = self._choice()
        if self._position < len(self._text):
            raise self._error("')' without '('")
        return node

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"groups nest deeper than {_DEEPEST}")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (character := self._peek()) and character not in "|)":
            parts.append(self._repeated(self._atom()))
        return _Sequence(tuple(parts))

    def _repeated(self, atom: _Node) -> _Node:
        counts = self._quantifier()
        if counts is None:
            return atom
        self._take("?")
        if self._peek() in ("*", "+", "?") or _COUNTS.match(self._text, self._position):
            raise self._error("a repetition of a repetition")
        return _Repeat(atom, *counts)

    def _quantifier(self) -> tuple[int, int | None] | None:
        found = _COUNTS.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
            least = int(found[1])
            most = least if not found[2] else int(found[3]) if found[3] else None
            if max(least, most or 0) > _MOST_REPEATED or (most is not None and most < least):
                raise self._error("a repetition count out of range")
            return least, most
        character = self._peek()
        if character in _QUANTIFIERS:
            self._position += 1
            return _QUANTIFIERS[character]
        return None

    def _atom(self) -> _Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character in _QUANTIFIERS:
            raise self._error(f"nothing to repeat before {character!r}")
        if character == ".":
            return _Set(frozenset("\n"), is_negated=True)
        places = {"^": _Place.BEGIN, "$": _Place.END}
        return places.get(character) or _Set(frozenset(character))

    def _group(self) -> _Node:
        found = _GROUP.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
        elif self._peek() == "?":
            raise self._error("a group of a kind that isn't supported")
        node = self._choice()
        if not self._take(")"):
            raise self._error("'(' without ')'")
        return node

    def _escape(self) -> _Node:
        character = self._peek()
        places = {"b": _Place.WORD_EDGE, "B": _Place.NO_WORD_EDGE, "A": _Place.BEGIN, "z": _Place.END}
        if character in places:
            self._position += 1
            return places[character]
        if character and character.lower() in _CLASS_ESCAPES:
            self._position += 1
            return _Set(_CLASS_ESCAPES[character.lower()], is_negated=character.isupper())
        return _Set(frozenset(self._escaped_character()))

    def _escaped_character(self) -> str:
        found = _HEX.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
            number = int(found[1] or found[2], 16)
            if number > 0x10FFFF:
                raise self._error("no such character")
            return chr(number)
        character = self._next()
        if character in _CHARACTER_ESCAPES:
            return _CHARACTER_ESCAPES[character]
        if character in _WORD or not character.isascii():
            raise self._error(f"escape \\{character} isn't supported")
        return character

    def _class(self) -> _Node:
        is_negated = self._take("^")
        members: set[str] = set()
        ranges: list[tuple[str, str]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            if self._text.startswith("[:", self._position):
                members |= self._posix()
                continue
            low = self._class_character(members)
            if low is None:
                continue
            is_range = self._peek() == "-" and self._text[self._position + 1 : self._position + 2] not in ("]", "")
            if not is_range:
                members.add(low)
                continue
            self._position += 1
            high = self._class_character(members)
            if high is None or high < low:
                raise self._error("a range that runs backwards")
            ranges.append((low, high))
        self._position += 1
        return _Set(frozenset(members), tuple(ranges), is_negated)

    def _class_character(self, members: set[str]) -> str | None:
        """The next single character; None when a whole set of them went into ``members``."""
        character = self._next()
        if character != "\\":
            return character
        if self._peek() in _CLASS_ESCAPES:
            members |= _CLASS_ESCAPES[self._next()]
            return None
        return self._escaped_character()

    def _posix(self) -> frozenset[str]:
        end = self._text.find(":]", self._position)
        name = self._text[self._position + 2 : end] if end >= 0 else ""
        if name not in _POSIX:
            raise self._error(f"no character class {name!r}")
        self._position = end + 2
        return _POSIX[name]

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("unexpected end")
        self._position += 1
        return character

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._position += 1
        return True

    def _error(self, reason: str) -> InvalidInputError:
        return InvalidInputError(f"regular expression {self._text!r}: at position {self._position}: {reason}")
