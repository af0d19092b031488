"""Path patterns in Go's dialect (path/filepath.Glob and Match), which containerd's ``imports`` use.

Not the shell's: ``*`` finds hidden files too, ``[^a]`` negates, a backslash quotes the next character, and there is no
``**``. Results are in byte order of their names. Matching takes time proportional to the length of the pattern times
that of the name, for any number of stars.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = re.compile(r"[*?\[\\]")


@dataclass(frozen=True, slots=True)
class _One:
    """One character: a set of ranges, or everything outside them.

    Attributes:
        ranges: first and last character of each range.
        is_negated: whether the character must be outside all of them.
    """

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False

    def fits(self, character: str) -> bool:
        """Whether this element accepts the character."""
        return any(low <= character <= high for low, high in self.ranges) is not self.is_negated


_ANY: Final = _One((), is_negated=True)
#: None stands for a star.
_Pieces = tuple[_One | None, ...]


def expand(pattern: str) -> list[str]:
    """Find the paths that a pattern stands for.

    Folders that can't be read are passed over, as in Go.

    Raises:
        ValueError: the pattern is malformed.
    """
    if not _MAGIC.search(pattern):
        return [pattern] if os.path.lexists(pattern) else []
    head, tail = os.path.split(pattern)
    pieces = compile_component(tail)
    found: list[str] = []
    for folder in expand(head) if _MAGIC.search(head) else [head]:
        try:
            names = os.listdir(folder or ".")
        except (OSError, ValueError):
            continue
        hits = sorted((name for name in names if matches(pieces, name)), key=os.fsencode)
        found.extend(os.path.join(folder, name) for name in hits)
    return found


def compile_component(pattern: str) -> _Pieces:
    """Read one path component of a pattern.

    Raises:
        ValueError: an unclosed or empty ``[...]``, or a backslash at the end.
    """
    pieces: list[_One | None] = []
    position = 0
    while position < len(pattern):
        mark = pattern[position]
        if mark == "*":
            pieces.append(None)
        elif mark == "?":
            pieces.append(_ANY)
        elif mark == "[":
            piece, position = _character_class(pattern, position + 1)
            pieces.append(piece)
            continue
        else:
            character, position = _character(pattern, position)
            pieces.append(_One(((character, character),)))
            continue
        position += 1
    return tuple(pieces)


def matches(pieces: _Pieces, name: str) -> bool:
    """Whether a file name fits a compiled component.

    >>> matches(compile_component("*.t[o-p]ml"), ".a.toml"), matches(compile_component("[^a]*"), "abc")
    (True, False)
    """
    at = position = 0
    star, star_position = -1, 0
    while position < len(name):
        piece = pieces[at] if at < len(pieces) else _One(())
        if piece is None:
            star, star_position = at, position
            at += 1
        elif piece.fits(name[position]):
            at += 1
            position += 1
        elif star >= 0:
            # Let the last star take one character more; an earlier star never needs to.
            star_position += 1
            at, position = star + 1, star_position
        else:
            return False
    return all(piece is None for piece in pieces[at:])


def _character(pattern: str, position: int) -> tuple[str, int]:
    if pattern[position] == "\\":
        position += 1
        if position == len(pattern):
            raise ValueError("it ends in a backslash")
    return pattern[position], position + 1


def _character_class(pattern: str, position: int) -> tuple[_One, int]:
    is_negated = pattern.startswith("^", position)
    position += is_negated
    ranges: list[tuple[str, str]] = []
    while not (ranges and pattern.startswith("]", position)):
        low, position = _class_character(pattern, position)
        high = low
        if pattern.startswith("-", position):
            high, position = _class_character(pattern, position + 1)
        ranges.append((low, high))
    return _One(tuple(ranges), is_negated), position + 1


def _class_character(pattern: str, position: int) -> tuple[str, int]:
    if position >= len(pattern):
        raise ValueError("a [ is not closed")
    if pattern[position] in "-]":
        raise ValueError(f"{pattern[position]!r} can't stand at position {position}")
    return _character(pattern, position)
