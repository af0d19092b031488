"""Opening the database file: whether it can be written, connections and forks, tuning, and migration.

SQLite must not be carried across a fork (https://www.sqlite.org/howtocorrupt.html, section 2.6). It notes for each
process which POSIX locks it has; a child inherits the notes and none of the locks (fcntl(2)). With a connection of its
own the child would rely on locks that it doesn't have: another process, the last one to close the database as far as
the locks say, deletes the log, and with it what the child commits. So open connections are noted here, with the process
that opened them: a child neither uses nor closes them, and opens none itself while it has inherited any.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError
from imagestore.metadata.sqlite import location, schema
from imagestore.metadata.sqlite.failures import FULL_HINT
from imagestore.metadata.sqlite.fairness import BUSY_SECONDS
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from pathlib import Path

#: So long may the log get before a commit has to bring it home; long work does that apart, when no writer waits.
LOG_PAGES: Final = 6000
# The first checkpoint copies nearly all of the log, each further one what was added during the last.
_LOG_TRIES: Final = 4
_FORK_HINT: Final = "open stores after the fork, or start the process anew (multiprocessing: 'spawn' or 'forkserver')"


class DatabaseAccess:
    """How a database is reached: to be written, or only to be read where its disk is read-only or full.

    Args:
        path: the file.

    Attributes:
        is_read_only: whether its file system is mounted read-only, or was found to be as good as that.
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
        """Whether no process can change anything now; where the disk doesn't say that it is read-only, it is tried."""
        return self.is_read_only or location.refusal(self._path) == errno.EROFS

    def do_without_space(self) -> None:
        """From now on only read, since the disk has no space for the index of the log.

        A process that may not write that index makes one in memory (SQLite's "readonly_shm"), and takes part in
        the locks as others do; only the files have to be there. As long as it is open, no other store of this
        process can write the database: SQLite has one such index for each process.

        Where they aren't and can't be made, no process writes; then it takes part in no locks (see check_alone()).

        Raises:
            OSError: they can't be made, and the log holds changes.
        """
        try:
            for end in ("-wal", "-shm"):
                # Those that are there aren't opened: to close them would drop the locks that this process has on them.
                with contextlib.suppress(FileExistsError):
                    self._make(f"{self._path}{end}")
        except OSError:
            if self._log_bytes():
                raise
            self._alone = self._written()
        self._is_cramped = True

    def _make(self, path: str) -> None:
        """Make an empty file that belongs to the database's owner, also if root makes it; as SQLite does."""
        status = os.stat(self._path)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, status.st_mode & 0o777)
        try:
            if os.geteuid() == 0:
                os.fchown(descriptor, status.st_uid, status.st_gid)
        finally:
            os.close(descriptor)

    @property
    def was_overtaken(self) -> bool:
        """Whether a process has begun to write what is read without SQLite's locks."""
        return self._alone is not None and self._alone != self._written()

    def check_alone(self) -> None:
        """Refuse what was just read without SQLite's locks, where another process gave space back and wrote since.

        Raises:
            StoreBusyError: that is so.
        """
        if self.was_overtaken:
            raise StoreBusyError(
                f"{self._path}: was opened on a full disk, and another process has written to it since",
                hint="open the store again, or start anew",
            )

    def _written(self) -> tuple[int, ...]:
        """What is another one after every change: it is in the log first, and then in the file."""
        log_bytes, status = self._log_bytes(), os.stat(self._path)
        return log_bytes, status.st_ino, status.st_size, status.st_mtime_ns

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._path}-wal").st_size
        except FileNotFoundError:
            return 0

    def address(self, *, mode: str = "rwc") -> str:
        """Where the database is, as a URI.

        Args:
            mode: SQLite's, see https://www.sqlite.org/uri.html, where it can be written.

        Raises:
            StoreReadOnlyError: the log next to it holds changes that can't be brought in.
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
        """Refuse to write where that can't be.

        Raises:
            StoreReadOnlyError, StoreFullError: it was opened only to be read.
        """
        if self.is_read_only:
            raise StoreReadOnlyError(
                f"{self._path}: the file system is read-only", hint=StoreReadOnlyError.MOUNTED_HINT
            )
        if self._is_cramped:
            raise StoreFullError(f"{self._path}: the disk is full, or the quota used up", hint=FULL_HINT)


class Opened:
    """The file and the process that opened it: the one may be replaced, and the other fork.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._file: os.stat_result | None = None

    def note(self) -> None:
        """Remember which file it is."""
        self._file = os.stat(self._path)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a process that was forked after the file was opened."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """SQLite's locks belong to the process that opened the file; used in a forked child they protect nothing."""
        if self.is_inherited:
            raise StoreError(
                f"{self._path}: this store was opened before the process forked",
                hint=_FORK_HINT,
            )

    def check_file(self) -> None:
        """A rebuild puts another file in the place of ours, which then is the store's memory no longer."""
        if self._file is None:
            self.note()
        elif not os.path.samestat(os.stat(self._path), self._file):
            raise StoreError(
                f"{self._path}: was replaced while this process had it open", hint="open the store again, or start anew"
            )

    def is_replaced(self) -> bool:
        """Whether another file is in the place of the one that was opened; one that is only gone may come back."""
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


class OwnConnection:
    """A connection to a database, closed by the process that opened it and by no other.

    Args:
        path: the database.
        address: of it, as a URI.
        busy_seconds: how long to wait for locks.
        cached_statements: how many are kept.

    Attributes:
        connection: for any thread, without transactions that weren't begun.

    Raises:
        StoreError: this process inherited connections.
        sqlite3.Error: it can't be opened.
    """

    def __init__(self, path: Path, address: str, *, busy_seconds: float, cached_statements: int = 128) -> None:
        refuse_in_child(path)
        self._process = os.getpid()
        # Before SQLite begins: another thread may fork in the middle of it.
        _open[self] = self._process
        try:
            self.connection = sqlite3.connect(
                address,
                timeout=busy_seconds,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
                cached_statements=cached_statements,
            )
        except BaseException:
            del _open[self]
            raise
        # Python closes what it frees, also when it ends, and a child must not. A connection that one of its own
        # functions refers to is freed only behind its close().
        connection = self.connection
        connection.create_function("imagestore_connection", 0, lambda: id(connection))

    def close(self) -> None:
        """Close it, unless another process opened it; may be called again."""
        if self._process == os.getpid():
            self.connection.close()
            _open.pop(self, None)


#: What isn't closed, with the number of the process that opened it.
_open: dict[OwnConnection, int] = {}


def refuse_in_child(path: Path) -> None:
    """Refuse to open a database in a process that was forked while its parent had one open.

    Raises:
        StoreError: this is one.
    """
    process = os.getpid()
    if any(each != process for each in list(_open.values())):
        raise StoreError(
            f"{path}: can't be opened here: this process was forked while a store was open", hint=_FORK_HINT
        )


def connect(path: Path, address: str) -> OwnConnection:
    """A connection that waits for others' locks.

    Args:
        path: the database.
        address: of it, as a URI.

    Raises:
        StoreError: this process inherited connections.
        sqlite3.Error: it can't be opened.
    """
    return OwnConnection(path, address, busy_seconds=BUSY_SECONDS)


def tune(db: sqlite3.Connection, *, has_foreign_keys: bool = True) -> None:
    """Set what isn't kept in the file."""
    keys = f"foreign_keys = {'ON' if has_foreign_keys else 'OFF'}"
    # Debian's SQLite writes zeros over what is deleted, also to pages that are never read. Nothing here is secret.
    for pragma in ("synchronous = FULL", keys, "secure_delete = OFF", f"wal_autocheckpoint = {LOG_PAGES}"):
        db.execute(f"PRAGMA {pragma}")


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Take the steps from a version of the schema to today's; inside a transaction."""
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
