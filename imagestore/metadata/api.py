"""The metadata port: all that is asked of the records, and of what keeps content alive, above this room.

Edges say which content points at which (manifest to config and layers). What can be reached from records and unexpired
leases along edges is never collected.

An index is held as a root and has no edges: its other manifests belong to other handlers' records, or to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from imagestore.metadata.client_api import ClientStore
from imagestore.metadata.lease_api import LeaseStore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from imagestore.metadata.records import Everything, Holder, ImageRecord, ListedImage
    from imagestore.oci.digest import Digest


class MetadataStore(LeaseStore, ClientStore, Protocol):
    """Records, edges and leases, in transactions, shared by any number of processes."""

    def put_image(
        self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]], *, created_at: float | None = None
    ) -> ImageRecord:
        """Insert or replace a record together with the edges it needs, durably; keeps the first creation time.

        Args:
            record: its times are the store's.
            edges: what its manifests point at.
            created_at: seconds since 1970, for a record that wasn't there; by default now.

        Returns:
            The record as stored.
        """

    def put_images(
        self, records: Iterable[tuple[ImageRecord, Mapping[Digest, Iterable[Digest]]]]
    ) -> tuple[ImageRecord, ...]:
        """As put_image() for several records with their edges, all of them or none."""

    def get_image(self, reference: str, handler: str) -> ImageRecord | None:
        """One record, or None."""

    def get_images(self, keys: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], ImageRecord]:
        """Those of some records that are there, by (reference, handler)."""

    def find_images(
        self,
        *,
        reference: str | None = None,
        handler: str | None = None,
        image_id_prefix: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[ImageRecord]:
        """Records that fit every given condition, ordered by reference and handler.

        Args:
            reference: canonical text.
            handler: runtime handler.
            image_id_prefix: beginning of ``algorithm:hex``.
            after: only those behind this (reference, handler), which need not be there.
            limit: so many at most, of the first.
        """

    def list_images(self, *, handler: str | None = None, image_id: str | None = None) -> list[ListedImage]:
        """What lists show of the records that fit every given condition, ordered by reference and handler.

        It takes a tenth of the time of find_images().

        Args:
            handler: runtime handler.
            image_id: in text form.
        """

    @property
    def is_unchanging(self) -> bool:
        """Whether no process can change anything: the disk is read-only. To be asked where a change was refused."""

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest."""

    def remove_images(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records by (reference, handler) in one transaction; return those that were there."""

    def find_ids(self, references: Collection[str]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record under some references, in their order."""

    def find_keys(self, images: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of some images, given by id and handler, in their order."""

    def everything(self, most: int) -> Everything | None:
        """What removing every record takes, read without a lock.

        Args:
            most: None is returned when there are more records.
        """

    def drop_everything(self, known: Everything) -> bool:
        """Remove every record in one transaction of milliseconds.

        Returns:
            Whether they are gone; not when a record changed since, a client's image may be hidden by one, the database
            is large, or this thread is in a transaction.

        Raises:
            StoreCorruptError: what a record holds can't be read.
        """

    def drop_images(self, keys: Collection[tuple[str, str]]) -> list[str]:
        """Remove records by (reference, handler) in one transaction, unread; return what they held, in text form."""

    def drop_home_images(self, names: Sequence[str]) -> list[str]:
        """Remove what records by these names hid: containerd's clients' images; return what they held, in text form."""

    def pin_images(self, keys: Iterable[tuple[str, str]], *, is_pinned: bool) -> list[ImageRecord]:
        """Pin or unpin records by (reference, handler); return those that are there, as they are now."""

    def touch_image(self, reference: str, handler: str) -> None:
        """Note that a record is used now; at most one write a minute, not synced, and none where none is possible."""

    def label_content(self, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels of content; gc.root and gc.ref.content mean what they mean in containerd.

        Raises:
            InvalidInputError: a label is too long.
        """

    def content_labels(self, digest: Digest) -> dict[str, str]:
        """The labels of content."""

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, leases or labels of the store's own namespace, or any lease, keep this content now."""

    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps at one moment, for a collection that then asks for each again; no writer waits.

        Args:
            present: digests in text form of the content that is there.

        Returns:
            Those of them that no record, no unexpired lease and no label keeps along any edges, and other content that
            edges or labels still start from in vain, in text form too. What points at something comes before what
            doesn't.
        """

    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those of some digests, in text form, that nothing keeps now; the cost is that of their parents."""

    def refuse_damaged_indexes(self) -> None:
        """Look, once for each opened store, whether unheld() and is_held() can be believed.

        Raises:
            StoreCorruptError: an index lacks rows, or holds others than its table.
        """

    def keeper_of_all(self) -> str:
        """The id of a lease that keeps all content now, as after a rebuild that passed over records; empty: none."""

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now; the cost is that of its parents, not of the store."""

    def holders(self, digest: Digest) -> tuple[Holder, ...]:
        """What keeps this content by itself, without edges."""

    def parents(self, digest: Digest) -> tuple[Digest, ...]:
        """Which contents point at this one."""

    def edges_as_written(self) -> Mapping[str, Sequence[str]]:
        """Every edge in text form: children by parent; one that a label names too comes twice."""

    def own_children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at by its own words, labels aside."""

    def children_of(self, texts: Sequence[str]) -> dict[str, list[str]]:
        """What several contents point at, all in text form; those that point at nothing are left out."""

    def put_edges(self, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Replace the edges that start at each parent."""

    def expire(self) -> int:
        """Delete expired leases (in batches), and images whose gc.expire label is past and that no lease names."""

    def sweep_namespaces(self) -> tuple[str, ...]:
        """Drop content records that nothing in their namespace keeps; names the unfinished writes that are over."""

    def kept_ingests(self) -> frozenset[str]:
        """Names of unfinished writes that stay however long ago they were touched."""

    def tidy(self) -> None:
        """Upkeep that a collection does: shorten what only grew."""

    def forget_content(self, texts: Collection[str]) -> None:
        """Drop labels of content that was deleted, given in text form, and the edges that start there."""

    def recording(self, keys: Collection[tuple[str, str]]) -> AbstractContextManager[None]:
        """A transaction for putting the records of these (reference, handler): nobody else puts one of them meanwhile.

        What was found of content in it stays until its end.
        """

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the database's write lock, so that no lease and no record can appear; commits at the end."""

    def batch(self) -> AbstractContextManager[None]:
        """As exclusive(), for one short step of a long work: lets those go first who wait, and isn't synced by itself.

        Only for changes that a power cut may undo without harm.
        """

    def is_awaited(self) -> bool:
        """Whether a writer waits, or a thread waits for this process's connection; then a batch should end soon."""

    def transient(self) -> AbstractContextManager[None]:
        """As exclusive(), for what only running work needs: a loss of power, which ends the work, may undo it."""

    def give_way(self) -> None:
        """Let those go first who wait to write; between two steps of a long work."""

    def damage(self) -> tuple[str, ...]:
        """What is wrong with the database's own files, a line each; nothing when they are whole."""

    def generation(self) -> int | None:
        """A number that is another one after every change of a record, in any process; None when it can't be told."""

    def is_outdated(self) -> bool:
        """Whether the store has to be opened again, to know what is so now.

        Another file is in the database's place, or another process writes what could only be read when it was opened.
        """

    @property
    def is_inherited(self) -> bool:
        """Whether this is a process that was forked after the database was opened."""

    def check_process(self) -> None:
        """Refuse the work of a forked child, before it waits for anything.

        Raises:
            StoreError: this is one.
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
