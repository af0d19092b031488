"""Which object of a bucket holds which content: asked where several machines share one bucket.

The row is the truth: content is here when the index says so, and an object that the index doesn't name is nobody's.
Each upload has an object of its own, so a collection never deletes what somebody uploads anew at that moment.

The order of steps keeps content safe without one lock for all: who needs content leases it first and looks then; who
collects holds the row first and asks then whether anything keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from imagestore.oci.digest import Digest


class StoredObject(Protocol):
    """Content in the bucket."""

    @property
    def digest(self) -> Digest:
        """Of the content."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def key(self) -> str:
        """The object's, below the bucket's prefix."""

    @property
    def stored_at(self) -> float:
        """Seconds since 1970."""


class Flight(Protocol):
    """That this process brings a digest, and others wait for it. A loss of it costs a second transfer, nothing else."""

    def end(self) -> None:
        """Let others go on; harmless when it ended already."""


class ObjectIndex(Protocol):
    """Content by digest, uploads under way, and objects to delete; shared by any number of machines. Thread-safe.

    Every call raises StoreError where the index can't be asked or changed.
    """

    def find(self, digest: Digest) -> StoredObject | None:
        """Where content is, or None. Who leased the digest before can count on the answer.

        Where a collection is just deciding about it, this waits for the decision. In a transaction (``exclusive()`` of
        the store's records) what was found stays until its end.
        """

    def find_all(self, digests: Collection[Digest]) -> Mapping[Digest, StoredObject]:
        """As find() for several, in one question; those that aren't here are left out."""

    def names(self) -> Iterator[str]:
        """Every content's digest in text form, in no particular order."""

    def walk(self) -> Iterator[StoredObject]:
        """Everything that is here, in no particular order."""

    def begin_upload(self, key: str) -> None:
        """Note an object before its first byte is sent, so that it is deleted if this process ends before publish()."""

    def renew_upload(self, key: str) -> None:
        """Say that an upload goes on; at least once in ten minutes.

        Raises:
            ContentUnavailableError: it was given up, since nothing was heard of it for too long.
        """

    def publish(self, digest: Digest, size: int, key: str) -> bool:
        """Make an uploaded object the content of a digest.

        Args:
            digest: verified by the caller.
            size: in bytes.
            key: of the object, as begin_upload() was told.

        Returns:
            Whether it is; not when another one came first. Then this one is to be deleted.

        Raises:
            ContentUnavailableError: the upload was given up; its object is to be deleted.
        """

    def abandon_upload(self, key: str) -> None:
        """An upload failed, perhaps after it was given up; what there is of its object is to be deleted.

        An object that is content stays: publish() may have succeeded although its answer was lost.
        """

    def remove(self, texts: Sequence[str]) -> dict[str, int]:
        """Forget content, given by digests in text form; its objects are to be deleted once that is committed.

        Returns:
            Bytes of what was there, by digest in text form.
        """

    def remove_object(self, digest: Digest, key: str) -> bool:
        """As remove(), but only while this very object is the content; say whether it was."""

    def doomed(self, most: int) -> list[str]:
        """Keys of objects to delete, as many at most; those that are committed."""

    def forget_doomed(self, keys: Collection[str]) -> None:
        """Some objects are deleted."""

    def expire_uploads(self) -> int:
        """Give up uploads of which nothing was heard for too long; their objects are to be deleted. Says how many."""

    def try_flight(self, digest: Digest) -> Flight | None:
        """Be the only one, of all machines, who brings a digest; None while another one does.

        Where that can't be told (behind a pooler of transactions), everybody gets a flight.
        """
