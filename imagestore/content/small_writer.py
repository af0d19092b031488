"""Writing small blobs, of pulls and of imports: whole in memory, verified there, and only then a file.

An ingest costs a folder, four notes and their removal, several times what the bytes of a small blob cost. A small blob
has none: its file is written to a folder of this work below the ingests, made read-only, synced and renamed. The folder
is locked as an ingest is; if its owner dies, a collection removes it.

- A pull holds the lock of the blob's ingest, as for any other: no second transfer begins, and other pulls that
  wait find the blob. What came of a transfer that broke becomes an ingest and is resumed.
- An import brings blobs in batches: all are written and synced, then all get their names, and the blob folder is synced
  once. Two processes that store the same blob write the same bytes twice.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.content.api import BATCH
from imagestore.content.blob_files import check_name_free
from imagestore.content.direct_io import (
    DIRECT,
    LEAST_DIRECT_BYTES,
    aligned_buffer,
    make_cached,
    write_all,
    write_blocks,
)
from imagestore.content.ingests import ingest_name, remove_ingest
from imagestore.errors import (
    AlreadyExistsError,
    DigestMismatchError,
    SizeMismatchError,
    StoreError,
    WriterClosedError,
)
from imagestore.oci.digest import Digest, verify
from imagestore.util.disk_errors import translated
from imagestore.util.executors import work_off
from imagestore.util.failpoint import reach
from imagestore.util.file_locks import FileLock
from imagestore.util.files import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path
    from typing import Self

    from imagestore.content.api import SmallBlob
    from imagestore.content.direct_io import ReadInto
    from imagestore.content.ingest import LocalIngestWriter
    from imagestore.content.ingests import IngestFolder
    from imagestore.util.cancel import CancelToken

#: Larger blobs have an ingest from the start.
SMALL_BYTES: Final = 9 * 256 * 1024
_THREADS: Final = 4
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalSmallBlobs:
    """Writes the small blobs of one pull or import, as a context manager; thread-safe but for put().

    Args:
        check_room: called before and after bytes are written; may refuse them by raising OSError.
        open_writer: see writer(); gets this object too.
        cancel: ends the work between two batches, and the wait for a collection that looks through the lock files.
    """

    def __init__(
        self,
        ingests: IngestFolder,
        blobs: Path,
        *,
        check_room: Callable[[], None],
        open_writer: Callable[..., LocalIngestWriter | SmallWriter],
        cancel: CancelToken,
    ) -> None:
        name = ingest_name(f"batch-{os.urandom(16).hex()}")
        self._folder = ingests.path / name
        self._file_lock = FileLock(ingests.locks / f"ingest-{name}")
        self._blobs = blobs
        self._check_room = check_room
        self._open_writer = open_writer
        self._cancel = cancel
        self._lock = threading.Lock()
        self._is_made = False
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(_THREADS, "imagestore-batch")

    def writer(
        self,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> LocalIngestWriter | SmallWriter:
        """As the store's writer(), but a small blob of which nothing is here gets no ingest, unless too many are in
        memory."""
        return self._open_writer(self, ref, expected=expected, total=total, cancel=cancel, on_wait=on_wait)

    def put(self, blobs: Sequence[SmallBlob]) -> None:
        """Store blobs, each digest once, batch by batch; durable when this returns. A lease must hold them already."""
        for start in range(0, len(blobs), BATCH):
            self._cancel.check()
            batch = blobs[start : start + BATCH]
            paths: dict[Digest, str] = {}
            work_off(self._threads, min(_THREADS, len(batch)), deque(batch), functools.partial(self._write_one, paths))
            for digest, path in paths.items():
                with contextlib.suppress(AlreadyExistsError):
                    self.name(path, digest)
            self.sync_names({digest.algorithm for digest in paths})

    def _write_one(self, paths: dict[Digest, str], blob: SmallBlob) -> None:
        raw = blob.read()
        verify(raw, blob.digest, blob.size, what=blob.what)
        paths[blob.digest] = self.write(memoryview(raw))

    def write(self, data: memoryview, *, is_aligned: bool = False) -> str:
        """Write bytes to a file of this work's folder that is read-only and synced; return its path.

        Args:
            is_aligned: they begin where an aligned buffer does.

        Raises:
            StoreError: the disk failed; nothing is left.
        """
        path = self._path()
        is_direct = bool(DIRECT) and is_aligned and len(data) >= LEAST_DIRECT_BYTES
        with translated("write", path):
            try:
                reach("small-make")
                descriptor, is_direct = _create(path, is_direct=is_direct)
                try:
                    self._check_room()
                    written = write_blocks(descriptor, data, 0, failpoint="small-write") if is_direct else 0
                    if is_direct:
                        make_cached(descriptor)
                    write_all(descriptor, data[written:], written, failpoint="small-write")
                    self._check_room()
                    os.fchmod(descriptor, 0o444)
                    reach("small-sync")
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except BaseException:
                _remove(path)
                raise
        return path

    def name(self, path: str, digest: Digest) -> None:
        """Give a file that write() made the name of its verified bytes; durable after sync_names().

        Raises:
            AlreadyExistsError: the blob is there already.
            StoreError: the disk failed. In both cases the file is gone.
        """
        target = self._blobs / digest.algorithm / digest.encoded
        with translated("commit", target):
            try:
                make_directory(target.parent)
                check_name_free(target, digest)
                reach("small-rename")
                os.rename(path, target)
            except BaseException:
                _remove(path)
                raise

    def sync_names(self, algorithms: Collection[str]) -> None:
        """Make names durable."""
        for algorithm in algorithms:
            folder = self._blobs / algorithm
            with translated("commit", folder):
                reach("small-sync-folder")
                sync_directory(folder)

    def _path(self) -> str:
        """A path in this work's folder that nothing else uses; the folder is made for the first."""
        with self._lock:
            if not self._is_made:
                self._make()
        return f"{self._folder}/{next(self._numbers)}"

    def _make(self) -> None:
        self._file_lock.acquire(self._cancel)
        try:
            with translated("make a folder", self._folder):
                reach("small-folder")
                self._folder.mkdir(0o755)
        except BaseException:
            # The next try must not wait for this one.
            self._file_lock.release()
            raise
        self._is_made = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._threads.shutdown()
            if self._is_made:
                remove_ingest(self._folder)
        finally:
            self._file_lock.release()


class SmallWriter:
    """An IngestWriter that holds its bytes in memory until they are committed, or closed and kept as an ingest.

    Args:
        ref: name of the ingest whose lock it holds.
        lock: of that ingest, held already; released when closed.
        as_ingest: opens that ingest.
        on_end: called once when closed.
    """

    def __init__(
        self,
        ref: str,
        expected: Digest,
        size: int,
        *,
        lock: FileLock,
        blobs: LocalSmallBlobs,
        as_ingest: Callable[[], LocalIngestWriter],
        on_end: Callable[[], None],
    ) -> None:
        self._ref = ref
        self._expected = expected
        self._lock = lock
        self._blobs = blobs
        self._as_ingest = as_ingest
        self._on_end = on_end
        self._offset = 0
        self._is_open = True
        # A byte more shows where a source gives too much.
        self._buffer = memoryview(bytearray(size + 1)) if size < LEAST_DIRECT_BYTES else aligned_buffer(size + 1)

    @property
    def offset(self) -> int:
        """Bytes received so far."""
        return self._offset

    def held(self) -> bytes:
        """The bytes so far, as they came."""
        self._check_open()
        return bytes(self._buffer[: self._offset])

    def write(self, chunk: bytes | memoryview) -> None:
        """Append bytes."""
        self._check_open()
        end = self._offset + len(chunk)
        if end >= len(self._buffer):
            raise self._too_long(end)
        self._buffer[self._offset : end] = chunk
        self._offset = end

    def fill(self, readinto: ReadInto, *, advanced: Callable[[int], None]) -> None:
        """Append what a source gives until its end."""
        self._check_open()
        while count := readinto(self._buffer[self._offset :]):
            advanced(self._offset + count)
            self._offset += count
            if self._offset == len(self._buffer):
                raise self._too_long(self._offset)

    def truncate(self) -> None:
        """Start again from nothing."""
        self._check_open()
        self._offset = 0

    def commit(
        self, expected: Digest | None = None, size: int | None = None, *, has_durable_name: bool = True
    ) -> Digest:
        """Verify and publish, then close."""
        self._check_open()
        expected = expected or self._expected
        data = self._buffer[: self._offset]
        if size is not None and self._offset != size:
            raise SizeMismatchError(str(expected), expected=size, actual=self._offset)
        actual = Digest.of(data, expected.algorithm)
        if actual != expected:
            raise DigestMismatchError(f"ingest {self._ref}", expected=str(expected), actual=str(actual))
        try:
            self._blobs.name(self._blobs.write(data, is_aligned=True), expected)
            if has_durable_name:
                self._blobs.sync_names([expected.algorithm])
        finally:
            self.abort()
        return expected

    def abort(self) -> None:
        """Throw the bytes away and close; harmless when closed."""
        if self._is_open:
            self._is_open = False
            # The frames of a failure may keep this writer for long.
            self._buffer = memoryview(b"")
            self._on_end()
            self._lock.release()

    def close(self) -> None:
        """Let go; what came stays and can be resumed, if the disk takes it."""
        try:
            if self._is_open and self._offset:
                # It lets go of the lock too.
                with contextlib.suppress(StoreError), self._as_ingest() as ingest:
                    ingest.write(self._buffer[: self._offset])
        finally:
            self.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _too_long(self, size: int) -> SizeMismatchError:
        return SizeMismatchError(f"ingest {self._ref}", expected=len(self._buffer) - 1, actual=size)

    def _check_open(self) -> None:
        if not self._is_open:
            raise WriterClosedError(f"ingest {self._ref}: the writer is closed", hint="open another for the same ref")


def _create(path: str, *, is_direct: bool) -> tuple[int, bool]:
    """A new file, and whether it takes direct writes."""
    if is_direct:
        try:
            return os.open(path, _FLAGS | DIRECT, 0o644), True
        except OSError:
            # A file system that can't, and may have made the file nevertheless.
            return os.open(path, _FLAGS & ~os.O_EXCL, 0o644), False
    return os.open(path, _FLAGS, 0o644), False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
