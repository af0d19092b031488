"""Filling an ingest from a source of bytes: large ones past the page cache, hashed beside the transfer.

Received into a few aligned buffers that are used again and again, a chunk is never copied: one thread receives and
writes it, another hashes it. O_DIRECT writes whole blocks straight from the buffer to the disk, where a write through
the page cache would first have to find, clear and fill as much memory as the blob is long; the end of a blob, and
everything on a file system that can't, goes the usual way.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from imagestore.failpoint import reach

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Iterator
    from pathlib import Path

    #: Puts bytes into a buffer and says how many; 0 at the end.
    ReadInto = Callable[[memoryview], int]

#: Less than this is not worth a thread.
LEAST_LARGE_BYTES: Final = 4 * 1024 * 1024
BUFFER_BYTES: Final = 1024 * 1024
_BUFFERS_PER_BLOB: Final = 4
_MOST_KEPT: Final = 12
# What every device and file system accepts as alignment of offsets, lengths and addresses.
_BLOCK_BYTES: Final = 4096
# Not on every system that has files.
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


class Buffers:
    """Page-aligned buffers of BUFFER_BYTES, kept for the next blob; thread-safe."""

    def __init__(self) -> None:
        self._kept: deque[mmap.mmap] = deque(maxlen=_MOST_KEPT)

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[memoryview]]:
        """Some buffers until the end of the block."""
        taken = []
        for _ in range(count):
            try:
                taken.append(self._kept.pop())
            except IndexError:
                taken.append(mmap.mmap(-1, BUFFER_BYTES))
        try:
            yield [memoryview(each) for each in taken]
        finally:
            self._kept.extend(taken)


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

    def small(self, readinto: ReadInto, advanced: Callable[[int], None]) -> None:
        """Fill with one buffer, in this thread.

        Args:
            readinto: the source.
            advanced: called with the new offset before bytes are written; may refuse them by raising.
        """
        with self._buffers.lend(1) as (buffer,):
            while count := readinto(buffer):
                advanced(self.offset + count)
                self._write(self._descriptor, buffer[:count], self.offset)
                self._digester.update(buffer[:count])
                self.offset += count

    def large(self, readinto: ReadInto, advanced: Callable[[int], None]) -> None:
        """Fill with several buffers and a hashing thread; the arguments are those of small()."""
        self._direct = self._open_direct()
        try:
            with self._buffers.lend(_BUFFERS_PER_BLOB) as buffers, _Hashing(self._digester, buffers) as hashing:
                while self._fill_one(hashing, readinto, advanced):
                    pass
        finally:
            if self._direct >= 0:
                os.close(self._direct)

    def _fill_one(self, hashing: _Hashing, readinto: ReadInto, advanced: Callable[[int], None]) -> bool:
        """Receive and write one buffer; say whether there may be more."""
        buffer = hashing.free.get()
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
            hashing.todo.put((buffer, begun, filled))
            if filled > begun:
                self._keep(buffer[:filled], self.offset - filled)
        return not is_over

    def _begin_block(self, buffer: memoryview) -> int:
        begun = self.offset % _BLOCK_BYTES if self._direct >= 0 else 0
        if begun and os.preadv(self._descriptor, [buffer[:begun]], self.offset - begun) != begun:
            raise OSError(errno.EIO, "the ingest became shorter", str(self._path))
        return begun

    def _keep(self, data: memoryview, offset: int) -> None:
        whole = len(data) - len(data) % _BLOCK_BYTES if self._direct >= 0 else 0
        if whole:
            try:
                self._write(self._direct, data[:whole], offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system takes the flag and refuses the writes.
                os.close(self._direct)
                self._direct = -1
                whole = 0
        self._write(self._descriptor, data[whole:], offset + whole)

    def _write(self, descriptor: int, data: memoryview, offset: int) -> None:
        while data:
            reach("ingest-write")
            written = os.pwrite(descriptor, data, offset)
            data = data[written:]
            offset += written

    def _open_direct(self) -> int:
        if not _DIRECT:
            return -1
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | _DIRECT)
        except OSError:
            # Not here, then (tmpfs, some network and overlay file systems).
            return -1


class _Hashing:
    """A thread that hashes buffers in the order they come and gives them back.

    Args:
        digester: gets the bytes.
        buffers: free at first.
    """

    def __init__(self, digester: hashlib._Hash, buffers: list[memoryview]) -> None:
        self.free: SimpleQueue[memoryview] = SimpleQueue()
        self.todo: SimpleQueue[tuple[memoryview, int, int] | None] = SimpleQueue()
        for buffer in buffers:
            self.free.put(buffer)
        self._digester = digester
        self._thread = threading.Thread(target=self._work, name="imagestore-hash", daemon=True)

    def __enter__(self) -> _Hashing:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self.todo.get()) is not None:
            buffer, start, end = job
            self._digester.update(buffer[start:end])
            # Only the filling thread takes it, and not before it has written it.
            self.free.put(buffer)
