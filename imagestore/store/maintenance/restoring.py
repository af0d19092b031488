"""What a rebuild restores: the journal's records, labels and leases, as far as their content is there.

A record is restored only if every index, its manifest, config and layers are there and the documents have the right
hash. Content that can't be read now ends the work, since a later try may read it; a forced rebuild leaves it out.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ContentNotFoundError,
    ContentUnreadableError,
    DocumentError,
    IntegrityError,
    StoreError,
    StoreReadOnlyError,
)
from imagestore.oci.decode import MAX_DOCUMENT_BYTES, limit_of
from imagestore.oci.gc_labels import KEEP_ALL
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import DOCKER_MANIFEST, OCI_MANIFEST
from imagestore.store.leases import LIFETIME_SECONDS, keep_found
from imagestore.store.maintenance.why import held_documents

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from imagestore.content.api import ContentStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.metadata.sqlite.journal_reading import Journaled
    from imagestore.metadata.sqlite.store import SqliteMetadataStore
    from imagestore.oci.digest import Digest

#: Errors that say nothing about content: the disk can't read it, or this user may not.
_UNREADABLE: Final = (ContentUnreadableError, StoreReadOnlyError)
#: What to do when such content ended a rebuild.
UNREADABLE_HINT: Final = "mount or repair the disk and try again; with --force what can't be read is left out"


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild restored.

    Attributes:
        was_whole: the database is not damaged; only what the journal knows and it lacked was added.
        kept_as: where the damaged database is now, or None.
        restored: records.
        labelled: how much content has its labels again.
        leases: ids of lasting leases.
        skipped: (record, reason) of records that were not restored as the journal has them.
        unreadable: lines of the journal that can't be read.
        replaced: what the last change replaced, if it is unknown whether that change was committed.
        replaced_lease: id of the lease that keeps it for LIFETIME_SECONDS; empty if there is nothing to keep.
        found: all content, if there is no journal or the rebuild is incomplete: a lost record may need it.
        found_lease: id of the lease that keeps it for LIFETIME_SECONDS; empty if there is nothing to keep. After an
            incomplete rebuild it keeps all content, also what comes later.
        reindexed: the database's indexes were damaged and were made again from its tables.
    """

    was_whole: bool = False
    kept_as: Path | None = None
    restored: tuple[ImageRecord, ...] = ()
    skipped: tuple[tuple[ImageRecord, str], ...] = ()
    unreadable: int = 0
    labelled: int = 0
    leases: tuple[str, ...] = ()
    replaced: tuple[Digest, ...] = ()
    replaced_lease: str = ""
    found: tuple[Digest, ...] = ()
    found_lease: str = ""
    reindexed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all that the journal says was restored."""
        return not self.skipped and not self.unreadable


@dataclass(slots=True)
class Restorer:
    """Puts records, labels and lasting leases into a database; if forced, leaves out content that can't be read."""

    metadata: SqliteMetadataStore
    content: ContentStore
    is_forced: bool
    _restored: list[ImageRecord] = field(default_factory=list)
    _skipped: list[tuple[ImageRecord, str]] = field(default_factory=list)

    def restore(self, *, has_journal: bool) -> RebuildReport:
        """Fill an empty database.

        Raises:
            StoreError: content can't be read, or the database can't be written; nothing is changed.
        """
        with self.metadata.exclusive():
            journaled = self.metadata.journaled()
            if journaled.store_id:
                self.metadata.take_id(journaled.store_id)
            report = self._restore_all(journaled)
            replaced = self._still_there(journaled)
            replaced_lease = self._keep(replaced)
            found, found_lease = self._keep_all(is_needed=not (has_journal and report.is_complete), report=report)
        return replace(report, replaced=replaced, replaced_lease=replaced_lease, found=found, found_lease=found_lease)

    def add_missing(self, *, reindexed: bool) -> RebuildReport:
        """Add what the journal knows and a whole database lacks, as after an incomplete rebuild.

        If its indexes were damaged (``reindexed``), rows may be lost too, so all content is kept for a while.

        Raises:
            StoreError: as restore().
        """
        with self.metadata.exclusive():
            report = self._restore_all(self._lacking(self.metadata.known_to_journal()))
            if report.is_complete:
                self._end_earlier()
            found, found_lease = self._keep_all(is_needed=reindexed or not report.is_complete, report=report)
        return replace(report, was_whole=not reindexed, reindexed=reindexed, found=found, found_lease=found_lease)

    def _restore_all(self, journaled: Journaled) -> RebuildReport:
        self._restore_records(journaled)
        labelled, leases = self._restore_labels(journaled), self._restore_leases(journaled)
        return RebuildReport(
            restored=tuple(self._restored),
            skipped=tuple(self._skipped),
            unreadable=journaled.unreadable,
            labelled=labelled,
            leases=leases,
        )

    def _lacking(self, journaled: Journaled) -> Journaled:
        """What the journal says about records, labels and leases that the database lacks."""
        records = {(record.reference, record.handler) for record in self.metadata.images.find()}
        leases = {lease.id for lease in self.metadata.leases.find()}
        return replace(
            journaled,
            candidates=[each for each in journaled.candidates if (each[0].reference, each[0].handler) not in records],
            labels={
                each: text for each, text in journaled.labels.items() if not self.metadata.graph.content_labels(each)
            },
            leases=[(lease, listed) for lease, listed in journaled.leases if lease.id not in leases],
        )

    def _restore_records(self, journaled: Journaled) -> None:
        """Restore each record whose content is all there, from its newest line for which that is so."""
        for newest_first in journaled.candidates:
            for record in newest_first:
                try:
                    edges = self._edges(record)
                except (ContentNotFoundError, IntegrityError, DocumentError, StoreReadOnlyError) as error:
                    self._check_forced(error)
                    if record is newest_first[0]:
                        self._skipped.append((record, str(error)))
                    continue
                self._restored.append(self.metadata.images.put(record, edges))
                for digest in record.labelled:
                    self.metadata.graph.put_edges(self._own_edges(digest))
                break

    def _check_forced(self, error: Exception) -> None:
        """End the work if content can't be read now."""
        if isinstance(error, _UNREADABLE) and not self.is_forced:
            raise StoreError(f"{error}; nothing was rebuilt", hint=UNREADABLE_HINT) from error

    def _restore_labels(self, journaled: Journaled) -> int:
        """Restore the labels of content that is there."""
        here = {digest: labels for digest, labels in journaled.labels.items() if self._exists(digest)}
        for digest, labels in here.items():
            self.metadata.graph.label_content(digest, labels)
            self.metadata.graph.put_edges(self._own_edges(digest))
        return len(here)

    def _restore_leases(self, journaled: Journaled) -> tuple[str, ...]:
        """Restore lasting leases that have not ended."""
        now = time.time()
        alive = [(lease, listed) for lease, listed in journaled.leases if lease.expires_at > now]
        for lease, listed in alive:
            # Whole in one step: if the process dies after it, the journal's last line about it is true.
            self.metadata.leases.create(
                lease.id,
                lifetime_seconds=lease.expires_at - now,
                labels=lease.labels,
                namespace=lease.namespace,
                content=listed,
            )
            for digest in listed:
                self.metadata.graph.put_edges(self._own_edges(digest))
        return tuple(lease.id for lease, _ in alive)

    def _still_there(self, journaled: Journaled) -> tuple[Digest, ...]:
        """What the last change may have replaced, if it is there and no record holds it."""
        held = {digest for record in self._restored for digest in record.held}
        return tuple(digest for digest in sorted(journaled.replaced - held) if self._exists(digest))

    def _keep(self, digests: Sequence[Digest]) -> str:
        """Lease content, with what it points at, for LIFETIME_SECONDS; return the lease's id."""
        if not digests:
            return ""
        lease_id = f"rebuild-replaced-{uuid.uuid4().hex}"
        self.metadata.leases.create(lease_id, lifetime_seconds=LIFETIME_SECONDS, content=digests)
        for digest in digests:
            self.metadata.graph.put_edges(self._own_edges(digest))
        return lease_id

    def _keep_all(self, *, is_needed: bool, report: RebuildReport) -> tuple[tuple[Digest, ...], str]:
        """Lease all content for a day if a record that was not restored may need it; return it and the lease's id."""
        if not is_needed:
            return (), ""
        found = tuple(info.digest for info in self.content.walk())
        # Missing content may come back before the next rebuild, and only lost documents say what belongs to it.
        return found, keep_found(self.metadata, found, keeps_all=not report.is_complete)

    def _end_earlier(self) -> None:
        """Delete the leases of earlier, incomplete rebuilds."""
        for lease in self.metadata.leases.find():
            if KEEP_ALL in lease.labels:
                self.metadata.leases.delete(lease.id)

    def _exists(self, digest: Digest) -> bool:
        try:
            return self.content.exists(digest)
        except _UNREADABLE as error:
            self._check_forced(error)
            return True

    def _own_edges(self, digest: Digest) -> dict[Digest, list[Digest]]:
        """Edges of content that may be a manifest; no record gives its type."""
        try:
            if self.content.info(digest).size > MAX_DOCUMENT_BYTES:
                return {}
            raw = self.content.read(digest, limit_bytes=MAX_DOCUMENT_BYTES)
        except (ContentNotFoundError, IntegrityError, StoreReadOnlyError) as error:
            self._check_forced(error)
            return {}
        for media_type in (OCI_MANIFEST, DOCKER_MANIFEST):
            with contextlib.suppress(DocumentError):
                manifest = Manifest.parse(raw, media_type=media_type, what=f"content {digest}")
                return {digest: [child.digest for child in manifest.children]}
        return {}

    def _edges(self, record: ImageRecord) -> dict[Digest, list[Digest]]:
        """The edges of the record's manifests, whose children must all be there."""
        edges: dict[Digest, list[Digest]] = {}
        read = self.content.read
        for held in held_documents(record, lambda each: read(each.digest, limit_bytes=limit_of(each.kind))):
            if held.error is not None:
                raise held.error
            if held.manifest is not None:
                edges[held.digest] = [child.digest for child in held.manifest.children]
                for child in edges[held.digest]:
                    self.content.path(child)
        return edges
