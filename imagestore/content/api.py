"""The content port: what is read of the store, and the writer of an ingest.

Life of content: a writer is opened under an ingest name; bytes are appended; the writer is closed (the ingest stays
and can be resumed at its offset) or committed (size and digest are verified, and from then on the blob is visible to
readers, never changes, and lives until it is deleted). The words and the behaviour are containerd's (core/content).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO, Self

    from imagestore.oci.digest import Digest


@dataclass(frozen=True, slots=True)
class ContentInfo:
    """A blob in the store: ``size`` in bytes, ``modified_at`` in seconds since 1970."""

    digest: Digest
    size: int
    modified_at: float


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """An unfinished write.

    Attributes:
        ref: its name.
        offset: bytes written so far.
        total: bytes expected, 0 when unknown.
        started_at: seconds since 1970.
        updated_at: seconds since 1970.
    """

    ref: str
    offset: int
    total: int
    started_at: float
    updated_at: float


class IngestWriter(Protocol):
    """Appends to one ingest; holds its lock until closed. Not for several threads at once."""

    @property
    def offset(self) -> int:
        """Bytes written so far; a resumed ingest starts above 0."""

    def write(self, chunk: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            WriterClosedError: it was committed, aborted or closed.
            StoreFullError: no space is left; the ingest stays as long as it got.
        """

    def fill(self, readinto: Callable[[memoryview], int], *, advanced: Callable[[int], None]) -> None:
        """Append what a source gives until its end; what came before it fails is kept.

        Args:
            readinto: puts the next bytes into a buffer and says how many; 0 at the end.
            advanced: called with the new offset before bytes are written; may refuse them by raising.

        Raises:
            StoreFullError: as write(); and whatever the arguments raise.
        """

    def truncate(self) -> None:
        """Start again from nothing.

        Raises:
            WriterClosedError: it was committed, aborted or closed.
        """

    def commit(
        self, expected: Digest | None = None, size: int | None = None, *, has_durable_name: bool = True
    ) -> Digest:
        """Verify and publish, then close.

        Args:
            expected: what the bytes must hash to; under another algorithm than the writer's they are read again. None:
                whatever they hash to names the blob.
            size: how many bytes there must be; None: as many as there are.
            has_durable_name: sync the folder too. Without, make_durable() is called before anything refers to the blob,
                once for many.

        Returns:
            The digest that names the blob.

        Raises:
            SizeMismatchError, DigestMismatchError: the ingest stays, and the writer stays open, as in containerd.
            AlreadyExistsError: the blob is there already; the ingest is gone. Callers take it as success.
            StoreError: the disk failed. Bytes that it didn't take are gone, the others can be resumed.
            WriterClosedError: it was committed, aborted or closed.
        """

    def abort(self) -> None:
        """Throw the ingest away and close; harmless when closed."""

    def close(self) -> None:
        """Let go; what is written stays and can be resumed."""

    def __enter__(self) -> Self:
        """Close at the end of the block."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Close."""


class ContentStore(Protocol):
    """Bytes by digest."""

    def exists(self, digest: Digest) -> bool:
        """Whether the blob is here."""

    def info(self, digest: Digest) -> ContentInfo:
        """Size and time of a blob.

        Raises:
            ContentNotFoundError: it isn't here.
            IntegrityError: the disk can't even say that.
        """

    def path(self, digest: Digest) -> Path:
        """Where the blob's file is, for readers that want a path; never write to it.

        Raises:
            ContentNotFoundError: it isn't here.
        """

    def open(self, digest: Digest) -> BinaryIO:
        """The blob, opened for reading; reading what the disk can't read raises IntegrityError.

        Raises:
            ContentNotFoundError: it isn't here.
        """

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        """A small blob whole, hashed again on the way.

        Raises:
            ContentNotFoundError: it isn't here.
            IntegrityError: the file is damaged or longer than the limit.
        """

    def walk(self) -> Iterator[ContentInfo]:
        """Every blob, in no particular order; of size 0 where the disk can't say it."""
