"""A folder of whole, verified copies of content, within a quota: the least recently used are deleted.

A copy makes room for its bytes as they come, so that one that fails, or is larger than the quota, deletes no others.
A growing copy has a file with another suffix, and is renamed when it is whole. Growing files that a killed process left
are deleted at the start. A reader that has a deleted copy open can read it to its end.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidDigestError, StoreBusyError
from imagestore.oci import Digest
from imagestore.util.disk_errors import translated
from imagestore.util.file_locks import FileLock
from imagestore.util.files import make_directory

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

log = logging.getLogger(__name__)

_GROWING: Final = ".part"
_LOCK: Final = "lock"
#: How exactly times of use are kept over a restart.
_EXACT_SECONDS: Final = 60.0


@dataclass(slots=True)
class GrowingCopy:
    """A copy that isn't whole yet.

    Attributes:
        digest: what it will be.
        size: how many bytes it will have.
        path: its file.
        file: the same, open for writing without a buffer.
        counted: how many of its bytes count against the quota.
    """

    digest: Digest
    size: int
    path: str
    file: BinaryIO
    counted: int = 0


@dataclass(slots=True)
class _Whole:
    size: int
    used_at: float


class CopyFolder:
    """The folder's files and which of them go first; for one process, and one thread at a time. Close it.

    Args:
        path: made when missing.
        quota_bytes: what copies may take, growing ones included. A larger copy is made all the same for its readers,
            doesn't count, and is deleted when it is whole.

    Raises:
        StoreBusyError: another process has the folder.
        StoreError: it can't be made or read.
    """

    def __init__(self, path: Path, quota_bytes: int) -> None:
        self._path = path
        self._quota = quota_bytes
        make_directory(path, 0o700)
        self._lock = FileLock(str(path / _LOCK))
        if not self._lock.try_acquire():
            raise StoreBusyError(
                f"{path}: another process has its copies here", hint="give each replica its own folder"
            )
        #: The one that is deleted first comes first.
        self._whole: OrderedDict[Digest, _Whole] = OrderedDict()
        self._growing_bytes = 0
        self._used = 0
        try:
            self._read()
            self._evict()
        except BaseException:
            self._lock.release()
            raise

    @property
    def used_bytes(self) -> int:
        """What whole copies take."""
        return self._used

    def size(self, digest: Digest) -> int | None:
        """The size of a whole copy; None if there is none."""
        found = self._whole.get(digest)
        return None if found is None else found.size

    def open(self, digest: Digest) -> BinaryIO | None:
        """Open a whole copy, and note its use; None if there is none."""
        found = self._whole.get(digest)
        if found is None:
            return None
        path = self._file(digest)
        try:
            file = open(path, "rb")  # noqa: SIM115 - the caller's
        except OSError as error:
            log.warning("a copy can't be read: %s", error, extra={"path": path})
            self.drop(digest)
            return None
        if os.fstat(file.fileno()).st_size != found.size:
            log.warning("a copy was cut, and is made again", extra={"path": path})
            file.close()
            self.drop(digest)
            return None
        self._whole.move_to_end(digest)
        if not 0 <= time.time() - found.used_at < _EXACT_SECONDS:
            found.used_at = time.time()
            with translated("touch", path):
                os.utime(file.fileno())
        return file

    def begin(self, digest: Digest, size: int) -> GrowingCopy:
        """Make the file of a copy. grow() it, and finish() or abandon() it.

        Raises:
            StoreError: it can't be made.
        """
        path = f"{self._file(digest)}.{secrets.token_hex(8)}{_GROWING}"
        with translated("make", path):
            file = open(path, "xb", buffering=0)  # noqa: SIM115 - the caller's
        return GrowingCopy(digest, size, path, file)

    def grow(self, copy: GrowingCopy, written: int) -> None:
        """Note how many bytes of a copy are written, and delete others to make room for them."""
        if copy.size <= self._quota:
            self._growing_bytes += written - copy.counted
            copy.counted = written
            self._evict()

    def finish(self, copy: GrowingCopy) -> None:
        """Rename a copy that is whole, verified and synced.

        Raises:
            StoreError: it can't be renamed; abandon() it.
        """
        if copy.size > self._quota:
            self.abandon(copy)
            return
        with translated("rename", copy.path):
            os.rename(copy.path, self._file(copy.digest))
        copy.file.close()
        self._growing_bytes -= copy.counted
        before = self._whole.pop(copy.digest, None)
        self._whole[copy.digest] = _Whole(copy.size, time.time())
        self._used += copy.size - (before.size if before is not None else 0)
        self._evict()

    def abandon(self, copy: GrowingCopy) -> None:
        """Delete a copy that isn't going to be whole."""
        copy.file.close()
        self._growing_bytes -= copy.counted
        _unlink(copy.path)

    def drop(self, digest: Digest) -> None:
        """Delete a whole copy, if there is one."""
        found = self._whole.pop(digest, None)
        if found is not None:
            self._used -= found.size
            _unlink(self._file(digest))

    def close(self) -> None:
        """Release the folder's lock."""
        self._lock.release()

    def _file(self, digest: Digest) -> str:
        return str(self._path / f"{digest.algorithm}-{digest.encoded}")

    def _read(self) -> None:
        """Find copies, and delete growing ones that a killed process left."""
        found = []
        with translated("read", self._path), os.scandir(self._path) as entries:
            for entry in entries:
                digest = _digest_of(entry.name)
                if entry.name.endswith(_GROWING):
                    os.unlink(entry.path)
                elif digest is not None and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, digest, status.st_size))
        for used_at, digest, size in sorted(found):
            self._whole[digest] = _Whole(size, used_at)
            self._used += size

    def _evict(self) -> None:
        while self._whole and self._used + self._growing_bytes > self._quota:
            self.drop(next(iter(self._whole)))


def _digest_of(name: str) -> Digest | None:
    try:
        digest = Digest.parse(name.replace("-", ":", 1))
    except InvalidDigestError:
        return None
    return digest if digest.is_verifiable else None


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        # The next start finds it again.
        log.warning("a copy can't be deleted: %s", error, extra={"path": path})
