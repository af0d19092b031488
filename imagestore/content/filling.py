"""Filling an ingest from a source of bytes: large ones past the page cache, hashed beside the transfer.

Received into a few aligned buffers that are used again and again, a chunk is never copied: one thread receives and
writes it, for large blobs another hashes it, unless more of them come than there are processors (the threads would only
take turns). O_DIRECT writes whole blocks straight from the buffer to the disk, where a write through the page cache
would first have to find, clear and fill as much memory as the blob is long; the end of a blob, and everything on a file
system that can't, goes the usual way.
"""

from __future__ import annotations

import abc
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
    from types import TracebackType
    from typing import Self

    #: Puts bytes into a buffer and says how many; 0 at the end.
    ReadInto = Callable[[memoryview], int]

#: Less than this is not worth opening the file twice.
LEAST_DIRECT_BYTES: Final = 256 * 1024
#: Less than this is not worth a thread.
LEAST_LARGE_BYTES: Final = 4 * 1024 * 1024
BUFFER_BYTES: Final = 1024 * 1024
_BUFFERS_PER_BLOB: Final = 4
_MOST_KEPT: Final = 12
# Bounds what whole blobs in memory take, however many pulls one store runs: 54 MiB.
_MOST_LENT: Final = 24
#: What every device and file system accepts as alignment of offsets, lengths and addresses.
BLOCK_BYTES: Final = 4096
#: Not on every system that has files.
DIRECT: Final = getattr(os, "O_DIRECT", 0)


class Buffers:
    """Page-aligned buffers, kept for the next blob; thread-safe.

    Args:
        size: of each in bytes.
        most_kept: the others are given back to the system.
        most_lent: to those who can do without, see try_take().
    """

    def __init__(self, size: int = BUFFER_BYTES, most_kept: int = _MOST_KEPT, most_lent: int = _MOST_LENT) -> None:
        self._size = size
        self._lendable = threading.Semaphore(most_lent)
        self._kept: deque[mmap.mmap] = deque(maxlen=most_kept)
        # As long as there are large blobs that come at the moment.
        self._coming: deque[None] = deque()
        self._processors = os.cpu_count() or 1

    def take(self) -> mmap.mmap:
        """One buffer; memory that it never held takes no room."""
        try:
            return self._kept.pop()
        except IndexError:
            return mmap.mmap(-1, self._size)

    def try_take(self) -> mmap.mmap | None:
        """One buffer for a whole blob, unless too many are taken so; give_back() must follow."""
        if not self._lendable.acquire(blocking=False):
            return None
        try:
            return self.take()
        except BaseException:
            self._lendable.release()
            raise

    def give_back(self, taken: mmap.mmap) -> None:
        """Give back what try_take() gave."""
        self.give(taken)
        self._lendable.release()

    def give(self, *taken: mmap.mmap) -> None:
        """Give buffers back."""
        self._kept.extend(taken)

    @contextlib.contextmanager
    def coming(self) -> Iterator[bool]:
        """While a large blob comes; says whether a processor is left to hash it in a thread of its own."""
        self._coming.append(None)
        try:
            yield len(self._coming) <= self._processors
        finally:
            self._coming.pop()

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[memoryview]]:
        """Some buffers until the end of the block."""
        taken = [self.take() for _ in range(count)]
        try:
            yield [memoryview(each) for each in taken]
        finally:
            self.give(*taken)


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

    def fill(self, readinto: ReadInto, advanced: Callable[[int], None], *, expected: int) -> None:
        """Append until the source ends.

        Args:
            readinto: the source.
            advanced: called with the new offset before bytes are written; may refuse them by raising.
            expected: how many bytes will come, as far as that is known.
        """
        self._direct = self._open_direct() if expected >= LEAST_DIRECT_BYTES else -1
        try:
            with self._hashing(is_large=expected >= LEAST_LARGE_BYTES) as hashing:
                while self._fill_one(hashing, readinto, advanced):
                    pass
        finally:
            if self._direct >= 0:
                os.close(self._direct)

    @contextlib.contextmanager
    def _hashing(self, *, is_large: bool) -> Iterator[_Hashing]:
        with (
            self._buffers.coming() if is_large else contextlib.nullcontext(enter_result=False) as is_beside,
            self._buffers.lend(_BUFFERS_PER_BLOB if is_beside else 1) as buffers,
            (_HashingBeside if is_beside else _HashingHere)(self._digester, buffers) as hashing,
        ):
            yield hashing

    def _fill_one(self, hashing: _Hashing, readinto: ReadInto, advanced: Callable[[int], None]) -> bool:
        """Receive and write one buffer; say whether there may be more."""
        buffer = hashing.take()
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
            hashing.give(buffer, begun, filled)
            if filled > begun:
                self._keep(buffer[:filled], self.offset - filled)
        return not is_over

    def _begin_block(self, buffer: memoryview) -> int:
        begun = self.offset % BLOCK_BYTES if self._direct >= 0 else 0
        if begun and os.preadv(self._descriptor, [buffer[:begun]], self.offset - begun) != begun:
            raise OSError(errno.EIO, "the ingest became shorter", str(self._path))
        return begun

    def _keep(self, data: memoryview, offset: int) -> None:
        whole = len(data) - len(data) % BLOCK_BYTES if self._direct >= 0 else 0
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
        if not DIRECT:
            return -1
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | DIRECT)
        except OSError:
            # Not here, then (tmpfs, some network and overlay file systems).
            return -1


class _Hashing(abc.ABC):
    """Hashes buffers in the order they come.

    Args:
        digester: gets the bytes.
        buffers: free at first.
    """

    def __init__(self, digester: hashlib._Hash, buffers: list[memoryview]) -> None:
        self._digester = digester
        self._buffers = buffers

    @abc.abstractmethod
    def take(self) -> memoryview:
        """A free buffer."""

    @abc.abstractmethod
    def give(self, buffer: memoryview, start: int, end: int) -> None:
        """Hash a part of a buffer, which is free again afterwards."""

    def __enter__(self) -> Self:
        return self

    @abc.abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Wait until everything is hashed."""


class _HashingHere(_Hashing):
    """In the thread that asks for it."""

    def take(self) -> memoryview:
        return self._buffers[0]

    def give(self, buffer: memoryview, start: int, end: int) -> None:
        self._digester.update(buffer[start:end])

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        pass


class _HashingBeside(_Hashing):
    """In a thread of its own."""

    def __init__(self, digester: hashlib._Hash, buffers: list[memoryview]) -> None:
        super().__init__(digester, buffers)
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._todo: SimpleQueue[tuple[memoryview, int, int] | None] = SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)
        self._thread = threading.Thread(target=self._work, name="imagestore-hash", daemon=True)
        self._thread.start()

    def take(self) -> memoryview:
        return self._free.get()

    def give(self, buffer: memoryview, start: int, end: int) -> None:
        self._todo.put((buffer, start, end))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._todo.get()) is not None:
            buffer, start, end = job
            self._digester.update(buffer[start:end])
            # Only the filling thread takes it, and not before it has written it.
            self._free.put(buffer)
