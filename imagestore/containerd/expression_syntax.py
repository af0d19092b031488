"""How regular expressions from callers are read: into a tree that ``expressions`` runs."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import Final

from imagestore.containerd.expression_characters import PERL, POSIX, CharacterSet, categories
from imagestore.errors import InvalidInputError

#: Go's bound of a repetition.
_MOST_REPEATED: Final = 1000
_DEEPEST: Final = 32

_CHARACTER_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})")
# A single digit but 0 would be a reference to a group, which there is none of.
_OCTAL: Final = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_COUNTS: Final = re.compile(r"\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\}")
_FLAGS: Final = re.compile(r"\?([imsU]*)(?:-([imsU]+))?([:)])")
_NAMED: Final = re.compile(r"\?P?<[A-Za-z0-9_]+>")
_QUANTIFIERS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class UnsupportedExpressionError(InvalidInputError):
    """An expression that Go knows and that is not supported here."""


class Place(enum.Enum):
    """Assertions: nothing is read."""

    BEGIN = "begin"
    END = "end"
    LINE_BEGIN = "line begin"
    LINE_END = "line end"
    WORD_EDGE = "word edge"
    NO_WORD_EDGE = "no word edge"


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
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()

    def parse(self) -> Node:
        """Read it to its end.

        Raises:
            UnsupportedExpressionError: Go could read it.
            InvalidInputError: says where what doesn't fit.
        """
        node = self._choice()
        if self._position < len(self._text):
            raise self._error("')' without '('")
        return node

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._unsupported(f"groups that nest deeper than {_DEEPEST}")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (character := self._peek()) and character not in "|)":
            counts = self._quantifier()
            if counts is not None:
                if not parts:
                    raise self._error("nothing to repeat")
                parts[-1] = self._repeated(parts[-1], *counts)
            elif self._text.startswith("\\Q", self._position):
                parts += map(self._one, self._literal())
            elif self._take("("):
                parts += self._group()
            else:
                parts.append(self._atom())
        return Sequence(tuple(parts))

    def _repeated(self, part: Node, least: int, most: int | None) -> Node:
        self._take("?")
        if self._peek() in ("*", "+", "?") or _COUNTS.match(self._text, self._position):
            raise self._error("a repetition of a repetition")
        return Repeat(part, least, most)

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

    def _literal(self) -> str:
        """What stands between ``\\Q`` and ``\\E``, or the end."""
        literal, end, _ = self._text[self._position + 2 :].partition("\\E")
        self._position += 2 + len(literal) + len(end)
        return literal

    def _group(self) -> list[Node]:
        """Behind the parenthesis; flags for what follows are no part of a sequence."""
        before = self._flags
        if (found := _FLAGS.match(self._text, self._position)) is not None:
            self._position = found.end()
            self._flags = before.union(found[1]).difference(found[2] or "")
            if found[3] == ")":
                return []
        elif (found := _NAMED.match(self._text, self._position)) is not None:
            self._position = found.end()
        elif self._peek() == "?":
            raise self._error("no such kind of group")
        node = self._choice()
        if not self._take(")"):
            raise self._error("'(' without ')'")
        self._flags = before
        return [node]

    def _atom(self) -> Node:
        character = self._next()
        has_lines = "m" in self._flags
        if character == "^":
            return Place.LINE_BEGIN if has_lines else Place.BEGIN
        if character == "$":
            return Place.LINE_END if has_lines else Place.END
        if character == ".":
            return CharacterSet(frozenset() if "s" in self._flags else frozenset("\n"), is_negated=True)
        if character == "[":
            return self._class()
        return self._escape() if character == "\\" else self._one(character)

    def _escape(self) -> Node:
        places = {"b": Place.WORD_EDGE, "B": Place.NO_WORD_EDGE, "A": Place.BEGIN, "z": Place.END}
        if self._peek() in places:
            return places[self._next()]
        return self._escaped_set() or self._one(self._escaped_character())

    def _escaped_set(self) -> CharacterSet | None:
        """What a backslash and a letter name; None when it is a single character."""
        letter = self._peek()
        if letter.lower() in PERL:
            return self._set(PERL[self._next().lower()], is_negated=letter.isupper())
        return self._unicode() if letter in ("p", "P") else None

    def _unicode(self) -> CharacterSet:
        is_negated = self._next() == "P"
        name = self._next()
        if name == "{":
            name, end, _ = self._text[self._position :].partition("}")
            if not end:
                raise self._error("'{' without '}'")
            self._position += len(name) + 1
        if name.startswith("^"):
            name, is_negated = name[1:], not is_negated
        if name == "Any":
            return CharacterSet(is_negated=not is_negated)
        found = categories(name)
        if not found and len(name) < 2:
            raise self._error(f"no Unicode class {name!r}")
        if not found:
            raise self._unsupported(f"the Unicode class {name!r}")
        return CharacterSet(categories=found, is_negated=is_negated, ignores_case="i" in self._flags)

    def _escaped_character(self) -> str:
        if (found := _HEX.match(self._text, self._position)) is not None:
            number = int(found[1] or found[2], 16)
        elif (found := _OCTAL.match(self._text, self._position)) is not None:
            number = int(found[0], 8)
        else:
            character = self._next()
            if character not in _CHARACTER_ESCAPES and (character.isalnum() or not character.isascii()):
                raise self._error(f"no escape \\{character}")
            return _CHARACTER_ESCAPES.get(character, character)
        self._position = found.end()
        if number > 0x10FFFF:
            raise self._error("no such character")
        return chr(number)

    def _class(self) -> Node:
        is_negated = self._take("^")
        members: set[str] = set()
        ranges: list[tuple[str, str]] = []
        sets: list[CharacterSet] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            named = self._class_set()
            if named is not None:
                sets.append(named)
                continue
            low = self._class_character()
            if self._peek() != "-" or self._text[self._position + 1 : self._position + 2] in ("]", ""):
                members.add(low)
                continue
            self._position += 1
            high = self._class_character()
            if high < low:
                raise self._error("a range that runs backwards")
            ranges.append((low, high))
        self._position += 1
        found = self._set(frozenset(members), is_negated=is_negated)
        return replace(found, ranges=tuple(ranges), sets=tuple(sets))

    def _class_set(self) -> CharacterSet | None:
        """A set that is named inside a class, or None."""
        if self._text.startswith("[:", self._position):
            name, end, _ = self._text[self._position + 2 :].partition(":]")
            if end:
                self._position += len(name) + 4
                if name.removeprefix("^") not in POSIX:
                    raise self._error(f"no character class {name!r}")
                return self._set(POSIX[name.removeprefix("^")], is_negated=name.startswith("^"))
        elif self._take("\\"):
            found = self._escaped_set()
            self._position -= found is None
            return found
        return None

    def _class_character(self) -> str:
        character = self._next()
        return self._escaped_character() if character == "\\" else character

    def _one(self, character: str) -> CharacterSet:
        return self._set(frozenset(character))

    def _set(self, members: frozenset[str], *, is_negated: bool = False) -> CharacterSet:
        return CharacterSet(members, is_negated=is_negated, ignores_case="i" in self._flags)

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

    def _unsupported(self, what: str) -> UnsupportedExpressionError:
        return UnsupportedExpressionError(
            f"regular expression {self._text!r}: at position {self._position}: not supported: {what}"
        )
