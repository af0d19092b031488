"""Sparse files in tar archives: a map of the pieces that are stored, everything between them is zeros.

Forms are those that tar programs write: GNU's old one (type ``S``, the map in the header and in blocks behind it), and
GNU's three in extended headers (GNU tar manual, "Storing Sparse Files"): 0.0 with a pair of records for each piece, 0.1
with one record, 1.0 with the map in front of the contents. Pieces but the last are whole blocks, unless the caller
allows others: readers disagree where the next one begins after any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Read = Callable[[int, int], bytes]

#: What keywords of extended headers that describe a sparse file begin with.
PAX_PREFIX: Final = "GNU.sparse."
#: Pieces of all sparse files of an archive.
MAX_PIECES: Final = 250_000
_BLOCK: Final = 512
# A piece in a GNU header: offset and length, of twelve characters each.
_PIECE: Final = 24
_FIRST_MAP: Final = slice(386, 482)
_NEXT_MAP: Final = slice(0, 504)
_OCTAL: Final = re.compile(rb"[ \0]*([0-7]+)[ \0]*")
_DECIMAL: Final = re.compile(rb"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Span:
    """Where a file's contents are in an archive.

    Attributes:
        offset: of what is stored, in bytes.
        size: of the file.
        pieces: of a sparse file, place in the file and length of each piece that is stored, in order; None for a file
            that is stored whole.
    """

    offset: int
    size: int
    pieces: tuple[tuple[int, int], ...] | None = None

    @property
    def stored(self) -> int:
        """How many bytes stand in the archive."""
        return self.size if self.pieces is None else sum(length for _, length in self.pieces)

    def parts(self, start: int, most: int) -> Iterator[tuple[int | None, int]]:
        """The file from ``start`` on, in parts of at most ``most`` bytes.

        Yields:
            Offset in the archive (None where the file has zeros that aren't stored) and length.
        """
        place = self.offset
        done = 0
        for at, length in (*(self.pieces if self.pieces is not None else ((0, self.size),)), (self.size, 0)):
            for first, end, is_stored in ((done, at, False), (at, at + length, True)):
                begin = max(first, start)
                while begin < end:
                    size = min(most, end - begin)
                    yield (place + begin - first if is_stored else None), size
                    begin += size
            place += length
            done = at + length


def read_gnu(header: bytes, read: Read, start: int, stored: int, *, is_aligned: bool = True) -> Span | None:
    """A member of type ``S``; None when its map can't be read.

    Args:
        read: gives so many bytes (second argument) at an offset (first).
        start: where the first block after the header is.
        stored: the size that the header states: of what is stored.
        is_aligned: refuse pieces in front of the last one that aren't whole blocks.
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
            break
        block, where = read(start, _BLOCK), _NEXT_MAP
        if len(block) < _BLOCK or len(pieces) > MAX_PIECES:
            return None
        start, goes_on = start + _BLOCK, block[504]
    return _checked(start, _number(header[483:495]), pieces, stored, is_aligned)


def read_pax(
    records: Sequence[tuple[str, bytes]], read: Read, start: int, stored: int, *, is_aligned: bool = True
) -> Span | None:
    """A member whose extended header describes a sparse file; None when its map can't be read.

    Args:
        records: keyword (without the common beginning) and value, in order.
        read: gives so many bytes (second argument) at an offset (first).
        start: where the member's contents begin.
        stored: how many bytes they have, in form 1.0 with the map.
        is_aligned: as for read_gnu().
    """
    named = dict(records)
    size = _decimal(named.get("realsize", named.get("size", b"")))
    if named.get("major", b"0") == b"1":
        found = _map_in_front(read, start, stored)
        if found is None:
            return None
        return _checked(start + found[1], size, found[0], stored - found[1], is_aligned)
    if "map" in named:
        numbers = [_decimal(each) for each in named["map"].split(b",")] if named["map"] else []
    else:
        # Each offset is followed by its length.
        listed = [(key, value) for key, value in records if key in ("offset", "numbytes")]
        if [key for key, _ in listed] != ["offset", "numbytes"] * (len(listed) // 2):
            return None
        numbers = [_decimal(value) for _, value in listed]
    return _checked(start, size, _paired(numbers), stored, is_aligned)


def _map_in_front(read: Read, start: int, stored: int) -> tuple[list[tuple[int, int]], int] | None:
    """The map of form 1.0, and how many bytes its blocks take: lines with the number of pieces, offsets, lengths."""
    count, taken, rest = 1, 0, b""
    numbers: list[int] = []
    while len(numbers) < count:
        block = read(start + taken, _BLOCK) if taken < stored else b""
        if not block:
            return None
        taken += len(block)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if len(numbers) == count:
                break
            numbers.append(_decimal(line))
            if len(numbers) == 1:
                if not 0 <= numbers[0] <= MAX_PIECES:
                    return None
                count += 2 * numbers[0]
        if len(rest) > _BLOCK:
            return None
    return _paired(numbers[1:]), taken


def _paired(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers in pairs; an odd one has no length, which no map allows."""
    return list(zip(numbers[::2], [*numbers[1::2], -1][: len(numbers[::2])], strict=True))


def _checked(offset: int, size: int, pieces: Sequence[tuple[int, int]], stored: int, is_aligned: bool) -> Span | None:
    """The span, if the pieces are in order, inside the file, and as long as what is stored."""
    done = 0
    for at, length in pieces:
        if at < done or length < 0:
            return None
        done = at + length
    kept = tuple((at, length) for at, length in pieces if length)
    is_whole = not is_aligned or all(length % _BLOCK == 0 for _, length in kept[:-1])
    if size < done or not is_whole or sum(length for _, length in kept) != stored:
        return None
    return Span(offset, size, kept)


def _number(raw: bytes) -> int:
    """A number of a header: octal, or GNU's base 256; -1 when it can't be read."""
    if raw[0] == 0x80:
        return int.from_bytes(raw[1:])
    found = _OCTAL.fullmatch(raw)
    return -1 if found is None else int(found.group(1), 8)


def _decimal(raw: bytes) -> int:
    return int(raw) if _DECIMAL.fullmatch(raw) else -1
