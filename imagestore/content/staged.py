"""Content that is kept elsewhere: a blob is written to a file of this machine, verified, and sent when it is whole.

Ingests are those of ``local``: they are resumed, locked and aborted as those of a store in files. If the place fails
when a blob is sent, its ingest stays, and the next writer needn't fetch it again. A subclass says where blobs are kept.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import io
import sys
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Deleted, Disk
from imagestore.content.blob_files import is_name
from imagestore.content.ingests import WithIngests
from imagestore.content.local import LocalContentStore
from imagestore.content.staged_files import BlobFile, StagedSmallBlobs, StagedWriter
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
    PreconditionError,
    SizeMismatchError,
    StoreError,
    UnsupportedError,
)
from imagestore.oci.digest import Digest, Verifier, verify
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.content.api import Adoption, ContentInfo, Deleter
    from imagestore.content.staged_files import BlobStream

_PIECE_BYTES: Final = 1024 * 1024


class WithoutDisk:
    """The answers of a store that has no disk: nothing to sync, no space to count, no stores next to it."""

    def adopt(self, digest: Digest, size: int, *, cancel: CancelToken) -> Adoption | None:
        """None: there are no other stores to take a blob from."""

    def is_at_source(self, digest: Digest, size: int) -> bool:
        """False, as adopt()."""
        return False

    def make_durable(self, algorithms: Iterable[str]) -> None:
        """Nothing: what was sent is durable."""

    def free_bytes(self) -> int:
        """No limit: the place counts none."""
        return sys.maxsize

    def disk(self) -> Disk:
        """Both 0: the place counts none."""
        return Disk(0, 0)

    def check_room(self) -> None:
        """Nothing: if the folder is full, the writer gets the error."""

    def make_room(self) -> None:
        """Nothing, as check_room()."""


class StagedContent(WithIngests, WithoutDisk, abc.ABC):
    """A ContentStore over any place for blobs; thread-safe, for any number of processes of this machine.

    Args:
        name: where it is, for messages.
        folder: for ingests; made when missing.

    Raises:
        StoreError: the folder can't be made.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._local = LocalContentStore(folder / "content", folder / "locks")
        self.ingests = self._local.ingests

    @abc.abstractmethod
    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't there."""

    @abc.abstractmethod
    def walk(self) -> Iterator[ContentInfo]:
        """Every blob, in no particular order."""

    @abc.abstractmethod
    def open_at(self, digest: Digest, offset: int = 0) -> BlobStream:
        """A blob's bytes from an offset on.

        Raises:
            ContentNotFoundError: it isn't there, or its algorithm can't be verified.
        """

    @abc.abstractmethod
    def send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Keep verified bytes, which are visible at once; from any thread.

        Raises:
            AlreadyExistsError: the blob is there.
        """

    @abc.abstractmethod
    def remove(self, digest: Digest) -> int | None:
        """Remove a blob; its size in bytes, None when it wasn't there."""

    def _begin(self, expected: Digest, cancel: CancelToken, on_wait: Callable[[], None] | None) -> Callable[[], None]:
        """A writer has its ingest: check that the blob is needed; returns what to call when the writer is closed.

        Raises:
            AlreadyExistsError: the blob is there.
        """
        self._check_missing(expected)
        return nothing

    @property
    def name(self) -> str:
        """Where it is, for messages."""
        return self._name

    @property
    def scratch(self) -> Path:
        """The folder of ingests."""
        return self._local.scratch

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
        reopen = functools.partial(self.open_at, digest)
        return io.BufferedReader(BlobFile(digest, self.open_at(digest), reopen), _PIECE_BYTES)

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        """A small blob whole, hashed again on the way."""
        with contextlib.closing(self.open_at(digest)) as reader:
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
    ) -> StagedWriter:
        """Open an ingest, waiting while another writer holds it."""
        once = None if on_wait is None else functools.cache(on_wait)  # there may be two waits
        inner = self._local.writer(ref, expected=expected, total=total, cancel=cancel, on_wait=once)
        try:
            ended = self._begin(expected, cancel, once)
        except AlreadyExistsError:
            inner.abort()
            raise
        except BaseException:
            inner.close()
            raise
        return StagedWriter(inner, self.send, cancel, ended)

    def try_writer(self, ref: str, *, algorithm: str, total: int) -> StagedWriter:
        """Open an ingest whose digest isn't known yet, unless another writer of this machine holds it."""
        inner = self._local.try_writer(ref, algorithm=algorithm, total=total)
        return StagedWriter(inner, self.send, CancelToken(), nothing)

    def small_blobs(self, cancel: CancelToken) -> StagedSmallBlobs:
        """What writes the small blobs of one pull or import."""
        return StagedSmallBlobs(self.writer, self.send, cancel)

    def names(self) -> Iterator[str]:
        """Every blob's digest in text form, in no particular order."""
        return (str(info.digest) for info in self.walk())

    def delete(self, digest: Digest) -> int:
        """Remove a blob and return the bytes freed; 0 when it wasn't there."""
        return self.remove(digest) or 0

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found."""
        try:
            with contextlib.closing(self.open_at(digest)) as reader:
                if is_right(reader, digest):
                    return True
        except ContentNotFoundError:
            return False
        self.remove(digest)
        return False

    def deleter(self) -> Deleter:
        """For deleting many blobs under a lock."""
        return StagedDeleter(self.remove)

    def _check_missing(self, digest: Digest) -> None:
        if self.exists(digest):
            raise AlreadyExistsError(f"content {digest} is in the store already")

    def _missing(self, digest: Digest) -> ContentNotFoundError:
        if not digest.is_verifiable:
            return ContentNotFoundError(f"content {digest}: algorithm {digest.algorithm} can't be verified or stored")
        return ContentNotFoundError(f"content {digest} is not in {self.name}")


class StagedDeleter:
    """Deletes blobs while a lock is held; after the first failure of their place, nothing more is tried."""

    def __init__(self, remove: Callable[[Digest], int | None]) -> None:
        self._remove = remove
        self._failure = ""

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form; its size in bytes, None when it wasn't there."""
        algorithm, _, encoded = text.partition(":")
        # Labels may name anything.
        return self._remove(Digest(algorithm, encoded)) if is_name(algorithm, encoded) else None

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        """Remove blobs until time is up, but at least one; after a failure, all others get it as theirs."""
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


def is_right(reader: BlobStream, digest: Digest) -> bool:
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


def _pieces(reader: BlobStream) -> Iterator[bytes]:
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while count := reader.readinto(buffer):
        yield bytes(buffer[:count])
