"""The database file: one connection, explicit transactions, and SQLite's errors as ours.

Write-ahead log, full sync. Every read-then-write begins with BEGIN IMMEDIATE: a plain BEGIN that later writes fails at
once when another process wrote in between. One connection serves all threads of a process, one call at a time; calls
take microseconds. Reads of the whole store have a connection and a snapshot of their own, so no writer waits for them.
Long work writes in batches and yields between them (see ``fairness``).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError, StoreFullError, StoreReadOnlyError
from imagestore.metadata.sqlite import location, schema
from imagestore.metadata.sqlite.changes import ChangeLog
from imagestore.metadata.sqlite.copies import DatabaseCopies
from imagestore.metadata.sqlite.failures import Translated, closed
from imagestore.metadata.sqlite.fairness import WriteQueue, use_log
from imagestore.metadata.sqlite.opening import LOG_PAGES, DatabaseAccess, Opened, bring_up, checkpoint, connect, tune
from imagestore.metadata.sqlite.verified import VerifiedNote
from imagestore.util.disk_reserve import Ballast, SpaceProbe
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Batches change at most so many rows before the log is checkpointed; fewer while a writer waits, whose commit would
# have to do it otherwise. Each row costs two pages or more in a large database.
_LOG_CHANGES: Final = 2000
_LOG_CHANGES_AWAITED: Final = 250
#: The hint where even removals lack space.
_FULL_HINT: Final = "free space on this disk by other means first"


class _CallersError(Exception):
    """Rolls a transaction back for an error of the caller's block, which isn't translated as SQLite's are."""


class Database:
    """One file, created when missing. Call open() before anything else.

    Args:
        path: the database, on a local disk. Copies of it lie next to it.
        clock: seconds since 1970.
        file_system: returns what kind of file system a folder is on.
        is_rebuilding: this is the database that a rebuild makes, next to copies of the one that was there.

    Attributes:
        ballast: space for removals on a full disk.
        access: whether the file can be written.
        opened, verified: which file this is, and by which process; whether its indexes are known to be whole.
        changes: numbers changes of records.
        copies: of this database.

    Raises:
        StoreError: the folder is on a network file system.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float],
        file_system: Callable[[Path], str],
        is_rebuilding: bool,
    ) -> None:
        location.refuse_network(path, kind := file_system(path.parent))
        self.path = path
        self.clock = clock
        self.ballast = Ballast(path.with_name("ballast"))
        self._space = SpaceProbe(kind)
        self.access = DatabaseAccess(path)
        self.opened = Opened(path)
        self.verified = VerifiedNote(path)
        self.copies = DatabaseCopies(path, clock)
        self.changes = ChangeLog(path, self.copies, is_rebuilding=is_rebuilding)
        self._queue = WriteQueue(path)
        self._lock = threading.RLock()
        self._depth = 0
        self._writer = 0
        self._is_closed = False
        self._changes_in_log = 0

    def open(self, *, is_freeing: bool, on_making: Callable[[], None] | None) -> None:
        """Open the file, and create or migrate its tables; arguments and errors are SqliteMetadataStore's."""
        try:
            self._connect(on_making)
        except StoreFullError:
            if not is_freeing:
                if not self._is_open_to_be_read():
                    raise
                return
            # Removing images and collecting needs a little space; the ballast was kept for it.
            self.ballast.release()
            try:
                self._connect(on_making)
            except StoreFullError as error:
                raise StoreFullError(str(error), hint=_FULL_HINT) from error
        except StoreReadOnlyError:
            if self.access.is_read_only or not self.access.is_unchanging():
                raise
            self.access.is_read_only = True
            self._connect(on_making)
        else:
            if not self.access.only_reads:
                self.ballast.keep()

    def _is_open_to_be_read(self) -> bool:
        """Open the database without the space that writing needs; return whether that was possible."""
        with contextlib.suppress(StoreError, OSError):
            self.access.do_without_space()
            self._connect(None)
            return True
        return False

    def _connect(self, on_making: Callable[[], None] | None) -> None:
        self.access.mend_permissions()
        with Translated(self.path):
            self._own = connect(self.path, self.access.address())
            self._connection = self._own.connection
            try:
                if self.access.only_reads:
                    schema.refuse_foreign(self._connection, self.path)
                    schema.refuse_older(self._connection, self.path)
                else:
                    self._prepare(on_making)
                    self._space.open(self.path)  # last: the log's files need the inodes that were kept back
                self.opened.note()
            except BaseException:
                self._end()
                raise
            # A store that isn't closed explicitly is closed when it is garbage-collected, at the latest at exit.
            weakref.finalize(self, self._own.close)

    def _prepare(self, on_making: Callable[[], None] | None) -> None:
        db = self._connection
        schema.refuse_foreign(db, self.path)
        # Before anything is written, and not next to another program's database.
        self.verified.open()
        use_log(db)
        tune(db)
        found = schema.version(db, self.path)
        if 0 < found < schema.CURRENT and not self.changes.is_rebuilding:
            self.copies.keep_before_migration(self.snapshot_apart)
        if found != schema.CURRENT or self.changes.is_copy(db):
            with self.writing():
                if bring_up(db, self.path, self.changes, on_making):
                    self.verified.note()
        if not self.changes.is_rebuilding:
            self.changes.journal.move_aside(self.copies.folder)

    def close(self) -> None:
        """Close the database; a forked child has nothing to close and must not wait for a lock."""
        if self.opened.is_inherited:
            self._is_closed = True
            return
        with self._locked():
            if not self._is_closed:
                self._note_change()
            self._is_closed = True
            self._end()

    def _end(self) -> None:
        self._own.close()
        self._space.close()
        self.verified.close()

    def keep_copy(self, *, at_once: bool) -> None:
        """Make a copy if it is due; see the port."""
        if self.access.only_reads or self.changes.is_rebuilding:
            return
        if self.copies.keep(self.snapshot_apart, at_once=at_once):
            with self._locked():
                self._note_change()

    def _note_change(self) -> None:
        """Note the last change; where that isn't possible, an older database in this one's place isn't noticed."""
        with contextlib.suppress(StoreError, OSError, sqlite3.Error):
            # Not of a database that was replaced: its numbers mean nothing to the new one.
            if not self.access.only_reads and self.opened.is_still_there():
                self.changes.note(self._connection)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock; commits at the end. Errors that the block itself raises come out as they are."""
        error: Exception | None = None
        with contextlib.suppress(_CallersError), self.writing() as db:
            try:
                yield db
            except (OSError, sqlite3.Error, UnicodeEncodeError) as foreign:
                # Not the database's: calls of it have raised translated errors.
                error = foreign
                raise _CallersError from foreign
        if error is not None:
            raise error

    @contextlib.contextmanager
    def batch(self) -> Iterator[sqlite3.Connection]:
        """One short step of a long work: yield to waiting writers, then hold the write lock; not synced by itself.

        What a power cut may undo must be harmless to undo. Later commits sync this one too.
        """
        self.give_way()
        is_part = self.is_writing()
        with self.relaxed(log_pages=0) as db:
            yield db
        changes = self._connection.total_changes - self._changes_in_log
        if not is_part and changes > (_LOG_CHANGES_AWAITED if self.is_awaited() else _LOG_CHANGES):
            self._changes_in_log += changes
            # Else the next writer's commit would have to.
            with Translated(self.path), self._second_connection() as db:
                checkpoint(db)

    def is_awaited(self) -> bool:
        """Whether a writer waits, or a thread waits for this process's connection."""
        return self._queue.is_wanted()

    def give_way(self) -> None:
        """Yield to waiting writers; between two steps of a long work."""
        if not self.is_writing():
            self._queue.give_way()

    def is_writing(self) -> bool:
        """Whether this thread is in a write transaction."""
        return self._writer == threading.get_ident()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """This process's connection for this thread alone; translates errors."""
        self._queue.take(self._lock)
        try:
            with Translated(self.path):
                yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for reads that may see different states."""
        self.opened.check_process()
        with self._locked():
            try:
                yield self._connection
            finally:
                self.access.check_alone()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several reads that see one state."""
        with self.reading() as db:
            is_outer = not db.in_transaction
            try:
                if is_outer:
                    db.execute("BEGIN")
                yield db
            finally:
                if is_outer:
                    db.rollback()

    @contextlib.contextmanager
    def reading_apart(
        self, *, before: Callable[[sqlite3.Connection], None] | None = None
    ) -> Iterator[sqlite3.Connection]:
        """A snapshot for reads of the whole store, without any lock; ``before`` is called before it is taken."""
        self.opened.check_process()
        if self.is_writing():  # uncommitted changes of this thread are visible only here
            if before is not None:
                before(self._connection)
            yield self._connection
            return
        with self.snapshot_apart(before=before) as db:
            yield db

    @contextlib.contextmanager
    def snapshot_apart(
        self, *, before: Callable[[sqlite3.Connection], None] | None = None
    ) -> Iterator[sqlite3.Connection]:
        """What is committed now, through a connection of its own."""
        with Translated(self.path), self._second_connection() as db:
            if before is not None:
                before(db)
            db.execute("BEGIN")
            # A snapshot is taken by the first read, not by BEGIN.
            db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            yield db

    @contextlib.contextmanager
    def _second_connection(self) -> Iterator[sqlite3.Connection]:
        """Another connection to the same file; refused when the file was replaced or this store was closed."""
        if self._is_closed:
            raise closed(self.path)
        self.opened.check_file()
        own = connect(self.path, self.access.address(mode="rw"))
        try:
            yield own.connection
        finally:
            own.close()
            self.access.check_alone()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; inner ones join the outer."""
        self.access.check_writable()
        self.opened.check_process()
        with self._locked():
            db = self._connection
            self._depth += 1
            try:
                if self._depth == 1:
                    reach("database-begin")
                    self._queue.begin(db)
                    reach("database-begun")
                    self._writer = threading.get_ident()
                    self._check_still_ours(db)
                yield db
                if self._depth == 1:
                    self._space.check()
                    reach("database-commit")
                    db.execute("COMMIT")
                    reach("database-committed")
                    self.changes.committed()
            except BaseException:
                if self._depth == 1 and db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._writer = 0
                    self.changes.end()

    def _check_still_ours(self, db: sqlite3.Connection) -> None:
        """Inside a write transaction: whether the file that was opened may still be written."""
        self.opened.check_file()
        schema.refuse_moved_on(db, self.path)

    @contextlib.contextmanager
    def freeing(self) -> Iterator[None]:
        """For changes that free more space than they take: possible on a nearly full disk too."""
        self.access.check_writable()
        self.ballast.release_where_full()
        try:
            yield
        except StoreFullError as error:
            # A quota, which can't be seen before. The next try has room.
            if not self.ballast.release():
                # The ballast is used up already, by us or by what fills the disk.
                raise StoreFullError(str(error), hint=_FULL_HINT) from error
            raise

    @contextlib.contextmanager
    def removing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction that frees more than it takes."""
        with self.freeing(), self.writing() as db:
            self._space.check()  # not only at the commit, which may be an outer one's
            yield db

    @contextlib.contextmanager
    def relaxed(self, *, log_pages: int = LOG_PAGES) -> Iterator[sqlite3.Connection]:
        """As writing(), but not synced by itself; its commit checkpoints a log of so many pages, 0: never."""
        self.opened.check_process()
        with self._locked():
            if self._depth:
                yield self._connection
                return
            try:
                self.changes.is_synced = False
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {log_pages}")
                with self.writing() as db:
                    yield db
            finally:
                self.changes.is_synced = True
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
