"""What stores over a bucket share: ingests are files of this machine, and a bucket reports no free space.

An upload can't be resumed by another process, so an ingest is a file, as in the embedded store, and goes to the bucket
when it is committed: hashed once more on the way, and visible only if it is right. If the bucket fails then, the ingest
stays and the next writer needn't fetch it again.

A prefix belongs to one store: what its records don't name is collected, also what another program put there. So the
store's name is written into the prefix, and a store with another name is refused.
"""

from __future__ import annotations

import abc
import functools
import io
import sys
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Disk
from imagestore.content.bucket import Bucket
from imagestore.content.bucket_files import BlobReader, BucketIngestWriter, BucketSmallBlobs
from imagestore.content.local import LocalContentStore
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
    PreconditionError,
    SizeMismatchError,
    UnsupportedError,
)
from imagestore.oci.digest import Verifier, verify
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from imagestore.config.model import BucketSettings
    from imagestore.content.api import Adoption, ContentInfo, IngestStatus
    from imagestore.content.bucket import BucketReader
    from imagestore.oci.digest import Digest

_PIECE_BYTES: Final = 1024 * 1024


class WithoutDisk:
    """The answers of a store that has no disk: nothing to sync, no space to count, no stores next to it."""

    def adopt(self, digest: Digest, size: int, *, cancel: CancelToken) -> Adoption | None:
        """None: there are no other stores to take a blob from."""

    def is_at_source(self, digest: Digest, size: int) -> bool:
        """False, as adopt()."""
        return False

    def make_durable(self, algorithms: Iterable[str]) -> None:
        """Nothing: what the bucket took is durable."""

    def free_bytes(self) -> int:
        """No limit: a bucket reports none."""
        return sys.maxsize

    def disk(self) -> Disk:
        """Both 0: a bucket reports none."""
        return Disk(0, 0)

    def check_room(self) -> None:
        """Nothing: if the folder is full, the writer gets the error."""

    def make_room(self) -> None:
        """Nothing, as check_room()."""


class BucketContent(WithoutDisk, abc.ABC):
    """What the content stores over a bucket share; thread-safe.

    Args:
        folder: for ingests; made when missing.

    Raises:
        ConfigError: the settings can't be used, there is no such bucket, or obstore isn't installed.
        StoreError: the bucket doesn't answer, or the folder can't be made.
    """

    def __init__(self, settings: BucketSettings, folder: Path) -> None:
        self._bucket = Bucket(settings)
        self._bucket.check()
        self._ingests = LocalContentStore(folder / "content", folder / "locks")

    def _claim(self, owner: str, *, hint: str) -> None:
        """Take the prefix for the store of this name.

        Raises:
            PreconditionError: it is another store's; the hint says what to do.
        """
        found = self._bucket.claim(owner)
        if found != owner:
            raise PreconditionError(f"{self.name}: belongs to another store ({found[:40]!r})", hint=hint)

    @abc.abstractmethod
    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't there."""

    @abc.abstractmethod
    def _opened(self, digest: Digest, offset: int = 0) -> BucketReader:
        """A blob's bytes from an offset on.

        Raises:
            ContentNotFoundError: it isn't there, or its algorithm can't be verified.
        """

    @abc.abstractmethod
    def _send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Bring a blob to the bucket; see ``bucket_files.Send``."""

    @abc.abstractmethod
    def _begin(self, expected: Digest, cancel: CancelToken, on_wait: Callable[[], None] | None) -> Callable[[], None]:
        """A writer has its ingest: check that the blob is needed; returns what to call when the writer is closed.

        Raises:
            AlreadyExistsError: the blob is there.
        """

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

    def sizes(self, digests: Collection[Digest]) -> dict[Digest, int]:
        """Bytes of those blobs that are there."""
        return {each: found.size for each in digests if each.is_verifiable and (found := self.find(each)) is not None}

    def info(self, digest: Digest) -> ContentInfo:
        """Size and time of a blob."""
        found = self.find(digest)
        if found is None:
            raise self._missing(digest)
        return found

    def path(self, digest: Digest) -> Path:
        """Not supported: the blob is no file of this machine.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"content {digest}: is in {self.name}, and no file of this machine")

    def open(self, digest: Digest) -> BinaryIO:
        """The blob, opened for reading from any position."""
        reopen = functools.partial(self._opened, digest)
        return io.BufferedReader(BlobReader(digest, self._opened(digest), reopen), _PIECE_BYTES)

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        """A small blob whole, hashed again on the way."""
        with self._opened(digest) as reader:
            if reader.size > limit_bytes:
                raise SizeMismatchError(f"content {digest}", expected=limit_bytes, actual=reader.size)
            data = b"".join(_pieces(reader))
        verify(data, digest, what=f"content {digest} at rest")
        return data

    def writer(
        self,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> BucketIngestWriter:
        """Open an ingest, waiting while another writer holds it."""
        once = None if on_wait is None else functools.cache(on_wait)  # there may be two waits
        inner = self._ingests.writer(ref, expected=expected, total=total, cancel=cancel, on_wait=once)
        try:
            ended = self._begin(expected, cancel, once)
        except AlreadyExistsError:
            inner.abort()
            raise
        except BaseException:
            inner.close()
            raise
        return BucketIngestWriter(inner, self._send, cancel, ended)

    def try_writer(self, ref: str, *, algorithm: str, total: int) -> BucketIngestWriter:
        """Open an ingest whose digest isn't known yet, unless another writer of this machine holds it."""
        inner = self._ingests.try_writer(ref, algorithm=algorithm, total=total)
        return BucketIngestWriter(inner, self._send, CancelToken(), nothing)

    def small_blobs(self, cancel: CancelToken) -> BucketSmallBlobs:
        """What writes the small blobs of one pull or import."""
        return BucketSmallBlobs(self.writer, self._send, cancel)

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

    def _check_missing(self, digest: Digest) -> None:
        if self.exists(digest):
            raise AlreadyExistsError(f"content {digest} is in the store already")

    def _missing(self, digest: Digest) -> ContentNotFoundError:
        if not digest.is_verifiable:
            return ContentNotFoundError(f"content {digest}: algorithm {digest.algorithm} can't be verified or stored")
        return ContentNotFoundError(f"content {digest} is not in {self.name}")


def is_right(reader: BucketReader, digest: Digest) -> bool:
    """Read all that is left of a blob; whether its bytes hash to the digest."""
    verifier = Verifier(digest)
    for piece in _pieces(reader):
        verifier.update(piece)
    try:
        verifier.finish()
    except DigestMismatchError:
        return False
    return True


def nothing() -> None:
    """For writers that other machines don't wait for."""


def _pieces(reader: BucketReader) -> Iterator[bytes]:
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while count := reader.readinto(buffer):
        yield bytes(buffer[:count])
