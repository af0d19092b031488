"""Rebuilding a damaged database: make a new one with each record whose content is all there, then exchange them.

The journal beside the database says which records, labels and lasting leases there were; the content says which of them
are true. Whether the last transaction was committed before the damage may be uncertain: then what it changed comes
back, and what it replaced is kept for a day by a lease.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import sync_directory, translated
from imagestore.content.local import LocalContentStore
from imagestore.content.locks import FileLock
from imagestore.documents.decode import MAX_DOCUMENT_BYTES
from imagestore.documents.manifest import Manifest
from imagestore.errors import ContentNotFoundError, DocumentError, IntegrityError, StoreBusyError, StoreCorruptError
from imagestore.failpoint import reach
from imagestore.lease import LIFETIME_SECONDS, keep_found
from imagestore.media_types import DOCKER_MANIFEST, OCI_MANIFEST
from imagestore.metadata import location
from imagestore.metadata.journal import RecordJournal
from imagestore.metadata.schema import ForeignDatabaseError, SchemaTooNewError
from imagestore.metadata.sqlite import SqliteMetadataStore
from imagestore.upkeep.held import held_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from imagestore.digest import Digest
    from imagestore.metadata.journal_reading import Journaled
    from imagestore.metadata.records import ImageRecord


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What became of the records.

    Attributes:
        was_whole: the database is not damaged; nothing was done.
        kept_as: where the damaged database is now, or None.
        restored: records that are back.
        labelled: how much content has its labels back.
        leases: ids of the lasting leases that are back.
        skipped: (record, reason) of those whose content is not all there.
        unreadable: lines of the journal that can't be read.
        replaced: what the last change replaced, if nothing tells whether that change was committed.
        replaced_lease: id of the lease that keeps it for LIFETIME_SECONDS; empty when there is nothing to keep.
        found: content of which nothing tells what it is for, since there is no journal.
        found_lease: id of the lease that keeps it for LIFETIME_SECONDS; empty when there is nothing to keep.
    """

    was_whole: bool
    kept_as: Path | None
    restored: tuple[ImageRecord, ...]
    skipped: tuple[tuple[ImageRecord, str], ...]
    unreadable: int
    labelled: int = 0
    leases: tuple[str, ...] = ()
    replaced: tuple[Digest, ...] = ()
    replaced_lease: str = ""
    found: tuple[Digest, ...] = ()
    found_lease: str = ""


_WHOLE: Final = RebuildReport(was_whole=True, kept_as=None, restored=(), skipped=(), unreadable=0)


def rebuild(root: Path) -> RebuildReport:
    """Restore the records of a store whose database is damaged. Nothing else may use the store meanwhile.

    Args:
        root: the store's folder.

    Raises:
        StoreBusyError: another process is rebuilding it.
        StoreMissingError: there is nothing to rebuild one from.
        StoreError: the folder can't be used, or the database is from a newer version or another program.
    """
    path = root / "metadata.db"
    if not (root / "content").is_dir():  # content alone, and be it none, is what this is for
        location.refuse_missing(path)
    if _is_whole(path):
        return _WHOLE
    content = LocalContentStore(root / "content", root / "locks")
    with FileLock(root / "locks" / "rebuild") as lock, translated("rebuild", path):
        if not lock.try_acquire():
            raise StoreBusyError(f"{path}: another process is rebuilding it", hint="wait for it")
        if _is_whole(path):  # by another, since the look
            return _WHOLE
        fresh = path.with_name("metadata.db.rebuilt")
        _remove(fresh)
        has_journal = RecordJournal.beside(path).has_entries()
        metadata = SqliteMetadataStore(fresh, is_rebuilding=True)
        try:
            report = _restored(metadata, content, has_journal=has_journal)
        finally:
            metadata.close()
        kept_as = _put_aside(path)
        reach("rebuild-replace")
        os.replace(fresh, path)
        sync_directory(root)
    return replace(report, kept_as=kept_as)


def _restored(metadata: SqliteMetadataStore, content: LocalContentStore, *, has_journal: bool) -> RebuildReport:
    """Fill an empty database with what the journal says and the content bears out."""
    with metadata.exclusive():
        journaled = metadata.journaled()
        restored, skipped = _restore_records(metadata, content, journaled)
        labelled = _restore_labels(metadata, content, journaled)
        leases = _restore_leases(metadata, content, journaled)
        replaced = _still_there(content, journaled, restored)
        replaced_lease = _keep(metadata, content, replaced)
        found = () if has_journal else tuple(info.digest for info in content.walk())
        found_lease = keep_found(metadata, found)
    return RebuildReport(
        was_whole=False,
        kept_as=None,
        restored=tuple(restored),
        skipped=tuple(skipped),
        unreadable=journaled.unreadable,
        labelled=labelled,
        leases=leases,
        replaced=replaced,
        replaced_lease=replaced_lease,
        found=found,
        found_lease=found_lease,
    )


def _restore_records(
    metadata: SqliteMetadataStore, content: LocalContentStore, journaled: Journaled
) -> tuple[list[ImageRecord], list[tuple[ImageRecord, str]]]:
    """Put each record back whose content is all there; an older line about it serves where the newest doesn't."""
    restored: list[ImageRecord] = []
    skipped: list[tuple[ImageRecord, str]] = []
    for newest_first in journaled.candidates:
        reasons: list[str] = []
        for record in newest_first:
            try:
                edges = _edges(content, record)
            except (ContentNotFoundError, IntegrityError, DocumentError) as error:
                reasons.append(str(error))
                continue
            restored.append(metadata.put_image(record, edges))
            for digest in record.labelled:
                metadata.put_edges(_own_edges(content, digest))
            break
        else:
            skipped.append((newest_first[0], reasons[0]))
    return restored, skipped


def _restore_labels(metadata: SqliteMetadataStore, content: LocalContentStore, journaled: Journaled) -> int:
    """Label what is there as it was labelled."""
    here = {digest: labels for digest, labels in journaled.labels.items() if content.exists(digest)}
    for digest, labels in here.items():
        metadata.label_content(digest, labels)
        metadata.put_edges(_own_edges(content, digest))
    return len(here)


def _restore_leases(metadata: SqliteMetadataStore, content: LocalContentStore, journaled: Journaled) -> tuple[str, ...]:
    """Make lasting leases again that have not ended."""
    now = time.time()
    alive = [(lease, listed) for lease, listed in journaled.leases if lease.expires_at > now]
    for lease, listed in alive:
        # Whole in one step: who dies behind it leaves a journal whose last word about it is true.
        metadata.create_lease(
            lease.id,
            lifetime_seconds=lease.expires_at - now,
            labels=lease.labels,
            namespace=lease.namespace,
            content=listed,
        )
        for digest in listed:
            metadata.put_edges(_own_edges(content, digest))
    return tuple(lease.id for lease, _ in alive)


def _still_there(
    content: LocalContentStore, journaled: Journaled, restored: Iterable[ImageRecord]
) -> tuple[Digest, ...]:
    """What the last change may have replaced, as far as it is there and no record holds it."""
    held = {digest for record in restored for digest in record.held}
    return tuple(digest for digest in sorted(journaled.replaced - held) if content.exists(digest))


def _keep(metadata: SqliteMetadataStore, content: LocalContentStore, digests: Sequence[Digest]) -> str:
    """Lease content, with what it points at, for as long as running work is given; return the lease's id."""
    if not digests:
        return ""
    lease_id = f"rebuild-replaced-{uuid.uuid4().hex}"
    metadata.create_lease(lease_id, lifetime_seconds=LIFETIME_SECONDS, content=digests)
    for digest in digests:
        metadata.put_edges(_own_edges(content, digest))
    return lease_id


def _own_edges(content: LocalContentStore, digest: Digest) -> dict[Digest, list[Digest]]:
    """What content points at that may be a manifest; nobody says what it is."""
    try:
        if content.info(digest).size > MAX_DOCUMENT_BYTES:
            return {}
        raw = content.read(digest, limit_bytes=MAX_DOCUMENT_BYTES)
    except (ContentNotFoundError, IntegrityError):
        return {}
    for media_type in (OCI_MANIFEST, DOCKER_MANIFEST):
        with contextlib.suppress(DocumentError):
            manifest = Manifest.parse(raw, media_type=media_type, what=f"content {digest}")
            return {digest: [child.digest for child in manifest.children]}
    return {}


def _refuse_empty(_: SqliteMetadataStore) -> None:
    raise StoreCorruptError("the database has no tables: who made it had no space, or died")


def _is_whole(path: Path) -> bool:
    if not location.has_database(path):
        return False
    try:
        metadata = SqliteMetadataStore(path, on_making=_refuse_empty)
    except SchemaTooNewError:
        raise
    except ForeignDatabaseError:
        if RecordJournal.beside(path).has_entries():
            return False  # the mark is what was damaged
        raise
    except StoreCorruptError:
        return False
    try:
        # Only they know what is no digest.
        for record in metadata.find_images():
            for digest in record.roots:
                metadata.own_children(digest)
        return not metadata.damage()
    except StoreCorruptError:
        return False
    finally:
        metadata.close()


def _put_aside(path: Path) -> Path | None:
    """Give the damaged database another name, with its log, so that nothing of it is lost; None where there is none.

    Who dies meanwhile leaves all of it or no database: without its log it would be an older one that may look whole.
    And SQLite would play a log that stays into the new one.
    """
    number = 1
    while any(os.path.lexists(f"{path}.damaged-{number}{suffix}") for suffix in ("", "-wal")):
        number += 1
    target = path.with_name(f"{path.name}.damaged-{number}")
    with contextlib.suppress(FileNotFoundError):
        reach("rebuild-link")
        _name_twice(f"{path}-wal", f"{target}-wal")
    kept_as: Path | None = None
    with contextlib.suppress(FileNotFoundError):
        reach("rebuild-rename")
        os.rename(path, target)
        kept_as = target
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            reach("rebuild-unlink")
            os.unlink(f"{path}{suffix}")
    sync_directory(path.parent)
    return kept_as


def _name_twice(path: str, target: str) -> None:
    """Give a file a second name; a copy where the file system knows no second names."""
    try:
        os.link(path, target)
    except OSError as error:
        from imagestore.metadata.copying import NO_LINKS

        if error.errno not in NO_LINKS:
            raise
        import shutil

        shutil.copyfile(path, target)


def _remove(path: Path) -> None:
    """Remove what an interrupted rebuild left."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def _edges(content: LocalContentStore, record: ImageRecord) -> dict[Digest, list[Digest]]:
    """What the record's manifests point at, all of it present."""
    edges: dict[Digest, list[Digest]] = {}
    read = content.read
    for held in held_documents(record, lambda each: read(each.digest, limit_bytes=MAX_DOCUMENT_BYTES)):
        if held.error is not None:
            raise held.error
        if held.manifest is not None:
            edges[held.digest] = [child.digest for child in held.manifest.children]
            for child in edges[held.digest]:
                content.path(child)
    return edges
