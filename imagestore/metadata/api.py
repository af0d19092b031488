"""The metadata port: what is remembered about content, and what keeps it alive.

An image record is keyed by (reference, runtime handler) and holds *roots*: the digests of its manifest and of every
index on the way to it. Edges say which content points at which (manifest to config and layers). A lease holds digests
by name while work is under way. What can be reached from records and unexpired leases along edges is never collected.

An index is held as a root and has no edges: its other manifests belong to other handlers' records, or to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from imagestore.descriptor import Descriptor
    from imagestore.digest import Digest
    from imagestore.platforms.spec import Platform


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image for one runtime handler.

    Attributes:
        reference: canonical text, for example ``docker.io/library/python:3``.
        handler: name of the runtime handler, never empty.
        target: what the reference resolved to: an index or a manifest.
        manifest: the manifest chosen from it (or the target itself).
        image_id: digest of the config.
        platform: what the chosen manifest is for.
        wanted: text form of the platform that was asked for.
        roots: digests the record holds: manifest and every index on the way.
        content_size: bytes of indexes, manifest, config and layers as they travel.
        labels: free text by key.
        warnings: what was accepted although it is doubtful.
        created_at: seconds since 1970 when the record first appeared.
        updated_at: seconds since 1970 when it last changed.
    """

    reference: str
    handler: str
    target: Descriptor
    manifest: Descriptor
    image_id: Digest
    platform: Platform
    wanted: str
    roots: tuple[Digest, ...]
    content_size: int
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    warnings: tuple[str, ...] = ()
    created_at: float = 0.0
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Keeps content alive until released or expired; times in seconds since 1970."""

    id: str
    created_at: float
    expires_at: float


class MetadataStore(Protocol):
    """Records, edges and leases, in transactions, shared by any number of processes."""

    def put_image(self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]]) -> ImageRecord:
        """Insert or replace a record together with the edges it needs, durably; keeps the first creation time.

        Returns:
            The record as stored.
        """

    def get_image(self, reference: str, handler: str) -> ImageRecord | None:
        """One record, or None."""

    def find_images(
        self, *, reference: str | None = None, handler: str | None = None, image_id_prefix: str | None = None
    ) -> list[ImageRecord]:
        """Records that fit every given condition, ordered by reference and handler.

        Args:
            reference: canonical text.
            handler: runtime handler.
            image_id_prefix: beginning of ``algorithm:hex``.
        """

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest."""

    def remove_images(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records by (reference, handler) in one transaction; return those that were there."""

    def create_lease(self, lease_id: str, *, lifetime_seconds: float) -> Lease:
        """Make a lease.

        Raises:
            AlreadyExistsError: the id is taken.
        """

    def renew_lease(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Move a lease's end to now plus its lifetime.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def lease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Put digests under a lease, before their presence is looked at.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def lease_edges(self, lease_id: str, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Remember edges of content that a lease holds."""

    def delete_lease(self, lease_id: str) -> bool:
        """Release a lease; say whether it was there."""

    def leases(self) -> Iterator[Lease]:
        """Every lease, expired ones too."""

    def live_roots(self, *, since_generation: int = 0) -> tuple[int, frozenset[Digest]]:
        """What records and unexpired leases hold, and the generation of that answer.

        The generation counts changes of records: asking again with it gives the roots of later records only (and always
        those of leases).
        """

    def edges(self) -> Mapping[Digest, tuple[Digest, ...]]:
        """Every edge: children by parent."""

    def children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at."""

    def expire_leases(self) -> int:
        """Delete expired leases; return how many."""

    def forget_content(self, digests: Collection[Digest]) -> None:
        """Drop the edges that start at content that was deleted."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the database's write lock, so that no lease and no record can appear meanwhile; commits at the end."""

    def close(self) -> None:
        """Close the database."""
