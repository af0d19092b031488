"""The content port: what the rooms above use of content, and the writer of an ingest.

Life of content: a writer is opened under an ingest name; bytes are appended; the writer is closed (the ingest stays
and can be resumed at its offset) or committed (size and digest are verified, and from then on the blob is visible to
readers, never changes, and lives until it is deleted). The words and the behaviour are containerd's (core/content).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.oci.digest import Digest
    from imagestore.util.cancel import CancelToken

#: Larger blobs of imports come one by one, as those of pulls: a batch is held in memory.
BATCHED_BYTES: Final = 256 * 1024
#: As many blobs at once are written before they get their names.
BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class ContentInfo:
    """A blob: ``size`` in bytes, ``modified_at`` in seconds since 1970; deleting a linked one (with another name, as in
    containerd's content folder) frees nothing.
    """

    digest: Digest
    size: int
    modified_at: float
    is_linked: bool = False


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """An unfinished write.

    Attributes:
        total: bytes expected, 0 when unknown.
        started_at, updated_at: seconds since 1970.
    """

    ref: str
    offset: int
    total: int
    started_at: float
    updated_at: float


class Closing(Protocol):
    """A context manager that gives back what it holds at the end of its block."""

    def __enter__(self) -> Self:
        """Begin the block."""

    def __exit__(self, *_: object) -> None:
        """Give everything back."""


class BlobWriter(Closing, Protocol):
    """Appends to one ingest, which may be in memory until closed; holds its lock. Not for several threads at once.

    Once it was committed, aborted or closed, every method but abort() and close() raises WriterClosedError.
    """

    @property
    def offset(self) -> int:
        """Bytes written so far; a resumed ingest starts above 0."""

    def held(self) -> bytes | None:
        """The bytes so far where they are in memory, else None."""

    def write(self, chunk: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
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
        """Start again from nothing."""

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

        Raises:
            SizeMismatchError, DigestMismatchError: the ingest stays, and the writer stays open, as in containerd.
            AlreadyExistsError: the blob is there already; the ingest is gone. Callers take it as success.
            StoreError: the disk failed. Bytes that it didn't take are gone, the others can be resumed.
        """

    def abort(self) -> None:
        """Throw the ingest away and close; harmless when closed."""

    def close(self) -> None:
        """Let go; what is written stays and can be resumed."""


class IngestWriter(BlobWriter, Protocol):
    """A BlobWriter whose bytes can be read while they come, and whose digest needn't be known."""

    @property
    def digest(self) -> Digest:
        """What the bytes so far hash to."""

    def hash_with(self, algorithm: str) -> None:
        """Hash with another algorithm from now on; what is there is read again.

        Raises:
            InvalidDigestError: the algorithm can't be verified here.
        """

    def open_written(self) -> BinaryIO:
        """What is written, opened for reading along; it stays readable when the ingest is committed or goes."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that content is on; both 0 where it counts none.

    Attributes:
        free_bytes: what an unprivileged writer has of it.
    """

    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        """Bytes that are no longer to be had."""
        return self.total_bytes - self.free_bytes


@dataclass(slots=True)
class Deleted:
    """What became of some blobs, by digest in text form.

    Attributes:
        sizes: bytes freed with those that are gone, 0 where a file had another name; None for what wasn't there.
        failures: why others can't be deleted.
        left: what there was no time for.
    """

    sizes: dict[str, int | None] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


class Adoption(enum.Enum):
    """How content was adopted."""

    REFLINK = "reflink"
    HARD_LINK = "hard link"
    COPY = "copy"


class Deleter(Closing, Protocol):
    """Deletes blobs while a lock is held, as a context manager that is entered before."""

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form; the bytes freed, None when it wasn't there."""

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        """Remove blobs until time is up, but at least one; one that can't be deleted stops none of the others."""

    def let_go(self) -> None:
        """Give their space back; after the lock."""


@dataclass(frozen=True, slots=True)
class SmallBlob:
    """A blob to store in a batch.

    Attributes:
        read: gives them; may be called in another thread.
    """

    digest: Digest
    size: int
    read: Callable[[], bytes]
    what: str


class OpenWriter(Protocol):
    """Opens an ingest."""

    def __call__(
        self,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> BlobWriter:
        """See ``ContentStore.writer``."""


class SmallBlobs(Closing, Protocol):
    """What the small blobs of one pull or import share, as a context manager."""

    @property
    def writer(self) -> OpenWriter:
        """As the store's writer(), but a blob known to be small, of which nothing is here, may be in memory until it is
        whole."""

    def put(self, blobs: Sequence[SmallBlob]) -> None:
        """Store blobs, each digest once; durable when this returns. A lease must hold them already.

        Raises:
            IntegrityError: the bytes aren't what they should be; those before stay.
        """


class ContentStore(Protocol):
    """Bytes by digest, shared by any number of processes.

    Where the disk, the bucket or its index fails, every method raises StoreError.
    """

    @property
    def name(self) -> str:
        """Where it is, for messages and for programs: a folder's path, or a URL."""

    @property
    def scratch(self) -> Path:
        """A folder of this machine for what has to be unpacked to be read."""

    def exists(self, digest: Digest) -> bool:
        """Whether the blob is here."""

    def sizes(self, digests: Collection[Digest]) -> dict[Digest, int]:
        """Bytes of those blobs that are here; one question for all where each takes a round trip."""

    def info(self, digest: Digest) -> ContentInfo:
        """Size and time of a blob.

        Raises:
            ContentNotFoundError: it isn't here.
            IntegrityError: the disk can't read its size.
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
        """Every blob, in no particular order; of size 0 where the disk can't read it."""

    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't here."""

    def names(self) -> Iterator[str]:
        """Every blob's digest in text form, in no particular order; no blob is looked at."""

    def writer(
        self,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> IngestWriter:
        """Open an ingest, waiting while another writer (thread or process) holds it.

        Args:
            total: its size in bytes, 0 when unknown.

        Raises:
            AlreadyExistsError: the blob is here, perhaps because the other writer finished it.
            OperationCancelledError: cancelled while waiting.
        """

    def try_writer(self, ref: str, *, algorithm: str, total: int) -> IngestWriter:
        """Open an ingest whose digest isn't known yet, unless another writer holds it.

        Raises:
            IngestLockedError: another writer holds it.
            InvalidInputError: no name, or an algorithm that can't be verified.
        """

    def small_blobs(self, cancel: CancelToken) -> SmallBlobs:
        """What writes the small blobs of one pull or import."""

    def status(self, ref: str) -> IngestStatus | None:
        """One unfinished ingest, or None."""

    def statuses(self) -> Iterator[IngestStatus]:
        """Every unfinished ingest."""

    def abort(self, ref: str) -> bool:
        """Throw an ingest away unless a writer holds it; say whether it is gone."""

    def stale_ingests(self, before: float, *, beyond: float = ...) -> Iterator[IngestStatus]:
        """Ingests that weren't touched since ``before``, or only ``beyond``, in seconds since 1970."""

    def abort_stale(self, ingest: IngestStatus) -> bool:
        """Throw a stale ingest away unless a writer holds it; say whether it is gone."""

    def clear_locks(self) -> None:
        """Remove what killed processes left of their locks."""

    def adopt(self, digest: Digest, size: int, *, cancel: CancelToken) -> Adoption | None:
        """Take a blob from another store, hashed first; None when none has it whole."""

    def is_at_source(self, digest: Digest, size: int) -> bool:
        """Whether another store has something of this name and size; adopt() hashes it before it counts."""

    def deleter(self) -> Deleter:
        """For deleting many blobs under a lock, as a context manager entered before that lock is taken."""

    def delete(self, digest: Digest) -> int:
        """Remove a blob and return the bytes freed; 0 when it wasn't there, or its file has another name."""

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found."""

    def make_durable(self, algorithms: Iterable[str]) -> None:
        """See that every blob's name outlasts a loss of power, those that others gave a moment ago too."""

    def free_bytes(self) -> int:
        """Space for content, of what an unprivileged writer has; without end where none is counted."""

    def disk(self) -> Disk:
        """The file system that content is on."""

    def check_room(self) -> None:
        """Before a pull or an import begins: its lease, and what is unpacked to be read, need space too.

        Raises:
            StoreFullError: there is only the space that a removal was given.
        """

    def make_room(self) -> None:
        """Keep space back for removals again, where they gave it up and there is some."""
