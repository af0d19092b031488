"""The part of the metadata port for containerd's clients; ``records`` explains namespaces and owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.metadata.records import ContentRecord, NamedImage
    from imagestore.oci.digest import Digest


class NamedImages(Protocol):
    """Images by namespace and name, as clients of containerd's services make them."""

    def put(self, image: NamedImage) -> NamedImage:
        """Insert or replace an image, with the caller's times; returns it as stored.

        Raises:
            InvalidInputError: a label is too long.
        """

    def get(self, namespace: str, name: str) -> NamedImage | None:
        """One image."""

    def find(self, namespace: str) -> list[NamedImage]:
        """A namespace's images, ordered by name."""

    def remove(self, namespace: str, name: str) -> bool:
        """Remove an image; return whether it existed."""

    def drop_home(self, names: Sequence[str]) -> list[str]:
        """Remove images of ``HOME``; return the digests that they held, as texts.

        A record hides such an image, so no client could remove it; it is removed with the record.
        """

    def kept_with(self, digest: Digest) -> tuple[Digest, ...]:
        """What the records and named images of ``HOME`` hold besides this digest, for a new name of it to keep too."""


class Namespaces(Protocol):
    """Namespaces, the content that each owner knows, and its unfinished writes."""

    def find(self) -> dict[str, dict[str, str]]:
        """Every namespace with its labels, ordered by name; ``HOME`` always exists."""

    def create(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a namespace.

        Raises:
            AlreadyExistsError: it exists.
            InvalidInputError: a label is too long.
        """

    def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Replace a namespace's labels; creates it when missing.

        Raises:
            InvalidInputError: a label is too long.
        """

    def remove(self, name: str) -> bool:
        """Remove an empty namespace; False while it isn't empty.

        Raises:
            NotFoundError: it doesn't exist.
        """

    def record_content(self, owner: str, digest: Digest, size: int) -> bool:
        """Note that an owner knows a blob, before it becomes visible; False when that was noted before."""

    def content_record(self, owner: str, digest: Digest) -> ContentRecord | None:
        """What an owner noted of a blob."""

    def content_records(self, owner: str) -> list[ContentRecord]:
        """Every blob an owner knows, ordered by digest."""

    def label_record(self, owner: str, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace an owner's labels of a blob; gc.root and gc.ref.content count within that owner.

        Raises:
            InvalidInputError: a label is too long.
        """

    def forget_record(self, owner: str, digest: Digest) -> bool:
        """Remove an owner's record of a blob; return whether it existed."""

    def is_home(self, digest: Digest) -> bool:
        """Whether a blob that is present belongs to ``HOME``: each that doesn't belong to other owners only."""

    def foreign_content(self) -> frozenset[Digest]:
        """Blobs that only other owners know."""

    def put_ingest(self, owner: str, ref: str, *, expected: Digest | None, lease: str) -> None:
        """Note an unfinished write.

        Args:
            owner: whose write.
            ref: its name on disk.
            expected: what it will hash to, when known.
            lease: the lease it lives with. Empty: it lives a day, whichever leases come and go in that time
                (containerd, core/metadata).
        """

    def lease_ingest(self, owner: str, ref: str, lease: str) -> bool:
        """Put an unfinished write under a lease (or, with an empty one, under none); return whether it is known."""

    def ingests(self, owner: str) -> dict[str, tuple[str, str]]:
        """An owner's unfinished writes: expected digest (or empty) and lease (or empty) by name on disk."""

    def forget_ingest(self, owner: str, ref: str) -> None:
        """A write ended."""

    def kept_ingests(self) -> frozenset[str]:
        """Names on disk of writes that a lease, their day or a proxy's containerd keeps, however long untouched."""

    def sweep(self) -> tuple[str, ...]:
        """Remove content records that nothing in their namespace keeps.

        Returns:
            Names on disk of unfinished writes whose lease is gone or whose day is over; the caller aborts them.
        """
