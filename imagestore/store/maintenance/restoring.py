"""What a rebuild restores: the records of a copy of the database, as far as their content is there.

A record stays only if every index, its manifest, config and layers are there and the documents have the right hash; the
others were removed after the copy was made, or their content is away. Content that can't be read now ends the work,
since a later try may read it; in a forced rebuild the record stays. Names that were given after the copy was made are
lost. What they named is kept for a day, and a pull of the name needs nothing of it again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ContentNotFoundError,
    ContentUnreadableError,
    DocumentError,
    IntegrityError,
    StoreError,
    StoreReadOnlyError,
)
from imagestore.oci.decode import MAX_INDEX_BYTES, limit_of
from imagestore.oci.digest import as_written
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST
from imagestore.store.leases import keep_found
from imagestore.store.maintenance.why import held_documents

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.content.api import ContentStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.metadata.sqlite.store import SqliteMetadataStore
    from imagestore.oci.digest import Digest

#: Errors that say nothing about content: the disk can't read it, or this user may not.
_UNREADABLE: Final = (ContentUnreadableError, StoreReadOnlyError)
#: What to do when such content ended a rebuild.
UNREADABLE_HINT: Final = "mount or repair the disk and try again; with --force records whose content can't be read stay"


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild restored.

    Attributes:
        was_whole: the database is not damaged; nothing was changed.
        kept_as: where the damaged database is now, or None.
        copy: the copy whose records were restored, or None if there was no good one.
        restored: records.
        skipped: (record, reason) of records of the copy that were not restored.
        unnamed: indexes and manifests that no record leads to; they may have had a name that the copy doesn't know.
        found: all content that is there.
        found_lease: id of the lease that keeps it for LIFETIME_SECONDS; empty if there is nothing to keep. If records
            were skipped it keeps all content, also what comes later.
        reindexed: the database's indexes were damaged and were made again from its tables.
    """

    was_whole: bool = False
    kept_as: Path | None = None
    copy: Path | None = None
    restored: tuple[ImageRecord, ...] = ()
    skipped: tuple[tuple[ImageRecord, str], ...] = ()
    unnamed: tuple[Digest, ...] = ()
    found: tuple[Digest, ...] = ()
    found_lease: str = ""
    reindexed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every record of the copy was restored."""
        return not self.skipped


@dataclass(slots=True)
class Restorer:
    """Adapts the records of a copy to the content that is there; if forced, records with unreadable content stay."""

    metadata: SqliteMetadataStore
    content: ContentStore
    is_forced: bool
    _restored: list[ImageRecord] = field(default_factory=list)
    _skipped: list[tuple[ImageRecord, str]] = field(default_factory=list)

    def restore(self) -> RebuildReport:
        """Keep what is there, remove records whose content is gone, and lease all content.

        Raises:
            StoreError: content can't be read, or the database can't be written; nothing is changed.
        """
        with self.metadata.exclusive():
            for record in self.metadata.images.find():
                self._check(record)
            self.metadata.images.remove((record.reference, record.handler) for record, _ in self._skipped)
            self._forget_labels()
            found = tuple(info.digest for info in self.content.walk())
            unnamed = self._adopt(found)
            # Missing content may come back, and only lost documents say what belongs to it.
            found_lease = keep_found(self.metadata, found, keeps_all=bool(self._skipped))
        return RebuildReport(
            restored=tuple(self._restored),
            skipped=tuple(self._skipped),
            unnamed=unnamed,
            found=found,
            found_lease=found_lease,
        )

    def keep_all(self) -> RebuildReport:
        """Lease all content of a database whose indexes were made again: rows may be lost too."""
        with self.metadata.exclusive():
            found = tuple(info.digest for info in self.content.walk())
            return RebuildReport(found=found, found_lease=keep_found(self.metadata, found), reindexed=True)

    def _check(self, record: ImageRecord) -> None:
        """Note whether a record is restored; its edges are what its manifests say."""
        try:
            self.metadata.graph.put_edges(self._edges(record))
        except (ContentNotFoundError, IntegrityError, DocumentError, StoreReadOnlyError) as error:
            if not isinstance(error, _UNREADABLE):
                self._skipped.append((record, str(error)))
                return
            if not self.is_forced:
                raise StoreError(f"{error}; nothing was rebuilt", hint=UNREADABLE_HINT) from error
        self._restored.append(record)

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

    def _forget_labels(self) -> None:
        """Labels of content that is gone would keep what they name for ever."""
        labelled = map(as_written, self.metadata.graph.labelled())
        self.metadata.graph.forget_content([str(digest) for digest in labelled if not self._exists(digest)])

    def _exists(self, digest: Digest) -> bool:
        try:
            return self.content.exists(digest)
        except _UNREADABLE:
            return True

    def _adopt(self, found: tuple[Digest, ...]) -> tuple[Digest, ...]:
        """Give manifests that nothing keeps their edges; return what no other content of that kind names."""
        tops: set[Digest] = set()
        named: set[Digest] = set()
        for digest in map(as_written, self.metadata.graph.garbage(map(str, found))):
            document = self._document(digest)
            if document is not None:
                tops.add(digest)
                below = document.manifests if isinstance(document, Index) else document.children
                named.update(each.digest for each in below)
                if isinstance(document, Manifest):
                    self.metadata.graph.put_edges({digest: [each.digest for each in below]})
        return tuple(sorted(tops - named))

    def _document(self, digest: Digest) -> Manifest | Index | None:
        """Content as an index or a manifest, if it is one; no record gives its type."""
        try:
            if self.content.info(digest).size > MAX_INDEX_BYTES:
                return None
            raw = self.content.read(digest, limit_bytes=MAX_INDEX_BYTES)
        except (ContentNotFoundError, IntegrityError, StoreReadOnlyError):
            return None
        for media_type in (OCI_MANIFEST, DOCKER_MANIFEST):
            with contextlib.suppress(DocumentError):
                return Manifest.parse(raw, media_type=media_type, what=f"content {digest}")
        for media_type in (OCI_INDEX, DOCKER_LIST):
            with contextlib.suppress(DocumentError):
                return Index.parse(raw, media_type=media_type, what=f"content {digest}")
        return None
