"""What a rebuild puts back: what the journal says, as far as the content bears it out.

A record comes back only if every index, its manifest, config and layers are there and the documents hash right. Content
that can't be read now ends the work, since it may be readable a moment later; a forced rebuild passes over it.
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
from imagestore.oci.decode import MAX_DOCUMENT_BYTES
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

#: What says nothing of content: the disk can't read it, or this user may not.
_UNREADABLE: Final = (ContentUnreadableError, StoreReadOnlyError)
#: How a rebuild goes on that content ended.
UNREADABLE_HINT: Final = "mount or repair the disk and try again; with --force what can't be read is left out"


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What became of the records.

    Attributes:
        was_whole: the database is not damaged; it only got what the journal knows besides.
        kept_as: where the damaged database is now, or None.
        restored: records that are back.
        labelled: how much content has its labels back.
        leases: ids of the lasting leases that are back.
        skipped: (record, reason) of those that are not back as the journal has them.
        unreadable: lines of the journal that can't be read.
        replaced: what the last change replaced, if nothing tells whether that change was committed.
        replaced_lease: id of the lease that keeps it for LIFETIME_SECONDS; empty when there is nothing to keep.
        found: all content, if there is no journal, or something is not back: it may be that record's.
        found_lease: id of the lease that keeps it for LIFETIME_SECONDS; empty when there is nothing to keep. If
            something is not back, it keeps all content, also what comes later.
        reindexed: the database's indexes were damaged and were made anew from its tables.
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
        """Whether all that the journal says is back."""
        return not self.skipped and not self.unreadable


@dataclass(slots=True)
class Restorer:
    """Puts records, labels and lasting leases into a database.

    Attributes:
        metadata: the database.
        content: what the records need.
        is_forced: pass over content that can't be read.
    """

    metadata: SqliteMetadataStore
    content: ContentStore
    is_forced: bool
    _restored: list[ImageRecord] = field(default_factory=list)
    _skipped: list[tuple[ImageRecord, str]] = field(default_factory=list)

    def restore(self, *, has_journal: bool) -> RebuildReport:
        """Fill an empty database.

        Raises:
            StoreError: content can't be read, or the database not be written; nothing is changed.
        """
        with self.metadata.exclusive():
            journaled = self.metadata.journaled()
            self._restore_records(journaled)
            labelled = self._restore_labels(journaled)
            leases = self._restore_leases(journaled)
            replaced = self._still_there(journaled)
            replaced_lease = self._keep(replaced)
            found, found_lease = self._keep_all(journaled, is_needed=not has_journal)
        return RebuildReport(
            restored=tuple(self._restored),
            skipped=tuple(self._skipped),
            unreadable=journaled.unreadable,
            labelled=labelled,
            leases=leases,
            replaced=replaced,
            replaced_lease=replaced_lease,
            found=found,
            found_lease=found_lease,
        )

    def add_missing(self, *, reindexed: bool) -> RebuildReport:
        """Add what the journal knows and a whole database lacks, as after a rebuild that had to pass over something.

        Args:
            reindexed: its indexes were damaged; then rows may be lost too, so all content is kept for a while.

        Raises:
            StoreError: as restore().
        """
        with self.metadata.exclusive():
            journaled = self._lacking(self.metadata.known_to_journal())
            self._restore_records(journaled)
            labelled = self._restore_labels(journaled)
            leases = self._restore_leases(journaled)
            if not self._skipped and not journaled.unreadable:
                self._end_earlier()
            found, found_lease = self._keep_all(journaled, is_needed=reindexed)
        return RebuildReport(
            was_whole=not reindexed,
            restored=tuple(self._restored),
            skipped=tuple(self._skipped),
            unreadable=journaled.unreadable,
            labelled=labelled,
            leases=leases,
            found=found,
            found_lease=found_lease,
            reindexed=reindexed,
        )

    def _lacking(self, journaled: Journaled) -> Journaled:
        """What the journal says of records, labels and leases that aren't in the database."""
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
        """Put each record back whose content is all there; an older line about it serves where the newest doesn't."""
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
        """End the work where content can't be read now."""
        if isinstance(error, _UNREADABLE) and not self.is_forced:
            raise StoreError(f"{error}; nothing was rebuilt", hint=UNREADABLE_HINT) from error

    def _restore_labels(self, journaled: Journaled) -> int:
        """Label what is there as it was labelled."""
        here = {digest: labels for digest, labels in journaled.labels.items() if self._exists(digest)}
        for digest, labels in here.items():
            self.metadata.graph.label_content(digest, labels)
            self.metadata.graph.put_edges(self._own_edges(digest))
        return len(here)

    def _restore_leases(self, journaled: Journaled) -> tuple[str, ...]:
        """Make lasting leases again that have not ended."""
        now = time.time()
        alive = [(lease, listed) for lease, listed in journaled.leases if lease.expires_at > now]
        for lease, listed in alive:
            # Whole in one step: if the process dies behind it, the journal's last word about it is true.
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
        """What the last change may have replaced, as far as it is there and no record holds it."""
        held = {digest for record in self._restored for digest in record.held}
        return tuple(digest for digest in sorted(journaled.replaced - held) if self._exists(digest))

    def _keep(self, digests: Sequence[Digest]) -> str:
        """Lease content, with what it points at, for as long as running work is given; return the lease's id."""
        if not digests:
            return ""
        lease_id = f"rebuild-replaced-{uuid.uuid4().hex}"
        self.metadata.leases.create(lease_id, lifetime_seconds=LIFETIME_SECONDS, content=digests)
        for digest in digests:
            self.metadata.graph.put_edges(self._own_edges(digest))
        return lease_id

    def _keep_all(self, journaled: Journaled, *, is_needed: bool) -> tuple[tuple[Digest, ...], str]:
        """Lease all content for a day if what is not back may need some of it; return it and the lease's id."""
        is_incomplete = bool(self._skipped or journaled.unreadable)
        if not (is_needed or is_incomplete):
            return (), ""
        found = tuple(info.digest for info in self.content.walk())
        # What is away may come back before the next rebuild, and only lost documents say what belongs to it.
        return found, keep_found(self.metadata, found, keeps_all=is_incomplete)

    def _end_earlier(self) -> None:
        """Let go of what earlier rebuilds kept because they passed over what is back now."""
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
        """What content points at that may be a manifest; nothing says what it is."""
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
        """What the record's manifests point at, all of it present."""
        edges: dict[Digest, list[Digest]] = {}
        read = self.content.read
        for held in held_documents(record, lambda each: read(each.digest, limit_bytes=MAX_DOCUMENT_BYTES)):
            if held.error is not None:
                raise held.error
            if held.manifest is not None:
                edges[held.digest] = [child.digest for child in held.manifest.children]
                for child in edges[held.digest]:
                    self.content.path(child)
        return edges
