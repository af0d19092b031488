"""Ingests: unfinished writes on disk, in containerd's form, resumable by any process.

    ingest/<sha256 of the ref>/ref         the ingest's name
                              /data        the bytes so far; its size is the offset
                              /startedat   RFC 3339 with nanoseconds
                              /updatedat   the same
                              /total       decimal, only when known

The order of a commit is the store's promise: data synced, size and digest verified, made read-only, renamed, folder
synced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from imagestore.content.api import IngestStatus
from imagestore.content.disk import make_directory, replace_text, sync_directory, translated
from imagestore.content.filling import LEAST_LARGE_BYTES, Filling
from imagestore.digest import Digest, new_hash
from imagestore.errors import AlreadyExistsError, DigestMismatchError, SizeMismatchError, StoreCorruptError, StoreError
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from imagestore.content.filling import Buffers, ReadInto
    from imagestore.content.locks import FileLock

_READ_BYTES: Final = 1024 * 1024


def ingest_name(ref: str) -> str:
    """The folder of an ingest: lower-case sha256 of its name, whatever the content's algorithm.

    >>> ingest_name("hello-ref")[:12]
    '9e2b3b72513e'
    """
    return hashlib.sha256(ref.encode()).hexdigest()


def read_status(directory: Path) -> IngestStatus | None:
    """What an ingest's folder says; None when it isn't one (or is just being made or removed)."""
    try:
        ref = (directory / "ref").read_text("utf-8")
        data = os.stat(directory / "data")
    except (OSError, UnicodeDecodeError):
        return None
    return IngestStatus(
        ref=ref,
        offset=data.st_size,
        total=_read_total(directory),
        started_at=_read_time(directory / "startedat", data.st_mtime),
        updated_at=max(_read_time(directory / "updatedat", 0.0), data.st_mtime),
    )


def read_remains(directory: Path) -> IngestStatus | None:
    """A folder that has lost (or never got) its name, as an ingest named like the folder; None when it is gone."""
    try:
        with os.scandir(directory) as entries:
            files = [entry.stat(follow_symlinks=False) for entry in entries]
        made_at = os.stat(directory).st_mtime
    except OSError:
        return None
    updated_at = max([made_at, *(each.st_mtime for each in files)])
    return IngestStatus(directory.name, sum(each.st_size for each in files), 0, made_at, updated_at)


def remove_ingest(directory: Path) -> None:
    """Throw an ingest's folder away, its data last, so that a half removed one still says how big it is."""
    for name in ("ref", "startedat", "updatedat", "total"):
        reach("ingest-remove")
        with contextlib.suppress(OSError):
            os.unlink(directory / name)
    reach("ingest-remove-data")
    shutil.rmtree(directory, ignore_errors=True)


class LocalIngestWriter:
    """Writes one ingest; made by LocalContentStore.writer(), which already holds the lock.

    Args:
        directory: the ingest's folder; made, or resumed when it holds the same name and total.
        blobs: the folder of all blobs.
        ref: name of the ingest.
        algorithm: used for hashing on the way.
        total: size in bytes, 0 when unknown.
        lock: released by close().
        buffers: for filling.
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
        buffers: Buffers,
    ) -> None:
        self.directory = directory
        self._data = directory / "data"
        self._blobs = blobs
        self._ref = ref
        self._lock = lock
        self._buffers = buffers
        self._total = total
        self._algorithm = algorithm
        self._hash = new_hash(algorithm)
        self._offset = 0
        # Whether the file lacks bytes that were hashed.
        self._is_behind = False
        self._descriptor = -1
        with translated("open ingest", directory):
            if not self._can_resume(total):
                self._create(total)
            self._descriptor = os.open(self._data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            self._rehash()

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._offset

    @property
    def digest(self) -> Digest:
        """What the bytes so far hash to."""
        return Digest(self._algorithm, self._hash.hexdigest())

    def hash_with(self, algorithm: str) -> None:
        """Hash with another algorithm from now on; what is there is read again.

        Raises:
            InvalidDigestError: the algorithm can't be verified here.
        """
        if algorithm == self._algorithm:
            return
        self._hash, self._algorithm, self._offset = new_hash(algorithm), algorithm, 0
        with translated("read ingest", self._data):
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._rehash()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append bytes."""
        rest = memoryview(chunk)
        with translated("write ingest", self._data):
            while rest:
                reach("ingest-write")
                written = os.write(self._descriptor, rest)
                self._hash.update(rest[:written])
                self._offset += written
                rest = rest[written:]

    def fill(self, readinto: ReadInto, *, advanced: Callable[[int], None]) -> None:
        """Append what a source gives until its end; what came before it fails is kept."""
        is_large = self._total - self._offset >= LEAST_LARGE_BYTES
        filling = Filling(self._data, self._descriptor, self._offset, digester=self._hash, buffers=self._buffers)
        with translated("write ingest", self._data):
            try:
                (filling.large if is_large else filling.small)(readinto, advanced)
            except OSError:
                self._is_behind = True
                raise
            finally:
                self._offset = os.lseek(self._descriptor, filling.offset, os.SEEK_SET)

    def truncate(self) -> None:
        """Start again from nothing."""
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
        with translated("write ingest", self._data):
            if not share(self._descriptor):
                return False
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._rehash()
            return True

    def commit(self, expected: Digest, size: int) -> None:
        """Verify and publish, then close."""
        if self._is_behind:
            raise StoreError(f"ingest {self._ref}: writing it failed before", hint="open it again and resume")
        if self._offset != size:
            raise SizeMismatchError(str(expected), expected=size, actual=self._offset)
        if self.digest != expected:
            raise DigestMismatchError(f"ingest {self._ref}", expected=str(expected), actual=str(self.digest))
        with translated("commit", self._data):
            reach("commit-sync")
            os.fsync(self._descriptor)
            folder = self._blobs / expected.algorithm
            make_directory(folder)
            target = folder / expected.encoded
            found = _kind(target)
            if found is not None:
                if not stat.S_ISREG(found):
                    raise StoreCorruptError(f"{target}: something that is no file stands in a blob's place")
                self.abort()
                raise AlreadyExistsError(f"content {expected} is in the store already")
            reach("commit-protect")
            os.fchmod(self._descriptor, 0o444)
            reach("commit-rename")
            os.rename(self._data, target)
            reach("commit-sync-folder")
            sync_directory(folder)
            reach("commit-clean")
            self.abort()

    def abort(self) -> None:
        """Throw the ingest away and close."""
        remove_ingest(self.directory)
        self._let_go()

    def close(self) -> None:
        """Let go; what is written stays and can be resumed."""
        if self._descriptor < 0:
            return
        # The bytes are kept even if the note about when they came can't be.
        with contextlib.suppress(OSError):
            reach("ingest-close")
            os.fsync(self._descriptor)
            replace_text(self.directory / "updatedat", _now())
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.release()

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
        now = _now()
        replace_text(self.directory / "startedat", now)
        replace_text(self.directory / "updatedat", now)
        if total > 0:
            replace_text(self.directory / "total", str(total))
        replace_text(self.directory / "ref", self._ref)

    def _rehash(self) -> None:
        """Read what is there, so that the running digest covers it; a hash's state can't be kept on disk."""
        while chunk := os.read(self._descriptor, _READ_BYTES):
            self._hash.update(chunk)
            self._offset += len(chunk)


def _kind(path: Path) -> int | None:
    """The mode of whatever has this name, in one look, since a collection may take it between two; None: nothing."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


def _now() -> str:
    nanoseconds = time.time_ns()
    moment = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    fraction = f"{nanoseconds % 10**9:09d}".rstrip("0")
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") + "Z"


def _read_total(directory: Path) -> int:
    try:
        text = (directory / "total").read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _read_time(path: Path, default: float) -> float:
    try:
        text = path.read_text("ascii")
        whole, _, fraction = text.removesuffix("Z").partition(".")
        moment = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp() + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)
    except (OSError, ValueError):
        return default
