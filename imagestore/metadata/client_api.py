"""The part of the metadata port for containerd's clients: namespaces, named images, and who knows which content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.metadata.namespace_api import ContentRecord, NamedImage
    from imagestore.oci.digest import Digest


class ClientStore(Protocol):
    """What clients of containerd's services keep besides our records; the words are those of ``namespace_api``."""

    def put_named_image(self, image: NamedImage) -> NamedImage:
        """Insert or replace an image; its times are the caller's.

        Returns:
            The image as stored.

        Raises:
            InvalidInputError: a label is too long.
        """

    def named_image(self, namespace: str, name: str) -> NamedImage | None:
        """One image, or None."""

    def named_images(self, namespace: str) -> list[NamedImage]:
        """A namespace's images, ordered by name."""

    def remove_named_image(self, namespace: str, name: str) -> bool:
        """Remove an image; say whether it was there."""

    def kept_with(self, digest: Digest) -> tuple[Digest, ...]:
        """What the store's records and named images hold besides this digest, so that a new name for it may too."""

    def namespaces(self) -> dict[str, dict[str, str]]:
        """Every namespace with its labels, ordered by name; the store's own is always there."""

    def create_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Make a namespace.

        Raises:
            AlreadyExistsError: it is there.
            InvalidInputError: a label is too long.
        """

    def label_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Replace a namespace's labels; makes it when missing.

        Raises:
            InvalidInputError: a label is too long.
        """

    def remove_namespace(self, name: str) -> bool:
        """Remove a namespace with nothing in it; False while something is.

        Raises:
            NotFoundError: it isn't there.
        """

    def record_content(self, owner: str, digest: Digest, size: int) -> bool:
        """Note that an owner knows a blob, before it becomes visible; False when that is known."""

    def content_record(self, owner: str, digest: Digest) -> ContentRecord | None:
        """What an owner noted of a blob, or None."""

    def content_records(self, owner: str) -> list[ContentRecord]:
        """Every blob an owner knows, ordered by digest."""

    def label_record(self, owner: str, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace an owner's labels of a blob; gc.root and gc.ref.content count within that owner.

        Raises:
            InvalidInputError: a label is too long.
        """

    def forget_record(self, owner: str, digest: Digest) -> bool:
        """Let an owner forget a blob; say whether it knew it."""

    def is_home(self, digest: Digest) -> bool:
        """Whether a blob that is here belongs to the store's own namespace: all that isn't only another namespace's."""

    def foreign_content(self) -> frozenset[Digest]:
        """Blobs that only other owners know."""

    def put_ingest(self, owner: str, ref: str, *, expected: Digest | None, lease: str) -> None:
        """Note an unfinished write, what it will be, and the lease that it lives with.

        A day once given stays given, whichever leases come and go in that time (containerd, core/metadata).

        Args:
            owner: whose.
            ref: its name on disk.
            expected: what it will hash to, when known.
            lease: key of a lease, or empty: then it lives a day.
        """

    def lease_ingest(self, owner: str, ref: str, lease: str) -> bool:
        """Put an unfinished write under a lease (or, with an empty one, under none); say whether it is known."""

    def ingests(self, owner: str) -> dict[str, tuple[str, str]]:
        """An owner's unfinished writes: expected digest (or empty) and lease (or empty) by name on disk."""

    def forget_ingest(self, owner: str, ref: str) -> None:
        """A write ended."""
