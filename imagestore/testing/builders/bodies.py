"""Bodies: the bytes of a blob in memory, in a file, or computed, read in bounded memory from any offset.

A *synthetic* body is computed from a seed, so that a tape can hold a layer of a gigabyte in two lines. Its stream is
part of the tape format (docs/reference/tape-format.md) and must never change: one block of 1 MiB is SHAKE-256 of
``imagestore-tape/1 <seed>``; block *i* of the stream is that block with its first eight bytes replaced by *i*,
big-endian. Form ``tar`` wraps the stream as one file in a USTAR archive, which clients can unpack.
"""

from __future__ import annotations

import functools
import hashlib
import tarfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, Literal, Protocol

from imagestore.errors import InvalidInputError
from imagestore.oci import Digest, new_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Piece size of file and synthetic bodies. Large enough that the cost per piece vanishes.
PIECE_BYTES: Final = 1 << 20
_TAR_BLOCK: Final = 512
# One header block in front, two zero blocks behind.
_TAR_FRAME: Final = 3 * _TAR_BLOCK

SyntheticForm = Literal["raw", "tar"]


class Body(Protocol):
    """Some bytes of known length."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from ``start`` up to ``stop`` (exclusive; the end by default), in pieces of bounded size."""


@dataclass(frozen=True, slots=True)
class BytesBody:
    """A body in memory.

    >>> b"".join(BytesBody(b"abcdef").chunks(2, 4))
    b'cd'
    """

    data: bytes

    @property
    def size(self) -> int:
        """See Body."""
        return len(self.data)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """See Body."""
        end = len(self.data) if stop is None else min(stop, len(self.data))
        for offset in range(start, end, PIECE_BYTES):
            yield self.data[offset : min(offset + PIECE_BYTES, end)]


@dataclass(frozen=True, slots=True)
class BlankBody:
    """Spaces, in place of a body that isn't known."""

    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """See Body."""
        end = self.size if stop is None else min(stop, self.size)
        for offset in range(start, end, PIECE_BYTES):
            yield b" " * min(PIECE_BYTES, end - offset)


@dataclass(frozen=True, slots=True)
class FileBody:
    """A body in a file that doesn't change while it is served."""

    path: str
    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """See Body."""
        with open(self.path, "rb") as file:
            yield from SpoolBody(file, self.size).chunks(start, stop)


@dataclass(frozen=True, slots=True)
class SpoolBody:
    """A body in an open file, for one reader at a time; a file that became shorter simply ends early."""

    file: IO[bytes]
    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """See Body."""
        self.file.seek(start)
        left = (self.size if stop is None else min(stop, self.size)) - start
        while left > 0 and (piece := self.file.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece


@functools.lru_cache(maxsize=8)
def _block(seed: str) -> bytes:
    return hashlib.shake_256(f"imagestore-tape/1 {seed}".encode()).digest(PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class SyntheticBody:
    """Bytes computed from a seed. The size of a ``tar`` is a multiple of 512 bytes, at least 1536.

    Raises:
        InvalidInputError: the size doesn't fit the form.
    """

    seed: str
    size: int
    form: SyntheticForm = "raw"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidInputError(f"synthetic body {self.seed!r}: size {self.size} is negative")
        if self.form == "tar" and (self.size % _TAR_BLOCK or self.size < _TAR_FRAME):
            raise InvalidInputError(
                f"synthetic body {self.seed!r}: a tar has a multiple of 512 bytes, at least 1536; got {self.size}"
            )

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """See Body."""
        end = self.size if stop is None else min(stop, self.size)
        if self.form == "raw":
            yield from self._stream(start, end)
            return
        inside = self.size - _TAR_FRAME
        if start < min(end, _TAR_BLOCK):
            info = tarfile.TarInfo("synthetic.bin")
            info.size = inside
            header = info.tobuf(tarfile.GNU_FORMAT if inside > 0o77777777777 else tarfile.USTAR_FORMAT)
            yield header[start : min(end, _TAR_BLOCK)]
        yield from self._stream(max(start, _TAR_BLOCK) - _TAR_BLOCK, min(end - _TAR_BLOCK, inside))
        zeros = end - max(start, _TAR_BLOCK + inside)
        if zeros > 0:
            yield bytes(zeros)

    def _stream(self, start: int, end: int) -> Iterator[bytes]:
        base = _block(self.seed)
        while start < end:
            number, skip = divmod(start, PIECE_BYTES)
            piece = b"".join((number.to_bytes(8, "big"), memoryview(base)[8:]))
            take = min(PIECE_BYTES - skip, end - start)
            yield piece if take == PIECE_BYTES else piece[skip : skip + take]
            start += take


@dataclass(frozen=True, slots=True)
class FlippedBody:
    """A body with one byte inverted."""

    inner: Body
    position: int

    @property
    def size(self) -> int:
        """See Body."""
        return self.inner.size

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """See Body."""
        offset = start
        for piece in self.inner.chunks(start, stop):
            at = self.position - offset
            offset += len(piece)
            yield piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :] if 0 <= at < len(piece) else piece


@dataclass(frozen=True, slots=True)
class PaddedBody:
    """A body followed by blanks (which JSON ignores), in bounded memory."""

    inner: Body
    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """See Body."""
        end = self.size if stop is None else min(stop, self.size)
        yield from self.inner.chunks(start, min(end, self.inner.size))
        left = end - max(start, self.inner.size)
        while left > 0:
            yield b" " * min(left, 1 << 16)
            left -= 1 << 16


def digest_of(body: Body, algorithm: str = "sha256") -> Digest:
    """Hash a body in bounded memory.

    Raises:
        InvalidDigestError: the algorithm can't be computed here.
    """
    digester = new_hash(algorithm)
    for piece in body.chunks():
        digester.update(piece)
    return Digest(algorithm, digester.hexdigest())


def read_all(body: Body, limit_bytes: int) -> bytes:
    """The whole body in memory.

    Raises:
        InvalidInputError: the body is longer than the limit.
    """
    if body.size > limit_bytes:
        raise InvalidInputError(f"body of {body.size} bytes: expected at most {limit_bytes}")
    return b"".join(body.chunks())
