"""A store's content in an S3-compatible bucket; what is being written is in a folder of this machine until it is whole.

An upload can't be resumed by another process, so an ingest is a file, as in the embedded store, and goes to the bucket
when it is committed: hashed once more on the way, and visible only if it is right. Where the bucket fails then, the
ingest stays and the next writer needn't fetch it again.

A prefix belongs to one store: what its records don't name is collected, whoever has put it there. So the store's name
is written into the prefix, and a store with another name is refused.
"""

from __future__ import annotations

import io
import os
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Deleted, Disk
from imagestore.content.bucket import Bucket
from imagestore.content.local import LocalContentStore
from imagestore.content.locks import FileLock
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
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
    from imagestore.content.ingest import LocalIngestWriter

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
                f"{self.name}: belongs to another store ({owner[:40]!r})", hint="give this store a prefix of its own"
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
        return io.BufferedReader(_BlobReader(self._bucket, self.info(digest)), _PIECE_BYTES)

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        """A small blob whole, hashed again on the way."""
        info = self.info(digest)
        if info.size > limit_bytes:
            raise SizeMismatchError(f"content {digest}", expected=limit_bytes, actual=info.size)
        with self.open(digest) as blob:
            data = blob.read()
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
        return self._bucket.delete(digest) or 0

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found."""
        found = self.find(digest)
        if found is None:
            return False
        verifier = Verifier(digest)
        with self.open(digest) as blob:
            while piece := blob.read(_PIECE_BYTES):
                verifier.update(piece)
        try:
            verifier.finish()
        except IntegrityError:
            if self.find(digest) == found:  # and not repaired since
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


class BucketIngestWriter:
    """Appends to a file, which goes to the bucket when it is committed."""

    def __init__(self, bucket: Bucket, inner: LocalIngestWriter, ref: str, cancel: CancelToken) -> None:
        self._bucket = bucket
        self._inner = inner
        self._ref = ref
        self._cancel = cancel

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._inner.offset

    @property
    def digest(self) -> Digest:
        """What the bytes so far hash to."""
        return self._inner.digest

    def held(self) -> None:
        """None: they are in a file."""

    def hash_with(self, algorithm: str) -> None:
        """Hash with another algorithm from now on; what is there is read again."""
        self._inner.hash_with(algorithm)

    def open_written(self) -> BinaryIO:
        """What is written, opened for reading along."""
        return self._inner.open_written()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append bytes."""
        self._inner.write(chunk)

    def fill(self, readinto: Callable[[memoryview], int], *, advanced: Callable[[int], None]) -> None:
        """Append what a source gives until its end."""
        self._inner.fill(readinto, advanced=advanced)

    def truncate(self) -> None:
        """Start again from nothing."""
        self._inner.truncate()

    def commit(
        self, expected: Digest | None = None, size: int | None = None, *, has_durable_name: bool = True
    ) -> Digest:
        """Verify, send to the bucket, then close; see ``BlobWriter.commit``.

        Raises:
            StoreError: the bucket doesn't take it; the ingest stays, and the writer stays open.
            OperationCancelledError: cancelled meanwhile; so too.
        """
        with self._inner.open_written() as file:
            if size is not None and self.offset != size:
                raise SizeMismatchError(str(expected or self._ref), expected=size, actual=self.offset)
            if expected is not None and expected.algorithm != self.digest.algorithm:
                self.hash_with(expected.algorithm)
            actual = self.digest
            if expected not in (None, actual):
                raise DigestMismatchError(self._ref, expected=str(expected), actual=str(actual))
            if self._bucket.size(actual) == self.offset:
                self.abort()
                raise AlreadyExistsError(f"content {actual} is in the store already")
            self._bucket.put(actual, self.offset, file, cancel=self._cancel)
        self.abort()
        return actual

    def abort(self) -> None:
        """Throw the ingest away and close; harmless when closed."""
        self._inner.abort()

    def close(self) -> None:
        """Let go; what is written stays and can be resumed."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BucketSmallBlobs:
    """Small blobs of one pull or import, several at once."""

    def __init__(self, content: BucketContentStore, bucket: Bucket, cancel: CancelToken) -> None:
        self.writer = content.writer
        self._bucket = bucket
        self._cancel = cancel
        self._threads = ThreadPoolExecutor(_THREADS, "put-small")

    def put(self, blobs: Sequence[SmallBlob]) -> None:
        """Store blobs; durable when this returns."""
        for done in [self._threads.submit(self._put, blob) for blob in blobs]:
            done.result()

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
    """Deletes blobs while a lock is held."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form; its size in bytes, None when it wasn't there."""
        return self._bucket.delete(Digest.parse(text))

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        """Remove blobs until time is up, but at least one; one that can't be deleted stops none of the others."""
        deleted = Deleted()
        for number, text in enumerate(texts):
            if number and is_due():
                deleted.left.extend(texts[number:])
                break
            try:
                deleted.sizes[text] = self.delete(text)
            except StoreError as error:
                deleted.failures[text] = str(error)
        return deleted

    def let_go(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _BlobReader(io.RawIOBase):
    """A blob as a file; each jump is a request of its own."""

    def __init__(self, bucket: Bucket, info: ContentInfo) -> None:
        super().__init__()
        self._bucket = bucket
        self._info = info
        self._position = 0
        self._stream: BucketReader | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._info.size}[whence]
        if position < 0:
            raise OSError("a position before the beginning")
        if position != self._position:
            self._let_go()
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # narrower than Buffer
        if self._position >= self._info.size:
            return 0
        if self._stream is None:
            digest, size = self._info.digest, self._info.size
            self._stream = self._bucket.open(digest, size, offset=self._position, cancel=CancelToken())
        count = self._stream.readinto(memoryview(buffer))
        if count == 0:
            raise SizeMismatchError(str(self._info.digest), expected=self._info.size, actual=self._position)
        self._position += count
        return count

    def close(self) -> None:
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


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
