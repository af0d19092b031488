"""Opening the database file: whether it can be written, how it is tuned, and migration."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError
from imagestore.metadata.sqlite import location, schema
from imagestore.metadata.sqlite.failures import FULL_HINT
from imagestore.metadata.sqlite.fairness import BUSY_SECONDS
from imagestore.metadata.sqlite.forks import FORK_HINT, OwnConnection
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagestore.metadata.sqlite.changes import ChangeLog

#: A commit checkpoints a longer log; long work does that on another connection, when no writer waits.
LOG_PAGES: Final = 6000
# The first checkpoint copies nearly all of the log, each further one what was added during the last.
_LOG_TRIES: Final = 4


class DatabaseAccess:
    """Whether a database is opened for writing, or only for reading because its disk is read-only or full.

    Attributes:
        is_read_only: whether its file system is mounted read-only, or refuses writes as if it were.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_read_only = location.is_read_only(path.parent)
        self._is_cramped = False
        self._alone: tuple[int, ...] | None = None

    @property
    def only_reads(self) -> bool:
        """Whether nothing can be written."""
        return self.is_read_only or self._is_cramped

    def is_unchanging(self) -> bool:
        """Whether no process can change anything now; tried out where the disk isn't mounted read-only."""
        return self.is_read_only or location.refusal(self._path) == errno.EROFS

    def mend_permissions(self) -> None:
        """Let the log and its index have what the database's permissions allow, which may have been less before.

        SQLite gives them the database's when it makes them. Where this user may not change them, opening says so.
        """
        with contextlib.suppress(OSError):
            allowed = stat.S_IMODE(os.stat(self._path).st_mode)
            for end in location.LOG_FILES:
                path = f"{self._path}{end}"
                mode = stat.S_IMODE(os.lstat(path).st_mode)
                if allowed & ~mode:
                    os.chmod(path, mode | allowed)

    def do_without_space(self) -> None:
        """From now on only read, since the disk has no space for the index of the log.

        With "readonly_shm" SQLite keeps that index in memory and still takes part in the locks; only the files must
        exist. As long as it is open, no other store of this process can write the database: SQLite has one such index
        for each process. If the files can't be created, no process writes, and no locks are taken; see check_alone().

        Raises:
            OSError: they can't be created, and the log holds changes.
        """
        try:
            for end in location.LOG_FILES:
                # Existing ones aren't opened: closing them would drop this process's locks on them.
                with contextlib.suppress(FileExistsError):
                    self._make(f"{self._path}{end}")
        except OSError:
            if self._log_bytes():
                raise
            self._alone = self._written()
        self._is_cramped = True

    def _make(self, path: str) -> None:
        """Create an empty file that belongs to the database's owner, also if root creates it; as SQLite does."""
        status = os.stat(self._path)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, status.st_mode & 0o777)
        try:
            if os.geteuid() == 0:
                os.fchown(descriptor, status.st_uid, status.st_gid)
        finally:
            os.close(descriptor)

    @property
    def was_overtaken(self) -> bool:
        """Whether another process has written what is read without SQLite's locks."""
        return self._alone is not None and self._alone != self._written()

    def check_alone(self) -> None:
        """Refuse what was just read without SQLite's locks if another process has written since.

        Raises:
            StoreBusyError: another process released space and wrote.
        """
        if self.was_overtaken:
            raise StoreBusyError(
                f"{self._path}: was opened on a full disk, and another process has written to it since",
                hint="open the store again, or start anew",
            )

    def _written(self) -> tuple[int, ...]:
        """A value that differs after every change, which is first in the log and then in the file."""
        log_bytes, status = self._log_bytes(), os.stat(self._path)
        return log_bytes, status.st_ino, status.st_size, status.st_mtime_ns

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._path}-wal").st_size
        except FileNotFoundError:
            return 0

    def address(self, *, mode: str = "rwc") -> str:
        """The database as a URI.

        Args:
            mode: where it can be written, see https://www.sqlite.org/uri.html.

        Raises:
            StoreReadOnlyError: the log next to it holds changes that can't be checkpointed.
        """
        if self._is_cramped and self._alone is None:
            return schema.address(self._path, "mode=ro&readonly_shm=1")
        if not self.only_reads:
            return schema.address(self._path, f"mode={mode}")
        if self.is_read_only and self._log_bytes():
            raise StoreReadOnlyError(
                f"{self._path}: the file system is read-only, and the log next to it holds changes to bring in",
                hint="mount it writable once",
            )
        # No process changes the file, and no log can be made in its folder.
        return schema.address(self._path, "immutable=1&mode=ro")

    def check_writable(self) -> None:
        """Refuse to write.

        Raises:
            StoreReadOnlyError, StoreFullError: it was opened only for reading.
        """
        if self.is_read_only:
            raise StoreReadOnlyError(
                f"{self._path}: the file system is read-only", hint=StoreReadOnlyError.MOUNTED_HINT
            )
        if self._is_cramped:
            raise StoreFullError(f"{self._path}: the disk is full, or the quota used up", hint=FULL_HINT)


class Opened:
    """Which file was opened, and by which process: the file may be replaced, the process may fork."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._file: os.stat_result | None = None

    def note(self) -> None:
        """Remember the file."""
        self._file = os.stat(self._path)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a process that was forked after the file was opened."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Refuse a forked child: SQLite's locks belong to the process that opened the file.

        Raises:
            StoreError: this process was forked since.
        """
        if self.is_inherited:
            raise StoreError(f"{self._path}: this store was opened before the process forked", hint=FORK_HINT)

    def check_file(self) -> None:
        """Refuse a file that a rebuild has replaced.

        Raises:
            StoreError: another file is in its place.
        """
        if self._file is None:
            self.note()
        elif not os.path.samestat(os.stat(self._path), self._file):
            raise StoreError(
                f"{self._path}: was replaced while this process had it open", hint="open the store again, or start anew"
            )

    def is_replaced(self) -> bool:
        """Whether another file is in its place; a file that is only gone may come back."""
        try:
            return self._file is not None and not os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            return False

    def is_still_there(self) -> bool:
        """Whether the file is the one that was opened."""
        try:
            return self._file is not None and os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            return False


def connect(path: Path, address: str) -> OwnConnection:
    """A connection that waits for locks; arguments and errors are OwnConnection's."""
    return OwnConnection(path, address, busy_seconds=BUSY_SECONDS)


def tune(db: sqlite3.Connection) -> None:
    """Set pragmas that aren't stored in the file."""
    # Debian's SQLite overwrites deleted rows with zeros, also in pages that are never read. Nothing here is secret.
    for pragma in (
        "synchronous = FULL",
        "foreign_keys = ON",
        "secure_delete = OFF",
        f"wal_autocheckpoint = {LOG_PAGES}",
    ):
        db.execute(f"PRAGMA {pragma}")


def bring_up(db: sqlite3.Connection, path: Path, changes: ChangeLog, on_making: Callable[[], None] | None) -> bool:
    """Make the tables, migrate them, or let a restored copy count, unless another process just did.

    Inside a transaction; ``on_making`` is called in it if the tables are made.

    Returns:
        Whether they were made.

    Raises:
        StoreCorruptError: there was a database here that is gone, or another one is in its place.
    """
    version = schema.version(db, path)
    if version == schema.CURRENT:
        if changes.is_copy(db):
            changes.settle(db)
        return False
    if not version:
        changes.refuse_gone()
        _migrate(db, version)
        changes.made(db)
        if on_making is not None:
            on_making()
        return True
    changes.refuse_migration(db)
    had_id = schema.has_id(db, path)
    _migrate(db, version)
    changes.migrated(db, had_id=had_id)
    return False


def _migrate(db: sqlite3.Connection, version: int) -> None:
    for step in schema.STEPS[version:]:
        for statement in step:
            reach("database-migrate")
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {schema.CURRENT}")


def checkpoint(db: sqlite3.Connection) -> None:
    """Copy the log's pages into the database.

    A log restarts only when all of it is copied and no reader has an older state of it. So what others added in the
    meantime is copied too, else the log would grow as long as there are other writers.
    """
    pages = -1
    for _ in range(_LOG_TRIES):
        before, (_, pages, _) = pages, db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if pages == before:
            break
