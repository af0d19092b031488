"""Reading a blob as whoever stores it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Readable(Protocol):
    """Bytes that are read into buffers."""

    def readinto(self, buffer: memoryview) -> int:
        """0 at the end."""


def pieces(stream: Readable, size: int = 64 * 1024) -> Iterator[bytes]:
    """The bytes as they come, in pieces of at most ``size``."""
    buffer = memoryview(bytearray(size))
    while count := stream.readinto(buffer):
        yield bytes(buffer[:count])


def drain(stream: Readable) -> bytes:
    """All bytes."""
    return b"".join(pieces(stream))
