"""Replacing a store's database: rebuild() takes the newest good copy, restore_backup() a backup.

The copies next to the database have all that it has (see ``metadata/sqlite/copies``), as of the day when each was made;
``restoring`` adapts what they say to the content that is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.content.blob_files import names
from imagestore.content.local import LocalContentStore
from imagestore.errors import InvalidInputError, StoreBusyError, StoreCorruptError, StoreError
from imagestore.metadata.sqlite import earlier_journal, location
from imagestore.metadata.sqlite.backup import refuse_unrestorable
from imagestore.metadata.sqlite.copies import DatabaseCopies
from imagestore.metadata.sqlite.earlier_journal import EarlierJournal
from imagestore.metadata.sqlite.last_change import LastChangeNote
from imagestore.metadata.sqlite.schema import ForeignDatabaseError, SchemaTooNewError
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.store.maintenance.restoring import RebuildReport, Restorer
from imagestore.util import files
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach
from imagestore.util.file_locks import FileLock
from imagestore.util.files import make_directories, sync_directory
from imagestore.util.root_folder import refuse_untrusted

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.metadata.sqlite.copies import DatabaseCopy


def rebuild(root: Path, *, is_forced: bool = False) -> RebuildReport:
    """Restore the records of a store whose database is damaged. Nothing else may use the store during that time.

    If only indexes are damaged, they are made again. If forced, the records of the newest copy are taken even if the
    database looks whole, or there is no content, or some can't be read, or an older version's journal knows more.

    Raises:
        StoreBusyError: another process is rebuilding it.
        StoreMissingError: there is nothing to rebuild one from.
        StoreError: the content is missing or can't be read, another user may have prepared the store, the folder
            can't be used, or the database or its newest copy is from a newer version or another program.
    """
    path = root / "metadata.db"
    refuse_untrusted(root)
    if not (root / "content").is_dir():  # a content folder alone, even an empty one, can be rebuilt from
        location.refuse_missing(path)
    is_whole = _is_whole(path)  # before anything is made: refuses another program's database
    with translated("rebuild", path):
        make_directories([root / "locks"])
        with FileLock(root / "locks" / "rebuild") as lock:
            if not lock.try_acquire():
                raise StoreBusyError(f"{path}: another process is rebuilding it", hint="wait for it")
            if not is_forced:
                if is_whole or _is_whole(path):  # another process may have rebuilt it since the first look
                    return RebuildReport(was_whole=True)
                if _is_whole(path, is_reindexing=True):
                    return _reindexed(root)
                _refuse_without_content(root)
                _copy_older(path)
                _refuse_without_journal(path)
            return _rebuilt(root, is_forced=is_forced)


def _refuse_without_content(root: Path) -> None:
    """Refuse a rebuild without any content: its disk may not be mounted, and all records would be lost.

    Raises:
        StoreError: there is no content, but something to rebuild.
    """
    if next(names(root / "content" / "blobs"), None) is not None:
        return
    path = root / "metadata.db"
    if location.has_database(path) or _copies(path).found():
        raise StoreError(
            f"{root / 'content'}: has no content, so no record could be restored; nothing was rebuilt",
            hint="mount the disk with the content, or move it back; --force makes a database without it",
        )


def _refuse_without_journal(path: Path) -> None:
    """Refuse to lose what only the journal of an older version knows.

    Raises:
        StoreError: there is one, and no copy.
    """
    journal = EarlierJournal(path)
    if journal.has_entries() and not _copies(path).found():
        raise StoreError(
            f"{path}: there is no copy of it, but the journal {journal.path.name} of an older version",
            hint=f"{earlier_journal.HINT}; --force makes a database without it",
        )


def _copies(path: Path) -> DatabaseCopies:
    return DatabaseCopies(path, time.time)


def _copy_older(path: Path) -> None:
    """Make a copy of an older database of this store that was put in its place: it may know more than the copies."""
    noted = LastChangeNote(path).read()
    if noted is None or not location.has_database(path):
        return
    with contextlib.suppress(StoreError):
        metadata = SqliteMetadataStore(path, on_making=_refuse_empty)
        with contextlib.closing(metadata):
            number = metadata.generation()
            if metadata.store_id == noted.store and number is not None and number < noted.number:
                metadata.keep_copy(at_once=True)


def _rebuilt(root: Path, *, is_forced: bool) -> RebuildReport:
    """Make a new database, and replace the damaged one."""
    path = root / "metadata.db"
    content = LocalContentStore(root / "content", root / "locks")
    fresh = path.with_name("metadata.db.rebuilt")
    copies = _copies(path)
    try:
        copy = _take_newest(copies, fresh)
        with contextlib.closing(SqliteMetadataStore(fresh, is_rebuilding=True)) as metadata:
            report = Restorer(metadata, content, is_forced).restore()
    except StoreError:
        _remove(fresh)
        raise
    kept = None
    if copy is not None:
        kept = copy.path if report.is_complete else copies.keep_incomplete(copy)
    kept_as = put_aside(path, "damaged")
    reach("rebuild-replace")
    os.replace(fresh, path)
    sync_directory(root)
    return replace(report, kept_as=kept_as, copy=kept)


def _take_newest(copies: DatabaseCopies, fresh: Path) -> DatabaseCopy | None:
    """Put the newest whole copy where the new database is made; None if there is none."""
    for copy in copies.found():
        _remove(fresh)
        _copy(copy.path, fresh)
        for is_reindexing in (False, True):
            if _is_whole(fresh, is_reindexing=is_reindexing, is_rebuilding=True):
                return copy
    _remove(fresh)
    return None


def _reindexed(root: Path) -> RebuildReport:
    """Keep all content for a while: with a damaged index, rows may be lost too."""
    content = LocalContentStore(root / "content", root / "locks")
    with contextlib.closing(SqliteMetadataStore(root / "metadata.db")) as metadata:
        return Restorer(metadata, content, is_forced=False).keep_all()


def _refuse_empty(_: SqliteMetadataStore) -> None:
    raise StoreCorruptError("the database has no tables: its maker had no space, or died")


def _is_whole(path: Path, *, is_reindexing: bool = False, is_rebuilding: bool = False) -> bool:
    """Whether nothing is wrong with the database, or only its indexes, if those may be made again."""
    if not location.has_database(path):
        return False
    try:
        metadata = SqliteMetadataStore(path, on_making=_refuse_empty, is_rebuilding=is_rebuilding)
    except SchemaTooNewError:
        raise
    except ForeignDatabaseError:
        if _copies(path).found() or EarlierJournal(path).has_entries():
            return False  # it is ours: only the mark in its header was damaged
        raise
    except StoreCorruptError:
        return False
    with contextlib.closing(metadata):
        try:
            if is_reindexing and not metadata.reindex():
                return False
            # Reading them finds texts that are no digests.
            for record in metadata.images.find():
                for digest in record.roots:
                    metadata.graph.own_children(digest)
            return not metadata.damage()
        except StoreCorruptError:
            return False


def put_aside(path: Path, why: str) -> Path | None:
    """Rename a database with its log, so that nothing of it is lost; None if there is no database.

    If the process dies, database and log are both there or the database is gone: without its log it would be an older
    one that may look whole. And SQLite would apply a log that stays to the new database.
    """
    number = 1
    while any(os.path.lexists(f"{path}.{why}-{number}{suffix}") for suffix in ("", "-wal")):
        number += 1
    target = path.with_name(f"{path.name}.{why}-{number}")
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
    """Link a file to a second name; copy it on file systems without hard links."""
    try:
        os.link(path, target)
    except OSError as error:
        from imagestore.metadata.sqlite.backup import NO_LINKS

        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(path, target)


def _remove(path: Path) -> None:
    """Remove the database of an interrupted rebuild."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def restore_backup(root: Path, file: Path) -> Path | None:
    """Replace a store's records by those of a backup. Nothing else may use the store during that time.

    The content stays: check and repair find and fetch what was collected since the backup; the next collection frees
    what no record of the backup needs.

    Returns:
        Where the replaced database is, or None.

    Raises:
        InvalidInputError: the file can't be read, or isn't a whole backup that this version can read.
        StoreBusyError: another process is rebuilding or restoring the store.
        StoreError: the folder can't be used, or another user may have prepared it.
    """
    refuse_untrusted(root)
    path = root / "metadata.db"
    fresh = path.with_name("metadata.db.restored")
    with translated("restore", path):
        make_directories([root, root / "locks"])
        with FileLock(root / "locks" / "rebuild") as lock:
            if not lock.try_acquire():
                raise StoreBusyError(f"{path}: another process is rebuilding it", hint="wait for it")
            try:
                _copy(file, fresh)
                refuse_unrestorable(fresh, named=file)
                kept_as = put_aside(path, "replaced")
                reach("restore-replace")
                os.replace(fresh, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(fresh)
        sync_directory(root)
    return kept_as


def _copy(file: Path, target: Path) -> None:
    try:
        files.check_regular(file)
        source = open(file, "rb")  # noqa: SIM115 - closed below; only its opening is the caller's fault
    except OSError as error:
        raise InvalidInputError(f"{file}: can't be read: {error.strerror}") from error
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with source, os.fdopen(descriptor, "wb") as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(descriptor)
