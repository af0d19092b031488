"""Bodies as they lie on a connection (RFC 9112 section 6 and 7.1): of known length, in chunks, or until its end.

Bytes of a body of known length go from the socket straight into the caller's buffer. (The library copies each three
times on its way, which costs more than hashing it.)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.registry.transport.faults import InvalidAnswerError, TransportError
from imagestore.registry.transport.message import CHUNKED, UNTIL_END

if TYPE_CHECKING:
    from imagestore.registry.transport.link import Link

_PIECE_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 8 * 1024
_MAX_TRAILER_BYTES: Final = 64 * 1024
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00\r\n]*)?")


class Body(Protocol):
    """A body that is read into buffers."""

    @property
    def is_finished(self) -> bool:
        """Whether it was read to its end, and nothing but the next answer can follow on the connection."""

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer, as many as come in a moment; 0 only at the end.

        Raises:
            TransportError: the peer hung up before the end, nothing comes, or it is no HTTP.
        """


def body_of(length: int, link: Link, received: bytes, idle_seconds: float) -> Body:
    """The body behind a head.

    Args:
        length: see message.body_length().
        link: brings it.
        received: what came with the head already.
        idle_seconds: without a single byte.
    """
    if length == CHUNKED:
        return _ChunkedBody(link, received, idle_seconds)
    if length == UNTIL_END:
        return _EndlessBody(link, received, idle_seconds)
    return _SizedBody(link, received, idle_seconds, length)


class _SizedBody:
    def __init__(self, link: Link, received: bytes, idle_seconds: float, length: int) -> None:
        self._link = link
        self._received = memoryview(received)[:length]
        self._has_surplus = len(received) > length
        self._remaining = length
        self._idle_seconds = idle_seconds

    @property
    def is_finished(self) -> bool:
        # What came with the head and wasn't read is not on the connection any more.
        return self._remaining == len(self._received) and not self._has_surplus

    def readinto(self, buffer: memoryview) -> int:
        wanted = min(len(buffer), self._remaining)
        filled = min(wanted, len(self._received))
        if filled:
            buffer[:filled] = self._received[:filled]
            self._received = self._received[filled:]
        elif wanted:
            filled = self._link.fill(buffer[:wanted], self._idle_seconds)
            if not filled:
                raise TransportError(f"peer closed connection with {self._remaining} bytes of the body to come")
        self._remaining -= filled
        return filled


class _EndlessBody:
    #: The connection's end is its end.
    is_finished = False

    def __init__(self, link: Link, received: bytes, idle_seconds: float) -> None:
        self._link = link
        self._received = memoryview(received)
        self._idle_seconds = idle_seconds

    def readinto(self, buffer: memoryview) -> int:
        if not self._received:
            count = self._link.receive_into(buffer, self._idle_seconds)
            if not count:
                # Whoever cancels ends the connection too.
                self._link.check()
            return count
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        self._received = self._received[count:]
        return count


class _ChunkedBody:
    def __init__(self, link: Link, received: bytes, idle_seconds: float) -> None:
        self._link = link
        self._data = bytearray(received)
        self._idle_seconds = idle_seconds
        # Bytes of the chunk to come.
        self._left = 0
        self._has_begun = False
        self._is_over = False

    @property
    def is_finished(self) -> bool:
        return self._is_over and not self._data

    def readinto(self, buffer: memoryview) -> int:
        if not self._left and not self._is_over:
            self._begin_chunk()
        if self._is_over:
            return 0
        if not self._data:
            self._receive()
        count = min(len(buffer), self._left, len(self._data))
        buffer[:count] = memoryview(self._data)[:count]
        del self._data[:count]
        self._left -= count
        return count

    def _begin_chunk(self) -> None:
        if self._has_begun and self._line():
            raise InvalidAnswerError("a chunk goes on behind its end")
        self._has_begun = True
        found = _CHUNK_LINE.fullmatch(self._line())
        if found is None:
            raise InvalidAnswerError("a chunk without a valid size")
        self._left = int(found[1], 16)
        if not self._left:
            trailer_bytes = 0
            while line := self._line():
                trailer_bytes += len(line)
                if trailer_bytes > _MAX_TRAILER_BYTES:
                    raise InvalidAnswerError("too many trailer fields")
            self._is_over = True

    def _line(self) -> bytes:
        """The next line without its end; only CRLF ends one here, since others have been used to smuggle."""
        searched = 0
        while (end := self._data.find(b"\r\n", searched)) < 0:
            searched = max(0, len(self._data) - 1)
            if searched > _MAX_LINE_BYTES:
                raise InvalidAnswerError("a line of a chunk is too long")
            self._receive()
        line = bytes(self._data[:end])
        del self._data[: end + 2]
        return line

    def _receive(self) -> None:
        piece = memoryview(bytearray(_PIECE_BYTES))
        count = self._link.receive_into(piece, self._idle_seconds)
        if not count:
            raise TransportError("peer closed connection inside a chunked body")
        self._data += piece[:count]
