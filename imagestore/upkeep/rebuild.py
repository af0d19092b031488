"""Rebuilding a damaged database: make a new one with each record whose content is all there, then exchange them.

The journal beside the database says which records there were; the content says which of them are true.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.content.disk import sync_directory, translated
from imagestore.content.local import LocalContentStore
from imagestore.documents.decode import MAX_DOCUMENT_BYTES
from imagestore.errors import ContentNotFoundError, DocumentError, IntegrityError, StoreCorruptError
from imagestore.failpoint import reach
from imagestore.metadata.database import SchemaTooNewError
from imagestore.metadata.sqlite import SqliteMetadataStore
from imagestore.upkeep.held import held_documents

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.digest import Digest
    from imagestore.metadata.api import ImageRecord


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What became of the records.

    Attributes:
        was_whole: the database is not damaged; nothing was done.
        kept_as: where the damaged database is now, or None.
        restored: records that are back.
        skipped: (record, reason) of those whose content is not all there.
        unreadable: lines of the journal that can't be read.
    """

    was_whole: bool
    kept_as: Path | None
    restored: tuple[ImageRecord, ...]
    skipped: tuple[tuple[ImageRecord, str], ...]
    unreadable: int


def rebuild(root: Path) -> RebuildReport:
    """Restore the records of a store whose database is damaged. Nothing else may use the store meanwhile.

    Args:
        root: the store's folder.

    Raises:
        StoreError: the folder can't be used, or the database is from a newer version.
    """
    path = root / "metadata.db"
    if _is_whole(path):
        return RebuildReport(True, None, (), (), 0)
    with translated("rebuild", path):
        fresh = path.with_name("metadata.db.rebuilt")
        _remove(fresh)
        metadata = SqliteMetadataStore(fresh, is_rebuilding=True)
        try:
            with metadata.exclusive():
                restored, skipped, unreadable = _restore(metadata, LocalContentStore(root / "content", root / "locks"))
        finally:
            metadata.close()
        kept_as = _put_aside(path)
        reach("rebuild-replace")
        os.replace(fresh, path)
        sync_directory(root)
    return RebuildReport(False, kept_as, tuple(restored), tuple(skipped), unreadable)


def _restore(
    metadata: SqliteMetadataStore, content: LocalContentStore
) -> tuple[list[ImageRecord], list[tuple[ImageRecord, str]], int]:
    """Put each record back whose content is all there; an older line about it serves where the newest doesn't."""
    restored: list[ImageRecord] = []
    skipped: list[tuple[ImageRecord, str]] = []
    journaled = metadata.journaled()
    for newest_first in journaled.candidates:
        reasons: list[str] = []
        for record in newest_first:
            try:
                edges = _edges(content, record)
            except (ContentNotFoundError, IntegrityError, DocumentError) as error:
                reasons.append(str(error))
                continue
            restored.append(metadata.put_image(record, edges))
            break
        else:
            skipped.append((newest_first[0], reasons[0]))
    return restored, skipped, journaled.unreadable


def _is_whole(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        metadata = SqliteMetadataStore(path)
    except SchemaTooNewError:
        raise
    except StoreCorruptError:
        return False
    try:
        metadata.find_images()
        return not metadata.damage()
    except StoreCorruptError:
        return False
    finally:
        metadata.close()


def _put_aside(path: Path) -> Path | None:
    """Give the damaged database a second name and move its log there, so that nothing of it is lost.

    The log goes before the new database comes: SQLite would play an old log into it.
    """
    if not path.exists():
        return None
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    reach("rebuild-link")
    os.link(path, target)
    for suffix in ("-wal", "-shm"):
        reach("rebuild-rename")
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{target}{suffix}")
    return target


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
