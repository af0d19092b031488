"""The rest of a body, read from its connection straight into the caller's buffer.

The HTTP library copies every byte three times on its way (read, join, cut), which costs more than hashing it. Once it
has parsed the head and handed out the first piece of a body of known length, its own buffer is empty: what is left is
on the connection, exactly as long as Content-Length says, and is read there. The library then no longer knows where the
connection stands, so it closes it; if the body ended exactly, the connection is kept for the next request
(``parking.py``) instead.

Bodies that are chunked, coded, short, through a proxy or through a transport of the caller's stay with the library.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import httpcore

from imagestore.patterns import pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.registry.transport.network import Stream

#: Shorter bodies are not worth it.
LEAST_BYTES: Final = 256 * 1024
#: A slow connection is read for so long at a time, so that progress is seen and what came is kept.
_PATIENCE_SECONDS: Final = 0.1
_NUMBER: Final = pattern(rb"[0-9]{1,19}")


def known_length(method: str, status: int, http_version: object, fields: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Length of a body that may be read directly (RFC 9112 section 6.3, case 6); None: leave it to the library."""
    if method != "GET" or status not in (200, 206) or http_version != b"HTTP/1.1":
        return None
    lengths = []
    for name, value in fields:
        match name.lower():
            case b"content-length":
                lengths.append(value)
            case b"transfer-encoding":
                return None
            case b"content-encoding" if value.strip().lower() != b"identity":
                return None
    if len(lengths) != 1 or not _NUMBER.fullmatch(lengths[0]):
        return None
    length = int(lengths[0])
    return length if length >= LEAST_BYTES else None


class DirectBody:
    """What is left of one body on its connection.

    Args:
        stream: the connection.
        remaining: bytes of the body that the library has not read.
        idle_seconds: without a single byte.
    """

    def __init__(self, stream: Stream, remaining: int, idle_seconds: float) -> None:
        self._stream = stream
        self._remaining = remaining
        self._idle_seconds = idle_seconds

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer, or as much of it as comes in a moment; 0 only at the end of the body.

        Raises:
            httpcore.RemoteProtocolError: the peer hung up before the end.
            httpcore.ReadTimeout, httpcore.ReadError: nothing comes, or the connection broke.
        """
        wanted = min(len(buffer), self._remaining)
        filled = 0
        until = time.monotonic() + _PATIENCE_SECONDS
        while filled < wanted and (not filled or time.monotonic() < until):
            count = self._stream.readinto(buffer[filled:wanted], self._idle_seconds)
            if not count:
                raise httpcore.RemoteProtocolError(
                    f"peer closed connection with {self._remaining} bytes of the body to come"
                )
            filled += count
            self._remaining -= count
        if not self._remaining:
            # The next byte on this connection belongs to the next response.
            self._stream.is_between_messages = True
        return filled
