"""How regular expressions from callers are read: into a tree that ``expressions`` runs."""

from __future__ import annotations

import enum
import string
from dataclasses import dataclass
from typing import Final

from imagestore.errors import InvalidInputError
from imagestore.patterns import pattern

#: Go's bound of a repetition.
_MOST_REPEATED: Final = 1000
_DEEPEST: Final = 32

_DIGIT: Final = frozenset(string.digits)
WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_SPACE: Final = frozenset("\t\n\f\r ")
_CLASS_ESCAPES: Final = {"d": _DIGIT, "w": WORD, "s": _SPACE}
_POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "blank": frozenset("\t "),
    "digit": _DIGIT,
    "lower": frozenset(string.ascii_lowercase),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "upper": frozenset(string.ascii_uppercase),
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CHARACTER_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = pattern(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})")
_COUNTS: Final = pattern(r"\{([0-9]{1,4})(?:(,)([0-9]{1,4})?)?\}")
_GROUP: Final = pattern(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")
_QUANTIFIERS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Place(enum.Enum):
    """Assertions: nothing is read."""

    BEGIN = "begin"
    END = "end"
    WORD_EDGE = "word edge"
    NO_WORD_EDGE = "no word edge"


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """Which characters fit: single ones and ranges, or all others."""

    members: frozenset[str]
    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = False

    def has(self, character: str) -> bool:
        """Whether a character fits."""
        found = character in self.members or any(low <= character <= high for low, high in self.ranges)
        return found != self.is_negated


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; with no part, nothing."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Over and over; without a limit when ``most`` is None."""

    body: Node
    least: int
    most: int | None


Node = CharacterSet | Place | Sequence | Choice | Repeat


class Parser:
    """Recursive descent over one expression.

    Args:
        text: the expression.
        position: where to begin.
    """

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._position = position
        self._depth = 0

    def parse(self) -> Node:
        """Read it to its end.

        Raises:
            InvalidInputError: says where what doesn't fit.
        """
        node = self._choice()
        if self._position < len(self._text):
            raise self._error("')' without '('")
        return node

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"groups nest deeper than {_DEEPEST}")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (character := self._peek()) and character not in "|)":
            parts.append(self._repeated(self._atom()))
        return Sequence(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        counts = self._quantifier()
        if counts is None:
            return atom
        self._take("?")
        if self._peek() in ("*", "+", "?") or _COUNTS.match(self._text, self._position):
            raise self._error("a repetition of a repetition")
        return Repeat(atom, *counts)

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

    def _atom(self) -> Node:
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
            return CharacterSet(frozenset("\n"), is_negated=True)
        places = {"^": Place.BEGIN, "$": Place.END}
        return places.get(character) or CharacterSet(frozenset(character))

    def _group(self) -> Node:
        found = _GROUP.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
        elif self._peek() == "?":
            raise self._error("a group of a kind that isn't supported")
        node = self._choice()
        if not self._take(")"):
            raise self._error("'(' without ')'")
        return node

    def _escape(self) -> Node:
        character = self._peek()
        places = {"b": Place.WORD_EDGE, "B": Place.NO_WORD_EDGE, "A": Place.BEGIN, "z": Place.END}
        if character in places:
            self._position += 1
            return places[character]
        if character and character.lower() in _CLASS_ESCAPES:
            self._position += 1
            return CharacterSet(_CLASS_ESCAPES[character.lower()], is_negated=character.isupper())
        return CharacterSet(frozenset(self._escaped_character()))

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
        if character in WORD or not character.isascii():
            raise self._error(f"escape \\{character} isn't supported")
        return character

    def _class(self) -> Node:
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
        return CharacterSet(frozenset(members), tuple(ranges), is_negated)

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
