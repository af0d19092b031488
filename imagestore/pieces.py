"""Bytes that come in pieces of somebody else's choosing, read into buffers of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class PieceReader:
    """Reads an iterator of pieces as a file is read.

    Args:
        pieces: the bytes in order; an empty piece means nothing.

    >>> reader, buffer = PieceReader(iter([b"ab", b"", b"cde"])), memoryview(bytearray(4))
    >>> [bytes(buffer[: reader.readinto(buffer)]) for _ in range(3)]
    [b'ab', b'cde', b'']
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer, as many as are at hand and fit; 0 at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
