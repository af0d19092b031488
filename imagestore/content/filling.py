"""Filling an ingest from a source of bytes: large ones past the page cache, hashed and written beside the transfer.

Received into a few aligned buffers that are used again and again, a chunk is never copied: one thread receives and
writes it, for large blobs another hashes it, for huge ones a third writes it. Where many come at a time, these threads
would only take turns: the largest blobs have them, and the next when one of those is done. O_DIRECT writes whole blocks
straight from the buffer to the disk, where a write through the page cache would first have to find, clear and fill as
much memory as the blob is long; the end of a blob, and everything on a file system that can't, goes the usual way.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final

from imagestore.content.buffers import BLOCK_BYTES, BUFFER_BYTES, DIRECT, LEAST_DIRECT_BYTES
from imagestore.content.disk import check_room
from imagestore.content.ring import Piece, Ring
from imagestore.failpoint import reach

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imagestore.content.buffers import Buffers

    #: Puts bytes into a buffer and says how many; 0 at the end.
    ReadInto = Callable[[memoryview], int]

#: Less than this is not worth a thread that hashes.
LEAST_LARGE_BYTES: Final = 4 * 1024 * 1024
#: Less than this comes with others, whose transfers use the time that a write takes.
LEAST_HUGE_BYTES: Final = 64 * 1024 * 1024


def _never() -> bool:
    return False


def _threads(rest: int, may_be_helped: Callable[[], bool]) -> int:
    """How many threads so many more bytes are worth."""
    if rest < LEAST_LARGE_BYTES or not may_be_helped():
        return 0
    return 1 if rest < LEAST_HUGE_BYTES else 2


class Filling:
    """Appends to one file what a source gives.

    Args:
        path: the file.
        descriptor: the same file, open for reading and writing.
        offset: its length.
        digester: has seen those bytes, and gets the others.
        buffers: where bytes are received.
    """

    def __init__(self, path: Path, descriptor: int, offset: int, *, digester: hashlib._Hash, buffers: Buffers) -> None:
        #: Bytes of the file so far, those in a buffer included.
        self.offset = offset
        self._path = path
        self._descriptor = descriptor
        self._digester = digester
        self._buffers = buffers
        self._direct = -1
        self._is_settled = True
        # How far the file goes, and what the digest has seen.
        self._kept = self._hashed = offset

    @property
    def is_behind(self) -> bool:
        """Whether bytes that came are not in the file, or were not hashed."""
        return not self._kept == self._hashed == self.offset

    def fill(self, readinto: ReadInto, advanced: Callable[[int], None], *, expected: int) -> None:
        """Append until the source ends.

        Args:
            readinto: the source.
            advanced: called with the new offset before bytes are written; may refuse them by raising.
            expected: how many bytes will come, as far as that is known.
        """
        self._direct = self._open_direct() if expected >= LEAST_DIRECT_BYTES else -1
        end = self.offset + expected
        is_large = expected >= LEAST_LARGE_BYTES
        try:
            with self._buffers.coming(expected) if is_large else contextlib.nullcontext(_never) as may_be_helped:
                while self._fill_some(readinto, advanced, lambda: _threads(end - self.offset, may_be_helped)):
                    pass
        finally:
            if self._direct >= 0 and self._is_settled:
                os.close(self._direct)

    def _fill_some(self, readinto: ReadInto, advanced: Callable[[int], None], threads: Callable[[], int]) -> bool:
        """Receive until the source ends or may have threads that it hasn't; say whether there may be more."""
        count = threads()
        with self._ring(count) as ring:
            while count or not threads():
                if not self._fill_one(ring, readinto, advanced):
                    return False
        return True

    @contextlib.contextmanager
    def _ring(self, threads: int) -> Iterator[Ring]:
        steps, plain = (self._hash, self._keep), self._descriptor
        buffers = self._buffers.take_some(min(threads + 1, 2), threads + 1)
        try:
            ring = Ring(buffers, beside=steps[:threads], here=steps[threads:])
        except BaseException:
            self._buffers.give_some(buffers)
            raise
        self._is_settled, own = False, -1
        try:
            with ring:
                if threads == len(steps):
                    # Who writes beside has a descriptor that nobody else closes and whose number nobody gets.
                    own = self._descriptor = os.dup(plain)
                yield ring
        finally:
            self._is_settled = ring.is_over
            # Whoever is still at work after all keeps what he works with.
            if self._is_settled:
                self._buffers.give_some(buffers)
                if own >= 0:
                    self._descriptor = plain
                    os.close(own)

    def _fill_one(self, ring: Ring, readinto: ReadInto, advanced: Callable[[int], None]) -> bool:
        """Receive one buffer, and have it hashed and written; say whether there may be more."""
        buffer = ring.take()
        # A file that ends within a block: the block is written again, from its start.
        begun = self._begin_block(buffer)
        filled = begun
        is_over = False
        try:
            while filled < BUFFER_BYTES and not is_over:
                count = readinto(buffer[filled:])
                is_over = not count
                if count:
                    advanced(self.offset + count)
                filled += count
                self.offset += count
        finally:
            # What came before a failure counts: it is written, and hashed.
            if filled > begun:
                ring.give(Piece(buffer, begun, filled, self.offset - filled))
        return not is_over

    def _begin_block(self, buffer: memoryview) -> int:
        begun = self.offset % BLOCK_BYTES if self._direct >= 0 else 0
        if begun and os.preadv(self._descriptor, [buffer[:begun]], self.offset - begun) != begun:
            raise OSError(errno.EIO, "the ingest became shorter", str(self._path))
        return begun

    def _hash(self, piece: Piece) -> None:
        self._digester.update(piece.buffer[piece.begun : piece.filled])
        self._hashed = piece.offset + piece.filled

    def _keep(self, piece: Piece) -> None:
        check_room(self._descriptor, piece.filled)
        data = piece.buffer[: piece.filled]
        whole = len(data) - len(data) % BLOCK_BYTES if self._direct >= 0 else 0
        if whole:
            try:
                self._write(self._direct, data[:whole], piece.offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system takes the flag and refuses the writes.
                os.close(self._direct)
                self._direct = -1
                whole = 0
        self._write(self._descriptor, data[whole:], piece.offset + whole)
        self._kept = piece.offset + piece.filled

    def _write(self, descriptor: int, data: memoryview, offset: int) -> None:
        while data:
            reach("ingest-write")
            written = os.pwrite(descriptor, data, offset)
            data = data[written:]
            offset += written

    def _open_direct(self) -> int:
        if not DIRECT:
            return -1
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | DIRECT)
        except OSError:
            # Not here, then (tmpfs, some network and overlay file systems).
            return -1
