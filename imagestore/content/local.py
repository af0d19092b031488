"""The content store on disk, in containerd's local layout byte for byte.

    <root>/blobs/<algorithm>/<hex>    0444, complete and verified from the moment the name exists
    <root>/ingest/<hash of the ref>/  unfinished writes, see ``ingest``

The folder itself is the truth about what content exists; nothing else has to agree for a reader.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore.content.adopt import adopt, is_at
from imagestore.content.api import Adoption, ContentInfo, Disk
from imagestore.content.blob_files import LOST, damage_named, entries, is_name, names, open_blob
from imagestore.content.delete import Deleter
from imagestore.content.disk import disk_of, make_directories, translated
from imagestore.content.ingest import LocalIngestWriter
from imagestore.content.ingests import Ingests, ingest_name, read_status
from imagestore.content.small_writer import SMALL_BYTES, SmallBlobs, SmallWriter
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    IntegrityError,
    InvalidInputError,
    SizeMismatchError,
)
from imagestore.oci.digest import Digest, Verifier, verify
from imagestore.util.failpoint import reach
from imagestore.util.files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from imagestore.content.locks import FileLock
    from imagestore.util.cancel import CancelToken
    from imagestore.util.disk_reserve import Ballast

_HASHED_BYTES: Final = 1024 * 1024
_MOST_SMALL_WRITERS: Final = 24


class LocalContentStore(Ingests):
    """Content in a folder that any number of processes share.

    Args:
        root: holds ``blobs`` and ``ingest``; made when missing.
        locks: folder for lock files, on the same machine; made when missing.
        sources: folders that hold ``blobs`` to adopt from; only read.
        ballast: while it is given up, nothing is written.

    Raises:
        StoreReadOnlyError, StoreFullError, StoreError: the folders can't be made.
    """

    def __init__(
        self, root: Path, locks: Path, *, sources: Sequence[Path] = (), ballast: Ballast | None = None
    ) -> None:
        self.root = root
        self._sources = tuple(sources)
        self._ballast = ballast
        self._blobs = root / "blobs"
        super().__init__(root / "ingest", locks)
        # Joined as text: a path object costs more than the look it is made for.
        self._blobs_text = os.fspath(self._blobs)
        # Bounds what whole blobs in memory take, however many pulls one store runs.
        self._small_writers = threading.BoundedSemaphore(_MOST_SMALL_WRITERS)
        with translated("make the content folders", root):
            make_directories((self._blobs / "sha256", self._ingests, locks))

    @property
    def name(self) -> str:
        """The folder's path."""
        return os.fspath(self.root)

    @property
    def scratch(self) -> Path:
        """The same folder, so that what is unpacked may become content without being copied."""
        return self.root

    def exists(self, digest: Digest) -> bool:
        """Whether the blob is here."""
        return digest.is_verifiable and self._status(digest) is not None

    def missing(self, digests: Collection[Digest]) -> list[Digest]:
        """Those of some blobs that aren't here, in their order."""
        return [digest for digest in digests if not self.exists(digest)]

    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't here."""
        status = self._status(digest)
        return None if status is None else ContentInfo(digest, status.st_size, status.st_mtime)

    def _status(self, digest: Digest) -> os.stat_result | None:
        path = self._blob_text(digest)
        # One look: between two, a collection in another process may take the file.
        with translated("look at", path):
            try:
                status = os.lstat(path)  # the bytes behind a link weren't verified
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError:
                with damage_named(digest):
                    raise
        return status if stat.S_ISREG(status.st_mode) else None

    def info(self, digest: Digest) -> ContentInfo:
        """Size and time of a blob."""
        found = self.find(digest)
        if found is None:
            raise self._missing(digest)
        return found

    def path(self, digest: Digest) -> Path:
        """Where the blob's file is."""
        path = self._blob(digest)
        if not self.exists(digest):
            raise self._missing(digest)
        return path

    def open(self, digest: Digest) -> BinaryIO:
        """The blob, opened for reading."""
        path = self._blob_text(digest)
        with translated("open", path):
            try:
                return open_blob(path, digest)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise self._missing(digest) from error
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise self._missing(digest) from error
                raise

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        """A small blob whole, hashed again on the way."""
        with self.open(digest) as blob, translated("read", self._blob_text(digest)):
            data = blob.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise SizeMismatchError(f"content {digest}", expected=limit_bytes, actual=len(data))
        verify(data, digest, what=f"content {digest} at rest")
        return data

    def walk(self) -> Iterator[ContentInfo]:
        """Every blob, in no particular order; files that aren't named by a digest are left alone."""
        for algorithm, entry in entries(self._blobs):
            if not is_name(algorithm, entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # deleted since it was listed
                continue
            except OSError as error:
                if error.errno not in LOST:
                    with translated("look at", entry.path):
                        raise
                # One broken file hides none of the others, and reading it is an error.
                yield ContentInfo(Digest(algorithm, entry.name), 0, 0.0)
                continue
            if stat.S_ISREG(status.st_mode):
                yield ContentInfo(Digest(algorithm, entry.name), status.st_size, status.st_mtime)

    def make_durable(self, algorithms: Iterable[str]) -> None:
        """See that every name below blobs/ outlasts a loss of power, also those that others gave a moment ago."""
        for algorithm in sorted(algorithms):
            folder = self._blobs / algorithm
            with translated("make durable", folder), contextlib.suppress(FileNotFoundError):
                reach("names-sync")
                sync_directory(folder)

    def names(self) -> Iterator[str]:
        """Every blob's digest in text form, in no particular order; no file is looked at."""
        return names(self._blobs)

    def deleter(self) -> Deleter:
        """For deleting many blobs under a lock, as a context manager entered before that lock is taken."""
        return Deleter(self._blobs)

    def delete(self, digest: Digest) -> int:
        """Remove a blob and return the bytes freed; 0 when it wasn't there."""
        with self.deleter() as files:
            return files.delete(str(digest)) or 0

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found.

        What another process has put in its place since stays: a damaged blob is repaired by a new file.

        Raises:
            StoreError: it can't be read for want of permission, or not be removed.
        """
        verifier = Verifier(digest)
        try:
            file = self.open(digest)
        except ContentNotFoundError:
            if os.path.islink(self._blob_text(digest)):  # in its place
                self.delete(digest)
            return False
        except IntegrityError:  # the disk can't even open it
            self.delete(digest)
            return False
        with file, translated("read", path := self._blob_text(digest)):
            try:
                while chunk := file.read(_HASHED_BYTES):
                    verifier.update(chunk)
                verifier.finish()
            except IntegrityError:
                # While it is open its number belongs to no other file.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.lstat(path), os.fstat(file.fileno())):
                        self.delete(digest)
                return False
        return True

    def writer(
        self,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> LocalIngestWriter:
        """Open an ingest, waiting while another writer (thread or process) holds it.

        Raises:
            AlreadyExistsError: the blob is here, perhaps because the other writer finished it.
            OperationCancelledError: cancelled while waiting.
        """
        name, lock = self._locked(ref, cancel, on_wait)
        try:
            self._check_missing(expected)
            return self._ingest(name, ref, expected.algorithm, total, lock, cancel)
        except BaseException:
            lock.release()
            raise

    def small_blobs(self, cancel: CancelToken) -> SmallBlobs:
        """For storing the small blobs of one pull or import, as a context manager; a lease must hold each already."""
        return SmallBlobs(
            self._ingests,
            self._blobs,
            self._locks,
            check_room=self._check_room,
            open_writer=self._small_writer,
            cancel=cancel,
        )

    def _small_writer(
        self,
        small_blobs: SmallBlobs,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> LocalIngestWriter | SmallWriter:
        """See SmallBlobs.writer()."""
        name, lock = self._locked(ref, cancel, on_wait)
        try:
            self._check_missing(expected)
            as_ingest = functools.partial(self._ingest, name, ref, expected.algorithm, total, lock, cancel)
            if total > SMALL_BYTES or self._is_begun(name) or not self._small_writers.acquire(blocking=False):
                return as_ingest()
            try:
                return SmallWriter(
                    ref,
                    expected,
                    total,
                    lock=lock,
                    blobs=small_blobs,
                    as_ingest=as_ingest,
                    on_end=self._small_writers.release,
                )
            except BaseException:
                self._small_writers.release()
                raise
        except BaseException:
            lock.release()
            raise

    def _check_missing(self, expected: Digest) -> None:
        if self.exists(expected):
            raise AlreadyExistsError(f"content {expected} is in the store already")

    def _ingest(
        self, name: str, ref: str, algorithm: str, total: int, lock: FileLock, cancel: CancelToken | None = None
    ) -> LocalIngestWriter:
        return LocalIngestWriter(
            self._ingests / name,
            self._blobs,
            ref=ref,
            algorithm=algorithm,
            total=total,
            lock=lock,
            check_room=self._check_room,
            cancel=cancel,
        )

    def try_writer(self, ref: str, *, algorithm: str, total: int) -> LocalIngestWriter:
        """Open an ingest whose digest isn't known yet, unless another writer holds it.

        Raises:
            IngestLockedError: another writer holds it.
            InvalidInputError: no name, or an algorithm that can't be verified.
        """
        if not ref:
            raise InvalidInputError("an ingest needs a name")
        self.make_room()
        name = ingest_name(ref)
        lock = self._lock(name)
        if not lock.try_acquire():
            raise self._busy(ref)
        try:
            with translated("open ingest", self._ingests / name):
                status = read_status(self._ingests / name)
            if status is not None and not status.total and status.offset > total:
                # It was begun without one, so this one may be the mistake: the commit tells, and what came stays.
                total = 0
            return self._ingest(name, ref, algorithm, total, lock)
        except BaseException:
            lock.release()
            raise

    def adopt(self, digest: Digest, size: int, *, cancel: CancelToken) -> Adoption | None:
        """Take a blob from a source, hashed first; None when no source has it whole (or it came otherwise since then).

        Raises:
            StoreError: the store can't be written.
            OperationCancelledError: cancelled.
        """
        if not self._sources or not digest.is_verifiable:
            return None
        return adopt(self._sources, digest, size, self._blob(digest), self._adopting_writer, cancel)

    def is_at_source(self, digest: Digest, size: int) -> bool:
        """Whether a source has a file of this name and size; adopt() hashes it before it counts."""
        if not self._sources or not digest.is_verifiable:
            return False
        return is_at(self._sources, digest, size)

    def _adopting_writer(self, digest: Digest, size: int, cancel: CancelToken) -> LocalIngestWriter:
        return self.writer(f"adopt-{digest}", expected=digest, total=size, cancel=cancel)

    def free_bytes(self) -> int:
        """Space where content lives, of what an unprivileged writer has; without end where the disk counts none."""
        with translated("look at the free space", self.root):
            status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize if status.f_blocks else sys.maxsize

    def disk(self) -> Disk:
        """The file system the folder is on."""
        return disk_of(self.root)

    def make_room(self) -> None:
        """Keep space back for removals again, where they gave it up and there is some."""
        if self._ballast is not None:
            self._ballast.keep()

    def check_room(self) -> None:
        """Before a pull or an import begins: its lease, and what is unpacked to be read, need space too.

        Raises:
            StoreFullError: there is only the space that a removal was given.
        """
        self.make_room()
        with translated("write content", self.root):
            self._check_room()

    def _check_room(self) -> None:
        if self._ballast is not None:
            self._ballast.check()

    def _missing(self, digest: Digest) -> ContentNotFoundError:
        return ContentNotFoundError(f"content {digest} is not in the store at {self.root}")

    def _blob(self, digest: Digest) -> Path:
        return Path(self._blob_text(digest))

    def _blob_text(self, digest: Digest) -> str:
        if not digest.is_verifiable:
            raise ContentNotFoundError(f"content {digest}: algorithm {digest.algorithm} can't be verified or stored")
        return f"{self._blobs_text}/{digest.algorithm}/{digest.encoded}"
