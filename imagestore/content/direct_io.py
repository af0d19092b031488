"""Filling an ingest from a source of bytes: large ones past the page cache, hashed and written next to the transfer.

Bytes are received into page-aligned buffers and never copied. For a large blob one thread hashes and one writes what
was received while the next buffer is filled. O_DIRECT writes whole blocks from the buffer to the disk; a write through
the page cache would first have to find, clear and fill as much memory as the blob is long. The end of a blob, and
everything on a file system that refuses O_DIRECT, is written the usual way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import sys
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError
from imagestore.util.executors import one_thread, submit_or_run
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    #: Puts bytes into a buffer and says how many; 0 at the end.
    ReadInto = Callable[[memoryview], int]
    #: Those that hash and write next to the transfer; None: the transfer's own.
    _Threads = tuple[ThreadPoolExecutor | None, ThreadPoolExecutor | None]

BUFFER_BYTES: Final = 2 * 1024 * 1024
#: Of a transfer beside which so many others are under way in this process: what slow ones together take is bounded.
LESS_BUFFER_BYTES: Final = 128 * 1024
MOST_LARGE_BUFFERS: Final = 48
_large_buffers: Final = threading.BoundedSemaphore(MOST_LARGE_BUFFERS)
#: What every device and file system accepts as alignment of offsets, lengths and addresses.
BLOCK_BYTES: Final = 4096
#: Less than this is not worth opening the file twice.
LEAST_DIRECT_BYTES: Final = 256 * 1024
#: Less than this is not worth threads that hash and write.
LEAST_LARGE_BYTES: Final = 4 * 1024 * 1024
#: Not on every system that has files.
DIRECT: Final = getattr(os, "O_DIRECT", 0)
_FAILPOINT: Final = "ingest-write"


def aligned_buffer(size: int) -> memoryview:
    """Memory whose address fits direct writes.

    Raises:
        StoreError: there is none.
    """
    try:
        return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise StoreError(
            f"no memory for a transfer's buffer: {error.strerror}",
            hint="allow the process more (ulimit -v, its control group), or let fewer layers come at a time",
        ) from error


def write_blocks(descriptor: int, data: memoryview, offset: int, *, failpoint: str) -> int:
    """Write the whole blocks of a buffer past the page cache; return how many bytes were written.

    Args:
        descriptor: of a file opened with O_DIRECT.
        data: begins where the buffer does.
        offset: in the file; a multiple of BLOCK_BYTES.
    """
    whole, written = len(data) - len(data) % BLOCK_BYTES, 0
    try:
        while written < whole:
            reach(failpoint)
            written += os.pwrite(descriptor, data[written:whole], offset + written)
    except OSError as error:
        # This file system takes the flag and refuses the writes.
        if error.errno != errno.EINVAL:
            raise
    return written - written % BLOCK_BYTES


def write_all(descriptor: int, data: memoryview, offset: int, *, failpoint: str) -> None:
    """Write a buffer through the page cache."""
    while data:
        reach(failpoint)
        written = os.pwrite(descriptor, data, offset)
        data = data[written:]
        offset += written


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a blob in a buffer.

    Attributes:
        buffer: all of it.
        begun: where the new bytes begin; those before them are in the file already.
        filled: where they end.
        offset: place of the buffer's first byte in the blob.
    """

    buffer: memoryview
    begun: int
    filled: int
    offset: int


class IngestFiller:
    """Appends to one file what a source gives.

    Args:
        path: the file.
        descriptor: the same file, open for reading and writing.
        offset: its length.
        digester: has seen those bytes, and gets the others.
        check_room: called before and after bytes are written; may refuse them by raising.
    """

    def __init__(
        self, path: Path, descriptor: int, offset: int, *, digester: hashlib._Hash, check_room: Callable[[], None]
    ) -> None:
        #: Bytes of the file so far, those in a buffer included.
        self.offset = offset
        self._path = path
        self._descriptor = descriptor
        self._digester = digester
        self._check_room = check_room
        self._direct = -1
        # How far the file goes, and what the digest has seen.
        self._kept = self._hashed = offset

    @property
    def is_behind(self) -> bool:
        """Whether bytes that came are not in the file, or were not hashed."""
        return not self._kept == self._hashed == self.offset

    def fill(self, readinto: ReadInto, advanced: Callable[[int], None], *, expected: int) -> None:
        """Append until the source ends.

        Args:
            advanced: called with the new offset before bytes are written; may refuse them by raising.
            expected: how many bytes will come, as far as that is known.
        """
        is_large = expected >= LEAST_LARGE_BYTES
        self._direct = self._open_direct() if expected >= LEAST_DIRECT_BYTES else -1
        # Never waited for: a slow transfer must not hold up another one.
        has_large = _large_buffers.acquire(blocking=False)
        buffer_bytes = BUFFER_BYTES if has_large else LESS_BUFFER_BYTES
        try:
            with (
                one_thread("imagestore-hash") if is_large else contextlib.nullcontext() as hashing,
                one_thread("imagestore-write") if is_large else contextlib.nullcontext() as writing,
            ):
                buffers = [aligned_buffer(buffer_bytes) for _ in range(2 if is_large else 1)]
                self._fill_all(readinto, advanced, (hashing, writing), buffers)
        finally:
            if has_large:
                _large_buffers.release()
            if self._direct >= 0:
                os.close(self._direct)

    def _fill_all(
        self, readinto: ReadInto, advanced: Callable[[int], None], threads: _Threads, buffers: list[memoryview]
    ) -> None:
        # Buffers in turn, each with what must be done before it is filled again.
        turns = deque((buffer, list[Future[None]]()) for buffer in buffers)
        try:
            is_over = False
            while not is_over:
                buffer, under_way = turns[0]
                for done in under_way:
                    done.result()
                under_way.clear()
                turns.rotate(-1)
                is_over = self._fill_one(readinto, advanced, buffer, threads, under_way)
        finally:
            # A disk that fails outweighs what the source said then, but not an interrupt.
            if isinstance(sys.exception(), Exception | None):
                for done in (each for _, some in turns for each in some):
                    done.result()

    def _fill_one(
        self,
        readinto: ReadInto,
        advanced: Callable[[int], None],
        buffer: memoryview,
        threads: _Threads,
        under_way: list[Future[None]],
    ) -> bool:
        """Receive one buffer, and have it hashed and written; say whether the source has ended."""
        # A file that ends within a block: the block is written again, from its start.
        begun = filled = self._begin_block(buffer)
        is_over = False
        try:
            while filled < len(buffer) and not is_over:
                count = readinto(buffer[filled:])
                is_over = not count
                if count:
                    advanced(self.offset + count)
                filled += count
                self.offset += count
        finally:
            # What came before a failure counts: it is written, and hashed.
            if filled > begun:
                piece = _Piece(buffer, begun, filled, self.offset - filled)
                for step, executor in zip((self._hash, self._write), threads, strict=True):
                    if executor is None:
                        step(piece)
                    else:
                        under_way.append(submit_or_run(executor, functools.partial(step, piece)))
        return is_over

    def _begin_block(self, buffer: memoryview) -> int:
        begun = self.offset % BLOCK_BYTES if self._direct >= 0 else 0
        if begun and os.preadv(self._descriptor, [buffer[:begun]], self.offset - begun) != begun:
            raise OSError(errno.EIO, "the ingest became shorter", str(self._path))
        return begun

    def _hash(self, piece: _Piece) -> None:
        self._digester.update(piece.buffer[piece.begun : piece.filled])
        self._hashed = piece.offset + piece.filled

    def _write(self, piece: _Piece) -> None:
        if self._kept != piece.offset + piece.begun:
            return  # the piece before could not be written; that is raised
        self._check_room()
        data = piece.buffer[: piece.filled]
        written = write_blocks(self._direct, data, piece.offset, failpoint=_FAILPOINT) if self._direct >= 0 else 0
        write_all(self._descriptor, data[written:], piece.offset + written, failpoint=_FAILPOINT)
        self._check_room()
        self._kept = piece.offset + piece.filled

    def _open_direct(self) -> int:
        if not DIRECT:
            return -1
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | DIRECT)
        except OSError:
            # Not here, then (tmpfs, some network and overlay file systems).
            return -1


def make_cached(descriptor: int) -> None:
    """Let a file that was opened with O_DIRECT be written through the page cache from now on."""
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~DIRECT)
