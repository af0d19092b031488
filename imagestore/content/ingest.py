"""Ingests: unfinished writes on disk, in containerd's form, resumable by any process.

The order of a commit is the store's promise: data synced, size and digest verified, made read-only, renamed, folder
synced.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Final

from imagestore.content.blob_files import LOST, check_name_free
from imagestore.content.direct_io import IngestFiller
from imagestore.content.ingests import now_text, read_status, remove_ingest
from imagestore.errors import (
    AlreadyExistsError,
    DigestMismatchError,
    SizeMismatchError,
    StoreError,
    WriterClosedError,
)
from imagestore.oci.digest import Digest, new_hash
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach
from imagestore.util.files import make_directory, replace, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.content.direct_io import ReadInto
    from imagestore.util.cancel import CancelToken
    from imagestore.util.file_locks import FileLock

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1024 * 1024


class LocalIngestWriter:
    """Writes one ingest; made by LocalContentStore.writer(), which already holds the lock.

    Args:
        directory: the ingest's folder; made, or resumed when it holds the same name and total.
        total: size in bytes, 0 when unknown.
        lock: released by close().
        check_room: called before and after bytes are written; may refuse them by raising OSError.
        cancel: ends the reading of what is there already.
    """

    def __init__(
        self,
        directory: Path,
        blobs: Path,
        *,
        ref: str,
        algorithm: str,
        total: int,
        lock: FileLock,
        check_room: Callable[[], None],
        cancel: CancelToken | None = None,
    ) -> None:
        self.directory = directory
        self._data = directory / "data"
        self._blobs = blobs
        self._ref = ref
        self._lock = lock
        self._check_room = check_room
        self._cancel = cancel
        self._total = total
        self._algorithm = algorithm
        self._hash = new_hash(algorithm)
        self._offset = 0
        # Whether the file lacks bytes that were hashed, or the other way round.
        self._is_behind = False
        self._descriptor = -1
        with translated("open ingest", directory):
            if not (self._can_resume(total) and self._resume()):
                self._create(total)
                self._open()

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._offset

    @property
    def digest(self) -> Digest:
        """What the bytes so far hash to."""
        return Digest(self._algorithm, self._hash.hexdigest())

    def hash_with(self, algorithm: str) -> None:
        """Hash with another algorithm from now on; what is there is read again."""
        self._check_open()
        if algorithm == self._algorithm:
            return
        with translated("read ingest", self._data):
            self._rehash(algorithm)

    def held(self) -> None:
        """Nothing: the bytes are in a file."""

    def open_written(self) -> BinaryIO:
        """What is written, opened for reading along; the file outlives the ingest, also when it is committed."""
        self._check_open()
        with translated("open ingest", self._data):
            return open(self._data, "rb", buffering=0)

    def write(self, chunk: bytes | memoryview) -> None:
        """Append bytes."""
        self._check_open()
        rest = memoryview(chunk)
        with translated(f"write ingest {self._ref}", self._data):
            self._check_room()
            while rest:
                reach("ingest-write")
                written = os.write(self._descriptor, rest)
                self._hash.update(rest[:written])
                self._offset += written
                rest = rest[written:]
            try:
                self._check_room()
            except OSError:
                self.abort()
                raise

    def fill(self, readinto: ReadInto, *, advanced: Callable[[int], None]) -> None:
        """Append what a source gives until its end; what came before it fails is kept."""
        self._check_open()
        with translated(f"write ingest {self._ref}", self._data):
            filling = IngestFiller(
                self._data, self._descriptor, self._offset, digester=self._hash, check_room=self._check_room
            )
            try:
                filling.fill(readinto, advanced, expected=self._total - self._offset)
            finally:
                self._is_behind = self._is_behind or filling.is_behind
                self._offset = os.lseek(self._descriptor, filling.offset, os.SEEK_SET)

    def truncate(self) -> None:
        """Start again from nothing."""
        self._check_open()
        with translated("truncate ingest", self._data):
            reach("ingest-truncate")
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._offset = 0
        self._is_behind = False
        self._hash = new_hash(self._algorithm)

    def clone(self, share: Callable[[int], bool]) -> bool:
        """Fill an empty ingest by sharing another file's blocks; say whether that was possible.

        Args:
            share: fills the open file it is given, or says that it can't.
        """
        with translated(f"write ingest {self._ref}", self._data):
            if not share(self._descriptor):
                return False
            self._rehash(self._algorithm)
            return True

    def commit(
        self, expected: Digest | None = None, size: int | None = None, *, has_durable_name: bool = True
    ) -> Digest:
        """Verify and publish, then close; returns the digest that names the blob."""
        actual = self.verified(expected, size)
        with translated(f"commit ingest {self._ref}", self._data):
            with self._losing_nothing():
                reach("commit-sync")
                os.fsync(self._descriptor)
            folder = self._blobs / actual.algorithm
            make_directory(folder)
            target = folder / actual.encoded
            try:
                check_name_free(target, actual)
            except AlreadyExistsError:
                self.abort()
                raise
            reach("commit-protect")
            os.fchmod(self._descriptor, 0o444)
            reach("commit-rename")
            os.rename(self._data, target)
            if has_durable_name:
                reach("commit-sync-folder")
                sync_directory(folder)
            reach("commit-clean")
            self.abort()
        return actual

    def verified(self, expected: Digest | None, size: int | None) -> Digest:
        """Check what is written and return its digest; for the arguments and errors see ``commit``."""
        self._check_open()
        if self._is_behind:
            raise StoreError(f"ingest {self._ref}: writing it failed before", hint="open it again and resume")
        if size is not None and self._offset != size:
            raise SizeMismatchError(str(expected or f"ingest {self._ref}"), expected=size, actual=self._offset)
        if expected is not None:
            self.hash_with(expected.algorithm)
        actual = self.digest
        if expected is not None and actual != expected:
            raise DigestMismatchError(f"ingest {self._ref}", expected=str(expected), actual=str(actual))
        return actual

    def abort(self) -> None:
        """Throw the ingest away and close; nothing happens when closed, since another may hold the ingest now."""
        if self._descriptor < 0:
            return
        try:
            remove_ingest(self.directory)
        finally:
            self._let_go()

    def close(self) -> None:
        """Let go; what is written stays and can be resumed."""
        if self._descriptor < 0:
            return
        try:
            # The bytes are kept even if the note about when they came can't be; those that the disk lost are not.
            with contextlib.suppress(OSError):
                with self._losing_nothing():
                    reach("ingest-close")
                    os.fsync(self._descriptor)
                replace(self.directory / "updatedat", now_text().encode(), mode=None)
        finally:
            # Also when an impatient user interrupts the disk: others of this process wait for the lock.
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _let_go(self) -> None:
        try:
            self._let_go_of_data()
        finally:
            self._lock.release()

    def _let_go_of_data(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # A close that fails has closed it nevertheless (Linux' close(2)).
            with translated("close its file", f"ingest {self._ref}"):
                os.close(descriptor)

    def _can_resume(self, total: int) -> bool:
        status = read_status(self.directory)
        if status is None or status.ref != self._ref:
            return False
        fits = not total or status.offset <= total
        return fits and (not total or not status.total or status.total == total)

    def _create(self, total: int) -> None:
        remove_ingest(self.directory)
        reach("ingest-make")
        self.directory.mkdir(0o755)
        now = now_text()
        notes = {"startedat": now, "updatedat": now, "total": str(total) if total > 0 else ""}
        for name, text in notes.items():
            if text:
                # Without a ref it is no ingest yet, so a half written note is never read.
                reach("note-write")
                (self.directory / name).write_text(text, "utf-8")
        replace(self.directory / "ref", self._ref.encode(), mode=None)

    def _open(self) -> None:
        self._descriptor = os.open(self._data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def _resume(self) -> bool:
        """Continue what is there; if the disk can't read it, start again, as containerd does."""
        try:
            self._open()
            self._rehash(self._algorithm)
        except BaseException as error:
            self._let_go_of_data()
            if not isinstance(error, OSError) or error.errno not in LOST:
                raise
            log.warning("an ingest can't be read, starting it again", extra={"ingest": self._ref})
            return False
        return True

    def _rehash(self, algorithm: str) -> None:
        """Read what is there, so that the running digest covers it; a hash's state can't be kept on disk."""
        running, offset = new_hash(algorithm), 0
        while chunk := os.pread(self._descriptor, _READ_BYTES, offset):
            if self._cancel is not None:
                self._cancel.check()
            running.update(chunk)
            offset += len(chunk)
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        self._algorithm, self._hash, self._offset = algorithm, running, offset

    @contextlib.contextmanager
    def _losing_nothing(self) -> Iterator[None]:
        """Around a sync: if it fails, the ingest is discarded; its lost bytes would still be readable until a restart.

        The kernel reports a lost write once and then calls the page clean, so that the next sync would succeed.
        """
        try:
            yield
        except OSError:
            self.abort()
            raise

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise WriterClosedError(f"ingest {self._ref}: the writer is closed", hint="open another for the same ref")
