"""Copies of the database, from which a rebuild restores the records of one that is destroyed.

``copies/`` next to the database has the newest two, named by the number of their last change: ``metadata-17.db``. The
database itself is as durable as SQLite makes it; a copy is for the day when its file is gone or damaged. Each is a
backup (see ``backup``), so ``restore`` takes it too. Two more are kept until the next of their kind: the one made
before the schema was migrated (``metadata-17.schema-6.db``), and the one whose rebuild was incomplete
(``metadata-17.incomplete.db``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreCorruptError, StoreError
from imagestore.metadata.sqlite import backup, schema
from imagestore.metadata.sqlite.failures import Translated
from imagestore.util.failpoint import reach
from imagestore.util.file_locks import flock_alone
from imagestore.util.files import sync_directory
from imagestore.util.try_lock import try_lock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

log = logging.getLogger(__name__)

FOLDER: Final = "copies"
#: The least time between two copies that nothing else asks for.
AGE_SECONDS: Final = 3600.0
_MOST: Final = 2
_NAME: Final = re.compile(r"metadata-(\d{1,19})(?:\.(schema-\d{1,9}|incomplete))?\.db", re.ASCII)
#: A copy that is being made, and SQLite's files next to it.
_UNFINISHED: Final = ".new.db"
_TAIL: Final = ("", "-journal", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class DatabaseCopy:
    """A finished copy.

    Attributes:
        number: of the last change in it.
        path: its file.
        kind: why it is kept, if it isn't one of the newest two.
    """

    number: int
    path: Path
    kind: str = ""


class DatabaseCopies:
    """The copies of a database.

    Args:
        database: its file.
        clock: seconds since 1970.
    """

    def __init__(self, database: Path, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self.folder = database.with_name(FOLDER)

    def found(self) -> list[DatabaseCopy]:
        """Finished copies of every kind, the newest first.

        Raises:
            OSError: the folder can't be read.
        """
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in map(_NAME.fullmatch, os.listdir(self.folder)) if name]
            copies = [DatabaseCopy(int(name[1]), self.folder / name[0], name[2] or "") for name in names]
            return sorted(copies, key=lambda copy: (copy.number, not copy.kind), reverse=True)
        return []

    def is_due(self, *, at_once: bool) -> bool:
        """Whether anything was written since the newest copy, and that is older than an hour unless ``at_once``.

        Raises:
            OSError: the files can't be looked at.
        """
        changed = self._changed()
        newest = max((os.stat(each.path).st_mtime_ns for each in self.found()), default=None)
        if newest is None:
            return changed is not None
        if changed is None or changed == newest:
            return False
        # A clock that was set back must not stop the copies.
        return at_once or abs(self._clock() - newest / 1e9) >= AGE_SECONDS

    def keep(self, snapshot: Callable[[], AbstractContextManager[sqlite3.Connection]], *, at_once: bool) -> bool:
        """Make a copy if it is due, and no other process makes one; where that isn't possible, the log says so.

        Args:
            snapshot: a connection of its own, in a transaction.
            at_once: even if the newest is younger than an hour.

        Returns:
            Whether one was made.
        """
        try:
            if self.is_due(at_once=at_once):
                with self._alone(is_waiting=False) as is_ours:
                    if is_ours and self.is_due(at_once=at_once):
                        return self._make(snapshot)
        except (StoreError, OSError, sqlite3.Error) as error:
            log.warning("%s: no copy of the records could be made: %s", self.folder, error)
        return False

    def keep_before_migration(self, snapshot: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        """Make a copy of a database whose schema is about to be migrated; a full disk only gets a warning."""
        try:
            with self._alone(is_waiting=True):
                self._make(snapshot, is_migrating=True)
        except (StoreError, OSError, sqlite3.Error) as error:
            log.warning("%s: no copy could be made before the schema is migrated: %s", self.folder, error)

    def keep_incomplete(self, copy: DatabaseCopy) -> Path:
        """Keep the copy from which not every record could be restored; return its name from now on.

        Raises:
            OSError: it can't be renamed.
        """
        if copy.kind:
            return copy.path
        return self._name(copy.path, copy.number, "incomplete")

    @contextlib.contextmanager
    def _alone(self, *, is_waiting: bool) -> Iterator[bool]:
        """The folder, made if it is missing, for one process at a time; False if another one has it."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder, 0o700)
            sync_directory(self.folder.parent)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield self._lock(descriptor, is_waiting=is_waiting)
        finally:
            unlock(descriptor)
            os.close(descriptor)

    def _lock(self, descriptor: int, *, is_waiting: bool) -> bool:
        if is_waiting:
            flock_alone(descriptor, self.folder)
            return True
        return try_lock(descriptor)

    def _make(
        self, snapshot: Callable[[], AbstractContextManager[sqlite3.Connection]], *, is_migrating: bool = False
    ) -> bool:
        self._clear()
        if not self._has_room():
            log.warning("%s: no copy of the records is made: the disk has little space left", self.folder)
            return False
        unfinished = self.folder / _UNFINISHED
        # Before the snapshot: a change that comes after it must look like one.
        changed = self._changed()
        with snapshot() as db:
            version = schema.version(db, self._database)
            if is_migrating and version == schema.CURRENT:
                return False  # another process has migrated it
            (number,) = db.execute("SELECT value FROM counter WHERE name = 'generation'").fetchone()
            reach("copy-write")
            with Translated(unfinished):
                backup.write(db, unfinished)
        self._check(unfinished)
        if changed is not None:
            os.utime(unfinished, ns=(changed, changed))
        self._name(unfinished, number, f"schema-{version}" if is_migrating else "")
        return True

    def _name(self, path: Path, number: int, kind: str) -> Path:
        """Give a copy its name, and remove those that are no longer kept."""
        target = self.folder / f"metadata-{number}{kind and f'.{kind}'}.db"
        reach("copy-rename")
        os.replace(path, target)
        sync_directory(self.folder)
        reach("copy-named")
        same = [copy for copy in self.found() if copy.kind.partition("-")[0] == kind.partition("-")[0]]
        for copy in same[1 if kind else _MOST :]:
            if copy.path != target:
                os.unlink(copy.path)
        return target

    def _check(self, path: Path) -> None:
        """Raises StoreCorruptError if a copy, and so the database, is damaged; the earlier ones stay."""
        with Translated(path), contextlib.closing(sqlite3.connect(schema.address(path, "mode=ro"), uri=True)) as db:
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            self._clear()
            raise StoreCorruptError(f"{self._database}: {found}", hint="run 'imagestore check'")

    def _changed(self) -> int | None:
        """When the database or its log was last written, in nanoseconds; None if there is no database."""
        times = []
        for path in (self._database, f"{self._database}-wal"):
            with contextlib.suppress(FileNotFoundError):
                times.append(os.stat(path).st_mtime_ns)
        return max(times, default=None)

    def _has_room(self) -> bool:
        """Whether twice the database's size is free."""
        size = 0
        for path in (self._database, f"{self._database}-wal"):
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(path).st_size
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize >= 2 * size

    def _clear(self) -> None:
        """Remove what a process that died has left."""
        for end in _TAIL:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.folder / f"{_UNFINISHED}{end}")
