"""Fetching small blobs: each comes whole into memory and is verified there; only then is a file written.

An ingest costs a folder, four notes and their removal, several times what the bytes of a small blob cost. So a blob of
a few mebibytes gets none: its bytes are received into a buffer that is used again, hashed, written past the page cache
to a file of ours, made read-only, synced and named. The lock of its ingest is held meanwhile as for any other: nobody
else fetches it, and those who wait find it afterwards. What came of a transfer that broke becomes an ingest then, and
is resumed as any other; only who is killed loses it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING, Final

from imagestore.content.buffers import BLOCK_BYTES, DIRECT, LEAST_DIRECT_BYTES
from imagestore.content.disk import check_room, make_directory, sync_directory, translated
from imagestore.content.scratch import Scratch, is_taken
from imagestore.digest import Digest, new_hash
from imagestore.errors import AlreadyExistsError, DigestMismatchError, SizeMismatchError, StoreError, WriterClosedError
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from imagestore.cancel import CancelToken
    from imagestore.content.buffers import Buffers
    from imagestore.content.filling import ReadInto
    from imagestore.content.ingest import LocalIngestWriter
    from imagestore.content.locks import FileLock

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Gathering:
    """What the small blobs of one piece of work share, as a context manager; made by LocalContentStore.gathering().

    Args:
        ingests: the folder of all ingests.
        blobs: the folder of all blobs.
        locks: the folder of lock files.
        buffers: those of the store.
        cancel: ends the work.
    """

    def __init__(self, ingests: Path, blobs: Path, locks: Path, *, buffers: Buffers, cancel: CancelToken) -> None:
        self._scratch = Scratch(ingests, locks, cancel)
        self._blobs = os.fspath(blobs)
        self._folder_of = blobs
        self._buffers = buffers

    def writer(
        self, ref: str, expected: Digest, total: int, lock: FileLock, as_ingest: Callable[[], LocalIngestWriter]
    ) -> SmallWriter | None:
        """A writer of one blob of so many bytes, at most SMALL_BYTES; see there. None while too many hold memory."""
        held = self._buffers.try_take(total)
        if held is None:
            return None
        return SmallWriter(ref, expected, held, lock=lock, gathering=self, buffers=self._buffers, as_ingest=as_ingest)

    def publish(self, digest: Digest, data: memoryview, *, has_durable_name: bool) -> None:
        """Write verified bytes and give them their name.

        Args:
            digest: names them.
            data: a part of a buffer, from its start.
            has_durable_name: sync the folder of names too.

        Raises:
            AlreadyExistsError: the blob is there already.
            StoreError: the disk failed; nothing is left.
        """
        path, folder = self._scratch.place(), f"{self._blobs}/{digest.algorithm}"
        target = f"{folder}/{digest.encoded}"
        with translated("commit", target):
            try:
                self._write(path, data)
                if not os.path.isdir(folder):
                    make_directory(self._folder_of / digest.algorithm)
                if is_taken(target):
                    raise AlreadyExistsError(f"content {digest} is in the store already")
                reach("small-rename")
                os.rename(path, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
            if has_durable_name:
                reach("small-sync-folder")
                sync_directory(self._folder_of / digest.algorithm)

    def _write(self, path: str, data: memoryview) -> None:
        is_direct = bool(DIRECT) and len(data) >= LEAST_DIRECT_BYTES
        reach("small-make")
        try:
            descriptor = os.open(path, _FLAGS | (DIRECT if is_direct else 0), 0o644)
        except FileExistsError:
            raise
        except OSError:
            if not is_direct:
                raise
            # A file system that can't, and may have made the file nevertheless.
            descriptor, is_direct = os.open(path, _FLAGS & ~os.O_EXCL, 0o644), False
        try:
            check_room(descriptor, len(data))
            offset = _write_blocks(descriptor, data) if is_direct else 0
            while offset < len(data):
                reach("small-write")
                offset += os.pwrite(descriptor, data[offset:], offset)
            os.fchmod(descriptor, 0o444)
            reach("small-sync")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        self._scratch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._scratch.__exit__(kind, value, traceback)


class SmallWriter:
    """An IngestWriter that holds its bytes in memory until they are committed, or closed and kept as an ingest.

    Args:
        ref: name of the ingest whose lock it is.
        expected: what the bytes will hash to.
        held: memory for the blob and at least a byte more, with which its end is seen.
        lock: of that ingest, held already; released when closed.
        gathering: writes them.
        buffers: get it back.
        as_ingest: opens that ingest.
    """

    def __init__(
        self,
        ref: str,
        expected: Digest,
        held: memoryview,
        *,
        lock: FileLock,
        gathering: Gathering,
        buffers: Buffers,
        as_ingest: Callable[[], LocalIngestWriter],
    ) -> None:
        self._ref = ref
        self._expected = expected
        self._lock = lock
        self._gathering = gathering
        self._buffers = buffers
        self._as_ingest = as_ingest
        self._offset = 0
        self._held: memoryview | None = held
        self._buffer = held

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
        if size is not None and self._offset != size:
            raise SizeMismatchError(str(expected), expected=size, actual=self._offset)
        data = self._buffer[: self._offset]
        digester = new_hash(expected.algorithm)
        digester.update(data)
        actual = digester.hexdigest()
        if actual != expected.encoded:
            raise DigestMismatchError(
                f"ingest {self._ref}", expected=str(expected), actual=f"{expected.algorithm}:{actual}"
            )
        try:
            self._gathering.publish(expected, data, has_durable_name=has_durable_name)
        finally:
            self.abort()
        return expected

    def abort(self) -> None:
        """Throw the bytes away and close; harmless when closed."""
        held, self._held = self._held, None
        if held is not None:
            # The frames of a failure may keep this writer for long.
            self._buffer = memoryview(b"")
            self._buffers.give_back(held)
            self._lock.release()

    def close(self) -> None:
        """Let go; what came stays and can be resumed, if the disk takes it."""
        try:
            if self._held is not None and self._offset:
                # It lets go of the lock too.
                with contextlib.suppress(StoreError), self._as_ingest() as ingest:
                    ingest.write(self._buffer[: self._offset])
        finally:
            self.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _too_long(self, size: int) -> SizeMismatchError:
        return SizeMismatchError(f"ingest {self._ref}", expected=len(self._buffer) - 1, actual=size)

    def _check_open(self) -> None:
        if self._held is None:
            raise WriterClosedError(f"ingest {self._ref}: the writer is closed", hint="open another for the same ref")


def _write_blocks(descriptor: int, data: memoryview) -> int:
    """Write whole blocks past the page cache, then let the file be written as any other; how many bytes that were."""
    whole, offset = len(data) - len(data) % BLOCK_BYTES, 0
    try:
        while offset < whole:
            reach("small-write")
            offset += os.pwrite(descriptor, data[offset:whole], offset)
    except OSError as error:
        # This file system takes the flag and refuses the writes.
        if error.errno != errno.EINVAL:
            raise
    fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
    return offset
