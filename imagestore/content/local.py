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
from imagestore.content.blob_files import LOST, damage_named, entries, info_of, is_name, names, open_blob
from imagestore.content.delete import LocalDeleter
from imagestore.content.disk import disk_of
from imagestore.content.ingest import LocalIngestWriter
from imagestore.content.ingests import IngestFolder, WithIngests, read_status
from imagestore.content.small_writer import SMALL_BYTES, LocalSmallBlobs, SmallWriter
from imagestore.errors import AlreadyExistsError, ContentNotFoundError, IntegrityError, SizeMismatchError
from imagestore.oci.digest import Digest, Verifier, verify
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach
from imagestore.util.files import make_directories, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from imagestore.util.cancel import CancelToken
    from imagestore.util.disk_reserve import Ballast
    from imagestore.util.file_locks import FileLock

_HASHED_BYTES: Final = 1024 * 1024
_MOST_SMALL_WRITERS: Final = 24


class LocalContentStore(WithIngests):
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
        self.ingests = IngestFolder(root / "ingest", locks)
        self._blobs_text = os.fspath(self._blobs)
        # Bounds what whole blobs in memory take, however many pulls one store runs.
        self._small_writers = threading.BoundedSemaphore(_MOST_SMALL_WRITERS)
        with translated("make the content folders", root):
            make_directories((self._blobs / "sha256", self.ingests.path, locks))

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

    def sizes(self, digests: Collection[Digest]) -> dict[Digest, int]:
        """Bytes of those blobs that are here."""
        return {each: found.size for each in digests if each.is_verifiable and (found := self.find(each)) is not None}

    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't here."""
        status = self._status(digest)
        return None if status is None else info_of(digest, status)

    def _status(self, digest: Digest) -> os.stat_result | None:
        path = self._blob_path(digest)
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
        path = Path(self._blob_path(digest))
        if not self.exists(digest):
            raise self._missing(digest)
        return path

    def open(self, digest: Digest) -> BinaryIO:
        """The blob, opened for reading."""
        path = self._blob_path(digest)
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
        with self.open(digest) as blob, translated("read", self._blob_path(digest)):
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
                yield info_of(Digest(algorithm, entry.name), status)

    def make_durable(self, algorithms: Iterable[str]) -> None:
        """Sync the folders of blobs, so that all names survive a loss of power, those that other processes gave too."""
        for algorithm in sorted(algorithms):
            folder = self._blobs / algorithm
            with translated("make durable", folder), contextlib.suppress(FileNotFoundError):
                reach("names-sync")
                sync_directory(folder)

    def names(self) -> Iterator[str]:
        """Every blob's digest in text form, in no particular order; no file is looked at."""
        return names(self._blobs)

    def deleter(self) -> LocalDeleter:
        """For deleting many blobs under a lock, as a context manager entered before that lock is taken."""
        return LocalDeleter(self._blobs)

    def delete(self, digest: Digest) -> int:
        """Remove a blob and return the bytes freed."""
        with self.deleter() as files:
            return files.delete(str(digest)) or 0

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found.

        What another process has put in its place since stays: a damaged blob is repaired by a new file.
        """
        verifier = Verifier(digest)
        try:
            file = self.open(digest)
        except ContentNotFoundError:
            if os.path.islink(self._blob_path(digest)):  # in its place
                self.delete(digest)
            return False
        except IntegrityError:  # the disk can't even open it
            self.delete(digest)
            return False
        with file, translated("read", path := self._blob_path(digest)):
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
        """Open an ingest, waiting while another writer (thread or process) holds it."""
        name, lock = self.ingests.lock(ref, cancel, on_wait)
        try:
            self._check_missing(expected)
            return self._ingest(name, ref, expected.algorithm, total, lock, cancel)
        except BaseException:
            lock.release()
            raise

    def small_blobs(self, cancel: CancelToken) -> LocalSmallBlobs:
        """What writes the small blobs of one pull or import."""
        return LocalSmallBlobs(
            self.ingests,
            self._blobs,
            check_room=self._check_room,
            open_writer=self._small_writer,
            cancel=cancel,
        )

    def _small_writer(
        self,
        small_blobs: LocalSmallBlobs,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> LocalIngestWriter | SmallWriter:
        """See LocalSmallBlobs.writer()."""
        name, lock = self.ingests.lock(ref, cancel, on_wait)
        try:
            self._check_missing(expected)
            as_ingest = functools.partial(self._ingest, name, ref, expected.algorithm, total, lock, cancel)
            is_small = 0 < total <= SMALL_BYTES  # 0: unknown
            if not is_small or self.ingests.is_begun(name) or not self._small_writers.acquire(blocking=False):
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
            self.ingests.path / name,
            self._blobs,
            ref=ref,
            algorithm=algorithm,
            total=total,
            lock=lock,
            check_room=self._check_room,
            cancel=cancel,
        )

    def try_writer(self, ref: str, *, algorithm: str, total: int) -> LocalIngestWriter:
        """Open an ingest whose digest isn't known yet, unless another writer holds it."""
        self.make_room()
        name, lock = self.ingests.try_lock(ref)
        try:
            with translated("open ingest", folder := self.ingests.path / name):
                status = read_status(folder)
            if status is not None and not status.total and status.offset > total:
                # It was begun without one, so this one may be wrong: the commit checks it, and the bytes stay.
                total = 0
            return self._ingest(name, ref, algorithm, total, lock)
        except BaseException:
            lock.release()
            raise

    def adopt(self, digest: Digest, size: int, *, cancel: CancelToken) -> Adoption | None:
        """Take a blob from a source, hashed first; None when no source has it whole, or another writer brought it."""
        if not digest.is_verifiable:
            return None
        open_writer = functools.partial(self.writer, f"adopt-{digest}", expected=digest, total=size, cancel=cancel)
        return adopt(self._sources, digest, size, Path(self._blob_path(digest)), open_writer, cancel)

    def is_at_source(self, digest: Digest, size: int) -> bool:
        """Whether a source has a file of this name and size; adopt() hashes it before it counts."""
        return digest.is_verifiable and is_at(self._sources, digest, size)

    def free_bytes(self) -> int:
        """Space where content lives, of what an unprivileged writer has; without end where the disk counts none."""
        disk = self.disk()
        return disk.free_bytes if disk.total_bytes else sys.maxsize

    def disk(self) -> Disk:
        """The file system the folder is on."""
        return disk_of(self.root)

    def make_room(self) -> None:
        """Keep space back for removals again, where they gave it up and there is some."""
        if self._ballast is not None:
            self._ballast.keep()

    def check_room(self) -> None:
        """Before a pull or an import begins: its lease, and what is unpacked to be read, need space too."""
        self.make_room()
        with translated("write content", self.root):
            self._check_room()

    def _check_room(self) -> None:
        if self._ballast is not None:
            self._ballast.check()

    def _missing(self, digest: Digest) -> ContentNotFoundError:
        return ContentNotFoundError(f"content {digest} is not in the store at {self.root}")

    def _blob_path(self, digest: Digest) -> str:
        if not digest.is_verifiable:
            raise ContentNotFoundError(f"content {digest}: algorithm {digest.algorithm} can't be verified or stored")
        return f"{self._blobs_text}/{digest.algorithm}/{digest.encoded}"
