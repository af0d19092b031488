"""A store's content in an S3-compatible bucket; what is being written is in a folder of this machine until it is whole.

An upload can't be resumed by another process, so an ingest is a file, as in the embedded store, and goes to the bucket
when it is committed: hashed once more on the way, and visible only if it is right. Where the bucket fails then, the
ingest stays and the next writer needn't fetch it again.

A prefix belongs to one store: what its records don't name is collected, also what another program put there. So the
store's name is written into the prefix, and a store with another name is refused.
"""

from __future__ import annotations

import io
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Deleted, Disk
from imagestore.content.blob_files import is_name
from imagestore.content.bucket import Bucket
from imagestore.content.bucket_files import BlobReader, BucketIngestWriter
from imagestore.content.local import LocalContentStore
from imagestore.content.locks import FileLock
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    IntegrityError,
    PreconditionError,
    SizeMismatchError,
    StoreError,
    UnsupportedError,
)
from imagestore.oci.digest import Digest, Verifier, verify
from imagestore.util.cancel import CancelToken
from imagestore.util.files import read_regular, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.config.model import BucketSettings
    from imagestore.content.api import Adoption, ContentInfo, IngestStatus, SmallBlob
    from imagestore.content.bucket import BucketReader

_PIECE_BYTES: Final = 1024 * 1024
_MOST_NAME_BYTES: Final = 200
#: Small blobs that are sent at once.
_THREADS: Final = 8


class BucketContentStore:
    """A ContentStore over a bucket; thread-safe, for any number of processes of this machine.

    Args:
        settings: where the bucket is.
        folder: for ingests and this store's name; made when missing.

    Raises:
        ConfigError: the settings can't be used, there is no such bucket, or obstore isn't installed.
        PreconditionError: the prefix is another store's, or the credentials are refused.
        StoreError: the bucket can't be asked, or the folder not be made.
    """

    def __init__(self, settings: BucketSettings, folder: Path) -> None:
        self._bucket = Bucket(settings)
        self._bucket.check()
        self._ingests = LocalContentStore(folder / "content", folder / "locks")
        name = _name_in(folder)
        owner = self._bucket.claim(name)
        if owner != name:
            raise PreconditionError(
                f"{self.name}: belongs to another store ({owner[:40]!r})",
                hint="give this store a prefix of its own; if the other one is lost, and this one has its records,"
                f" write that name to {folder / 'name'}",
            )

    @property
    def name(self) -> str:
        """The bucket's URL."""
        return self._bucket.url

    @property
    def scratch(self) -> Path:
        """The folder of ingests."""
        return self._ingests.scratch

    def exists(self, digest: Digest) -> bool:
        """Whether the blob is there."""
        return self.find(digest) is not None

    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't there."""
        return self._bucket.find(digest) if digest.is_verifiable else None

    def info(self, digest: Digest) -> ContentInfo:
        """Size and time of a blob."""
        found = self.find(digest)
        if found is None:
            raise ContentNotFoundError(f"content {digest} is not in {self.name}")
        return found

    def path(self, digest: Digest) -> Path:
        """Nowhere.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"content {digest}: is in {self.name}, and no file of this machine")

    def open(self, digest: Digest) -> BinaryIO:
        """The blob, opened for reading from any position."""
        return io.BufferedReader(BlobReader(self._bucket, digest, self._opened(digest)), _PIECE_BYTES)

    def _opened(self, digest: Digest) -> BucketReader:
        if not digest.is_verifiable:
            raise ContentNotFoundError(f"content {digest}: algorithm {digest.algorithm} can't be verified or stored")
        return self._bucket.open(digest, None, offset=0, cancel=CancelToken())

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        """A small blob whole, hashed again on the way."""
        with self._opened(digest) as reader:
            if reader.size > limit_bytes:
                raise SizeMismatchError(f"content {digest}", expected=limit_bytes, actual=reader.size)
            data = b"".join(_pieces(reader))
        verify(data, digest, what=f"content {digest} at rest")
        return data

    def walk(self) -> Iterator[ContentInfo]:
        """Every blob, in no particular order."""
        return self._bucket.walk()

    def names(self) -> Iterator[str]:
        """Every blob's digest in text form, in no particular order."""
        return (str(info.digest) for info in self.walk())

    def writer(
        self,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> BucketIngestWriter:
        """Open an ingest, waiting while another writer (thread or process of this machine) holds it."""
        inner = self._ingests.writer(ref, expected=expected, total=total, cancel=cancel, on_wait=on_wait)
        try:
            if self.exists(expected):
                inner.abort()
                raise AlreadyExistsError(f"content {expected} is in the store already")
        except BaseException:
            inner.close()
            raise
        return BucketIngestWriter(self._bucket, inner, ref, cancel)

    def try_writer(self, ref: str, *, algorithm: str, total: int) -> BucketIngestWriter:
        """Open an ingest whose digest isn't known yet, unless another writer holds it."""
        inner = self._ingests.try_writer(ref, algorithm=algorithm, total=total)
        return BucketIngestWriter(self._bucket, inner, ref, CancelToken())

    def small_blobs(self, cancel: CancelToken) -> BucketSmallBlobs:
        """What writes the small blobs of one pull or import."""
        return BucketSmallBlobs(self, self._bucket, cancel)

    def status(self, ref: str) -> IngestStatus | None:
        """One unfinished ingest of this machine, or None."""
        return self._ingests.status(ref)

    def statuses(self) -> Iterator[IngestStatus]:
        """Every unfinished ingest of this machine."""
        return self._ingests.statuses()

    def abort(self, ref: str) -> bool:
        """Throw an ingest away unless a writer holds it; say whether it is gone."""
        return self._ingests.abort(ref)

    def stale_ingests(self, before: float, *, beyond: float = float("inf")) -> Iterator[IngestStatus]:
        """Ingests that weren't touched since ``before``, or only ``beyond``, in seconds since 1970."""
        return self._ingests.stale_ingests(before, beyond=beyond)

    def abort_stale(self, ingest: IngestStatus) -> bool:
        """Throw a stale ingest away unless a writer holds it; say whether it is gone."""
        return self._ingests.abort_stale(ingest)

    def clear_locks(self) -> None:
        """Remove what killed processes left of their locks."""
        self._ingests.clear_locks()

    def adopt(self, digest: Digest, size: int, *, cancel: CancelToken) -> Adoption | None:
        """None: there are no other stores to take a blob from."""

    def is_at_source(self, digest: Digest, size: int) -> bool:
        """False, as adopt()."""
        return False

    def deleter(self) -> BucketDeleter:
        """For deleting many blobs under a lock."""
        return BucketDeleter(self._bucket)

    def delete(self, digest: Digest) -> int:
        """Remove a blob and return the bytes freed; 0 when it wasn't there."""
        return self._bucket.delete(digest) or 0 if digest.is_verifiable else 0

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found."""
        verifier = Verifier(digest)
        try:
            reader = self._opened(digest)
        except ContentNotFoundError:
            return False
        with reader:
            for piece in _pieces(reader):
                verifier.update(piece)
        try:
            verifier.finish()
        except IntegrityError:
            if self._bucket.e_tag(digest) == reader.e_tag:  # and it wasn't repaired since
                self.delete(digest)
            return False
        return True

    def make_durable(self, algorithms: Iterable[str]) -> None:
        """Nothing: what the bucket took is durable."""

    def free_bytes(self) -> int:
        """Without end: a bucket counts none."""
        return sys.maxsize

    def disk(self) -> Disk:
        """A bucket counts none."""
        return Disk(0, 0)

    def check_room(self) -> None:
        """Nothing: a full folder is an error of the writer that finds it."""

    def make_room(self) -> None:
        """Nothing, as check_room()."""


class BucketSmallBlobs:
    """Small blobs of one pull or import, several at once."""

    def __init__(self, content: BucketContentStore, bucket: Bucket, cancel: CancelToken) -> None:
        self.writer = content.writer
        self._bucket = bucket
        self._cancel = cancel
        self._threads = ThreadPoolExecutor(_THREADS, "put-small")

    def put(self, blobs: Sequence[SmallBlob]) -> None:
        """Store blobs; durable when this returns."""
        puts = [self._threads.submit(self._put, blob) for blob in blobs]
        try:
            for done in puts:
                done.result()
        except BaseException:
            for put in puts:
                put.cancel()
            wait(puts)
            raise

    def _put(self, blob: SmallBlob) -> None:
        self._cancel.check()
        data = blob.read()
        verify(data, blob.digest, blob.size, what=blob.what)
        if self._bucket.size(blob.digest) != blob.size:
            self._bucket.put(blob.digest, blob.size, io.BytesIO(data), cancel=self._cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


class BucketDeleter:
    """Deletes blobs while a lock is held; once the bucket can't be asked, nothing more is tried."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._failure = ""

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form; its size in bytes, None when it wasn't there."""
        algorithm, _, encoded = text.partition(":")
        # Labels may name anything.
        return self._bucket.delete(Digest(algorithm, encoded)) if is_name(algorithm, encoded) else None

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        """Remove blobs until time is up, but at least one; what can't be deleted since then is named."""
        deleted = Deleted()
        for number, text in enumerate(texts):
            if number and is_due():
                deleted.left.extend(texts[number:])
                break
            if not self._failure:
                try:
                    deleted.sizes[text] = self.delete(text)
                    continue
                except (StoreError, PreconditionError) as error:
                    self._failure = str(error)
            deleted.failures[text] = self._failure
        return deleted

    def let_go(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _pieces(reader: BucketReader) -> Iterator[bytes]:
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while count := reader.readinto(buffer):
        yield bytes(buffer[:count])


def _name_in(folder: Path) -> str:
    """The store's name, made when there is none."""
    path, lock = folder / "name", FileLock(str(folder / "locks" / "name"))
    lock.acquire(CancelToken())
    try:
        if not path.exists():
            replace(path, uuid.uuid4().hex.encode(), is_durable=True)
        return read_regular(path, _MOST_NAME_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    finally:
        lock.release()
