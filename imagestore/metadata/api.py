"""The metadata port: image records, leases, the graph that says what is garbage; for clients see ``client_api``.

Edges say which content points at which (manifest to config and layers). Content that records and unexpired leases reach
along edges is never collected. An index is held as a root and has no edges: its other manifests belong to other
handlers' records, or to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from imagestore.metadata.records import HOME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from imagestore.metadata.client_api import NamedImages, Namespaces
    from imagestore.metadata.records import Holder, ImageRecord, Lease, ListedImage
    from imagestore.oci.digest import Digest


class ImageRecords(Protocol):
    """Records by (reference, handler)."""

    def put(
        self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]], *, created_at: float | None = None
    ) -> ImageRecord:
        """Insert or replace a record and add edges, durably; keeps creation time, pin and time of use.

        Args:
            record: its times are the store's.
            edges: what its manifests point at.
            created_at: seconds since 1970, for a new record, 0 too; by default the record's, or now if that is 0.

        Returns:
            The record as stored.
        """

    def put_many(
        self, records: Iterable[tuple[ImageRecord, Mapping[Digest, Iterable[Digest]]]]
    ) -> tuple[ImageRecord, ...]:
        """As put() for several records with their edges, all of them or none."""

    def get(self, reference: str, handler: str) -> ImageRecord | None:
        """One record."""

    def get_many(self, keys: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], ImageRecord]:
        """The records that exist, by (reference, handler)."""

    def find(
        self,
        *,
        reference: str | None = None,
        handler: str | None = None,
        image_id_prefix: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[ImageRecord]:
        """Records that meet every given condition, ordered by reference and handler.

        Args:
            reference: canonical text.
            handler: runtime handler.
            image_id_prefix: beginning of ``algorithm:hex``.
            after: only records behind this (reference, handler), which need not exist.
            limit: at most so many.
        """

    def find_listed(self, *, handler: str | None = None, image_id: str | None = None) -> list[ListedImage]:
        """As find(), what lists show; it takes a tenth of the time. ``image_id`` is in text form."""

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest."""

    def find_ids(self, references: Collection[str]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these references, in their order."""

    def find_keys(self, images: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these (image id, handler), in their order."""

    def remove(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records by (reference, handler) in one transaction; return those that existed."""

    def drop(self, keys: Collection[tuple[str, str]]) -> list[str]:
        """Remove records in one transaction without reading them; return the digests that they held, as texts."""

    def pin(self, keys: Iterable[tuple[str, str]], *, is_pinned: bool) -> list[ImageRecord]:
        """Pin or unpin records by (reference, handler); return those that exist, as they are now."""

    def touch(self, reference: str, handler: str) -> None:
        """Note that a record is used now: at most one write a minute, not synced, and none where none is possible."""

    def touch_many(self, keys: Collection[tuple[str, str]]) -> None:
        """As touch() for several records by (reference, handler), in one transaction."""


class Leases(Protocol):
    """Leases by id, and what they list: containerd's, with its labels for expiry and flatness.

    Methods that change or read what a lease lists raise LeaseNotFoundError when it is gone.
    """

    def create(
        self,
        lease_id: str,
        *,
        lifetime_seconds: float,
        labels: Mapping[str, str] | None = None,
        namespace: str = HOME,
        content: Collection[Digest] = (),
    ) -> Lease:
        """Create a lease.

        Args:
            lease_id: of other namespaces than ``HOME``: lease_key()'s.
            lifetime_seconds: from now; infinite for a lease that only its deletion ends.
            labels: gc.flat and gc.expire mean what they mean in containerd; gc.expire replaces the lifetime.
            namespace: the one it belongs to.
            content: what it lists from the start.

        Raises:
            AlreadyExistsError: the id is taken.
            InvalidInputError: the id is empty, or a label too long.
        """

    def renew(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Set a lease's end to now plus its lifetime, and remove a gc.expire label."""

    def delete(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Delete a lease; return whether it existed.

        Args:
            lease_id: its id.
            is_of_work: finished work deletes its own lease; the ballast of a full disk is not released for that.
        """

    def get(self, lease_id: str) -> Lease | None:
        """One lease, also an expired one."""

    def find(self, *, namespace: str | None = None) -> list[Lease]:
        """Every lease, or those of a namespace; expired ones too."""

    def content(self, lease_id: str) -> tuple[Digest, ...]:
        """The content that a lease lists."""

    def add_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Add content to a lease, before looking whether it is present."""

    def remove_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Remove content from a lease; what it doesn't list is ignored."""

    def images(self, lease_id: str) -> tuple[str, ...]:
        """The names of images that a lease lists."""

    def add_image(self, lease_id: str, name: str, handler: str) -> None:
        """Add the name of an image, which need not exist, to a lease.

        As long as the lease lasts, neither gc.expire nor a policy removes the image. A removal does, as in containerd.

        Args:
            lease_id: its id.
            name: of an image in the lease's namespace.
            handler: in ``HOME``, the handler of the record that a name without a handler means.
        """

    def remove_image(self, lease_id: str, name: str) -> None:
        """Remove the name of an image from a lease; what it doesn't list is ignored."""

    def leased_records(self) -> frozenset[str]:
        """What unexpired leases of ``HOME`` name, as ``reference@handler`` each."""


class Graph(Protocol):
    """Edges and labels of content, and what they keep. Digests are texts where there may be a million of them."""

    def label_content(self, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels of content; gc.root and gc.ref.content mean what they mean in containerd.

        Raises:
            InvalidInputError: a label is too long.
        """

    def content_labels(self, digest: Digest) -> dict[str, str]:
        """The labels of content."""

    def put_edges(self, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Replace the edges that start at each parent."""

    def children_of(self, texts: Sequence[str]) -> dict[str, list[str]]:
        """What each content points at; those that point at nothing are left out."""

    def own_children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at, labels aside."""

    def parents(self, digest: Digest) -> tuple[Digest, ...]:
        """What points at this content."""

    def edges_as_written(self) -> Mapping[str, Sequence[str]]:
        """Every edge, children by parent; an edge that a label names too comes twice."""

    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps at one moment, for a collection that then asks unheld(); no writer waits.

        Args:
            present: digests of the content that exists.

        Returns:
            Those that no record, no unexpired lease and no label keeps along any edges, and absent content that has
            edges or labels but isn't kept. What points at something comes before what doesn't.
        """

    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those digests that nothing keeps now; the cost is that of their parents."""

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now; the cost is that of its parents, not of the store."""

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, labels or named images of ``HOME``, or any lease, keep this content now."""

    def holders(self, digest: Digest) -> tuple[Holder, ...]:
        """What keeps this content by itself, without edges."""

    def keeper_of_all(self) -> str:
        """The id of a lease that keeps all content now, as after a rebuild that skipped records; empty: none."""

    def refuse_damaged_indexes(self) -> None:
        """Check, once for each opened store, that unheld() and is_held() can be relied on.

        Raises:
            StoreCorruptError: an index lacks rows, or has others than its table.
        """

    def forget_content(self, texts: Collection[str]) -> None:
        """Remove labels of deleted content, and the edges that start there."""


class MetadataStore(Protocol):
    """The parts of a store's metadata, and transactions over them, shared by any number of processes."""

    @property
    def images(self) -> ImageRecords:
        """Image records."""

    @property
    def leases(self) -> Leases:
        """Leases."""

    @property
    def named_images(self) -> NamedImages:
        """Images of containerd's clients."""

    @property
    def namespaces(self) -> Namespaces:
        """Namespaces and the content they know."""

    @property
    def graph(self) -> Graph:
        """Edges, labels, and what they keep."""

    def recording(self, keys: Collection[tuple[str, str]]) -> AbstractContextManager[object]:
        """A transaction for putting the records of these (reference, handler), which excludes others that put them.

        Content that was found in it stays until its end.
        """

    def exclusive(self) -> AbstractContextManager[object]:
        """Hold the database's write lock, so that no lease and no record can appear; commits at the end."""

    def batch(self) -> AbstractContextManager[object]:
        """As exclusive(), for one short step of a long work: yields to waiting writers first, and isn't synced.

        Only for changes that a power cut may undo without harm.
        """

    def transient(self) -> AbstractContextManager[object]:
        """As exclusive(), for what only running work needs: a power cut, which ends the work, may undo it."""

    def is_awaited(self) -> bool:
        """Whether a writer waits, or a thread waits for this process's connection; then a batch should end soon."""

    def give_way(self) -> None:
        """Yield to waiting writers; between two steps of a long work."""

    def expire(self) -> int:
        """Delete expired leases, and images whose gc.expire label is past and that no lease names; return how many."""

    def tidy(self) -> None:
        """Maintenance in a collection: shorten files that only grew."""

    def damage(self) -> tuple[str, ...]:
        """What is wrong with the database's own files, a line each."""

    def generation(self) -> int | None:
        """A number that differs after every change of a record, in any process; None when it can't be read."""

    def is_outdated(self) -> bool:
        """Whether the store has to be opened again to be current.

        Another file is in the database's place, or another process writes what could only be read when it was opened.
        """

    @property
    def store_id(self) -> str:
        """What tells this store from any other: 32 random hex digits, made with it.

        A copy of the records, such as a restored backup, has the same id.

        Raises:
            StoreReadOnlyError: an older version wrote the store, and the disk is read-only, so it has no id yet.
        """

    @property
    def is_unchanging(self) -> bool:
        """Whether no process can change anything: the disk is read-only. To be asked when a change was refused."""

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked after the database was opened."""

    def check_process(self) -> None:
        """Refuse the work of a forked child before it waits for anything.

        Raises:
            StoreError: this process was forked after the database was opened.
        """

    def backup(self, target: Path) -> None:
        """Copy the records to a new file while others go on.

        Raises:
            UnsupportedError: the service that keeps the records makes backups in another way.
            AlreadyExistsError, InvalidInputError, PreconditionError: the file exists already or can't be written.
            StoreError: the records can't be read.
        """

    def close(self) -> None:
        """Close the database."""
