"""Sparse files in tar archives: a map of the pieces that are stored, everything between them is zeros.

Forms are those that tar programs write: GNU's old one (type ``S``, the map in the header and in blocks behind it), and
GNU's three in extended headers (GNU tar manual, "Storing Sparse Files"): 0.0 with a pair of records for each piece, 0.1
with one record, 1.0 with the map in front of the contents. Pieces are stored one after the other, as Go reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: Gives the next bytes of the archive, so many; fewer at the end. It bounds what a map takes.
    Read = Callable[[int], bytes]

#: What keywords of extended headers that describe a sparse file begin with.
PAX_PREFIX: Final = "GNU.sparse."
_BLOCK: Final = 512
# A piece in a GNU header: offset and length, of twelve characters each.
_PIECE: Final = 24
_FIRST_MAP: Final = slice(386, 482)
_NEXT_MAP: Final = slice(0, 504)
_OCTAL: Final = re.compile(rb"[ \0]*([0-7]+)[ \0]*")
_DECIMAL: Final = re.compile(rb"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class SparseMap:
    """Where the contents of a sparse file are in it.

    Attributes:
        size: of the file, in bytes.
        pieces: place in the file and length of each piece that is stored, in order.
    """

    size: int
    pieces: tuple[tuple[int, int], ...]


def read_gnu(header: bytes, read: Read, stored: int) -> SparseMap | None:
    """The map of a member of type ``S``; None when it can't be read.

    Args:
        read: from behind the header on; afterwards comes what is stored.
        stored: the size that the header states: of what is stored.
    """
    if header[257:264] != b"ustar  ":
        return None
    pieces: list[tuple[int, int]] = []
    block, where, goes_on = header, _FIRST_MAP, header[482]
    while True:
        for begin in range(where.start, where.stop, _PIECE):
            raw = block[begin : begin + _PIECE]
            if not raw[0]:
                break
            pieces.append((_number(raw[:12]), _number(raw[12:])))
        if not goes_on:
            return _checked(_number(header[483:495]), pieces, stored)
        block, where = read(_BLOCK), _NEXT_MAP
        if len(block) < _BLOCK:
            return None
        goes_on = block[504]


def read_pax(records: Sequence[tuple[str, bytes]], read: Read, stored: int) -> SparseMap | None:
    """The map that a member's extended header describes; None when it can't be read.

    Args:
        records: keyword (without the common beginning) and value, in order.
        read: the member's contents; afterwards comes what is stored.
        stored: how many bytes they have, in form 1.0 with the map.
    """
    named = dict(records)
    size = _decimal(named.get("realsize", named.get("size", b"")))
    if named.get("major", b"0") == b"1":
        found = _map_in_front(read, stored)
        return None if found is None else _checked(size, found[0], stored - found[1])
    if "map" in named:
        numbers = [_decimal(each) for each in named["map"].split(b",")] if named["map"] else []
    else:
        # Each offset is followed by its length.
        listed = [(key, value) for key, value in records if key in ("offset", "numbytes")]
        if [key for key, _ in listed] != ["offset", "numbytes"] * (len(listed) // 2):
            return None
        numbers = [_decimal(value) for _, value in listed]
    return _checked(size, _paired(numbers), stored)


def _map_in_front(read: Read, stored: int) -> tuple[list[tuple[int, int]], int] | None:
    """The map of form 1.0, and how many bytes its blocks take: lines with the number of pieces, offsets, lengths."""
    count, taken, rest = 1, 0, b""
    numbers: list[int] = []
    while len(numbers) < count:
        block = read(_BLOCK) if taken < stored else b""
        if not block:
            return None
        taken += len(block)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if len(numbers) == count:
                break
            numbers.append(_decimal(line))
            if numbers[0] < 0:
                return None
            count = 1 + 2 * numbers[0]
        if len(rest) > _BLOCK:
            return None
    return _paired(numbers[1:]), taken


def _paired(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers in pairs; an odd one has no length, which no map allows."""
    return list(zip(numbers[::2], [*numbers[1::2], -1][: len(numbers[::2])], strict=True))


def _checked(size: int, pieces: Sequence[tuple[int, int]], stored: int) -> SparseMap | None:
    """The map, if the pieces are in order, inside the file, and as long as what is stored."""
    done = 0
    for at, length in pieces:
        if at < done or length < 0:
            return None
        done = at + length
    kept = tuple((at, length) for at, length in pieces if length)
    return SparseMap(size, kept) if size >= done and sum(length for _, length in kept) == stored else None


def _number(raw: bytes) -> int:
    """A number of a header: octal, or GNU's base 256; -1 when it can't be read."""
    if raw[0] == 0x80:
        return int.from_bytes(raw[1:])
    found = _OCTAL.fullmatch(raw)
    return -1 if found is None else int(found.group(1), 8)


def _decimal(raw: bytes) -> int:
    return int(raw) if _DECIMAL.fullmatch(raw) else -1
