"""The database file: one connection, explicit transactions, migrations, backup, and SQLite's errors as ours.

Write-ahead log, full sync. Every read-then-write begins with BEGIN IMMEDIATE: a plain BEGIN that later writes fails at
once when another process wrote in between. One connection serves all threads of a process, one call at a time; calls
take microseconds. Reads of the whole store have a connection and a snapshot of their own, so no writer waits for them;
long work that writes does so in batches and steps aside between them (see ``turns``).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreCorruptError, StoreError, StoreFullError, StoreReadOnlyError
from imagestore.metadata.sqlite import location, schema
from imagestore.metadata.sqlite.change_numbers import Numbering
from imagestore.metadata.sqlite.failures import CORRUPT_HINT, Translated, closed
from imagestore.metadata.sqlite.fairness import WriteQueue, use_log
from imagestore.metadata.sqlite.journal import RecordJournal
from imagestore.metadata.sqlite.opening import LOG_PAGES, DatabaseAccess, Opened, connect, migrate, tune
from imagestore.util.disk_reserve import Ballast
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

# So many rows may batches change before the log is brought home; a fraction of it while a writer waits, which would
# have to do it at his commit otherwise. Each row costs two pages or more in a large database.
_LOG_CHANGES: Final = 2000
_LOG_CHANGES_AWAITED: Final = 250
# The first brings nearly all of it home, each further one what came during the last.
_LOG_TRIES: Final = 4
#: Where there is no space even for what frees some.
_OTHERWISE: Final = "free space on this disk by other means first"


class _CallersError(Exception):
    """Undoes a transaction for what a caller's block raised, which isn't translated as our own errors are."""


class Database:
    """One file; made when missing.

    Args:
        path: the database, on a local disk. The journal of records lies next to it.
        clock: seconds since 1970.
        file_system: tells what kind of file system a folder is on.
        is_rebuilding: make an empty database although the journal knows records.
        is_freeing: where the disk is too full to open it, give up the space kept back for removals; else it can only be
            read there.
        on_making: called in the transaction that makes the tables, which only one process ever does.

    Raises:
        StoreError: it can't be opened, is damaged, is on a network file system, or was written by a newer version.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        file_system: Callable[[Path], str] = location.file_system,
        is_rebuilding: bool = False,
        is_freeing: bool = True,
        on_making: Callable[[], None] | None = None,
    ) -> None:
        self._path = path
        self._on_making = on_making
        self._clock = clock
        self._lock = threading.RLock()
        self._depth = 0
        self._is_closed = False
        self._writer = 0
        self._changes_in_log = 0
        self._opened = Opened(path)
        self._turns = WriteQueue(path.with_name("waiting"))
        self._after_commit: list[Callable[[], None]] = []
        self._is_synced = True
        self._put_number = 0
        self._journal = RecordJournal.beside(path)
        self._numbering = Numbering(self._journal, is_rebuilding=is_rebuilding)
        location.refuse_network(path, file_system(path.parent))
        #: Space for removals.
        self.ballast = Ballast(path.with_name("ballast"))
        self._way = DatabaseAccess(path)
        try:
            self._open(is_rebuilding=is_rebuilding)
        except StoreFullError:
            if is_freeing:
                self._open_with_ballast(is_rebuilding=is_rebuilding)
            elif not self._is_open_to_be_read():
                raise
        except StoreReadOnlyError:
            if self._way.is_read_only or not self._way.is_unchanging():
                raise
            self._way.is_read_only = True
            self._open(is_rebuilding=is_rebuilding)
        else:
            if not self._way.only_reads:
                self.ballast.keep()

    def _open_with_ballast(self, *, is_rebuilding: bool) -> None:
        """Removing images and collecting needs a little space itself; this is what it was kept for."""
        self.ballast.release()
        try:
            self._open(is_rebuilding=is_rebuilding)
        except StoreFullError as error:
            raise StoreFullError(str(error), hint=_OTHERWISE) from error

    def _is_open_to_be_read(self) -> bool:
        """Open a database without the space that is needed to write it; say whether that was possible."""
        with contextlib.suppress(StoreError, OSError):
            self._way.do_without_space()
            self._open(is_rebuilding=False)
            return True
        return False

    def _open(self, *, is_rebuilding: bool) -> None:
        with Translated(self._path):
            self._own = connect(self._path, self._address())
            self._connection = self._own.connection
            try:
                if self._way.only_reads:
                    schema.refuse_foreign(self._connection, self._path)
                    schema.refuse_older(self._connection, self._path)
                else:
                    self._prepare(is_rebuilding=is_rebuilding)
                self._opened.note()
            except BaseException:
                self._own.close()
                raise
            # A store that wasn't closed is closed when it goes away, at the latest at the program's end.
            weakref.finalize(self, self._own.close)

    def _address(self, *, mode: str = "rwc") -> str:
        return self._way.address(mode=mode)

    def recording(self, keys: Collection[tuple[str, str]]) -> contextlib.AbstractContextManager[None]:
        """As exclusive(): there is one writer at a time."""
        return self.exclusive()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the database's write lock; commits at the end. What the block itself raises comes out as it is."""
        error: Exception | None = None
        with contextlib.suppress(_CallersError), self._writing():
            try:
                yield
            except (OSError, sqlite3.Error, UnicodeEncodeError) as foreign:
                # None of the database's: its calls have words of ours for those.
                error = foreign
                raise _CallersError from foreign
        if error is not None:
            raise error

    @contextlib.contextmanager
    def transient(self) -> Iterator[None]:
        """Hold the write lock; what is written may go with the power, and isn't synced by itself."""
        with self._relaxed():
            yield

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """One short step of a long work: let others go first, then hold the write lock; not synced by itself.

        What a power cut may undo must be harmless to undo. Later commits sync this one too.
        """
        self.give_way()
        is_part = self._is_writing()
        with self._relaxed(log_pages=0):
            yield
        changes = self._connection.total_changes - self._changes_in_log
        if not is_part and changes > (_LOG_CHANGES_AWAITED if self.is_awaited() else _LOG_CHANGES):
            self._changes_in_log += changes
            self._shorten_log()

    def is_awaited(self) -> bool:
        """Whether a writer waits, or a thread waits for this process's connection; then a batch should end soon."""
        return self._turns.is_wanted()

    def give_way(self) -> None:
        """Let those go first who wait to write; between two steps of a long work."""
        if not self._is_writing():
            self._turns.give_way()

    def backup(self, target: Path) -> None:
        """Write a consistent copy to a new file while others go on reading and writing.

        Raises:
            AlreadyExistsError, InvalidInputError, PreconditionError: the target exists or can't be written.
            StoreError: the database can't be read.
        """
        with self._reading() as db:
            from imagestore.metadata.sqlite.backup import copy_to

            copy_to(db, target)

    def damage(self) -> tuple[str, ...]:
        """What is wrong with the file, a line each.

        SQLite's own check, indexes against their tables too; rows that refer to nothing; texts that are none; and a
        journal that knows more than the database.
        """
        with self._reading() as db:
            from imagestore.metadata.sqlite import integrity

            found = integrity.damage(db)
            if not found and not self._way.only_reads and (reason := self._numbering.overtaken(db)):
                found = (reason,)
            return found

    def reindex(self) -> bool:
        """Make every index anew from its table; say whether the database is whole then, else nothing is changed."""
        from imagestore.metadata.sqlite import integrity

        try:
            with self._writing() as db:
                db.execute("REINDEX")
                if integrity.damage(db):
                    raise StoreCorruptError(f"{self._path}: more than indexes is damaged", hint=CORRUPT_HINT)
        except StoreCorruptError:
            return False
        return True

    def close(self) -> None:
        """Close the database; in a forked child there is nothing to close, nor anybody who would let go of a lock."""
        if self.is_inherited:
            self._is_closed = True
            return
        with self._locked():
            self._is_closed = True
            self._own.close()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a process that was forked after the database was opened."""
        return self._opened.is_inherited

    def check_process(self) -> None:
        """Refuse the work of a forked child, before it waits for anything.

        Raises:
            StoreError: this is one.
        """
        self._opened.check_process()

    def _prepare(self, *, is_rebuilding: bool) -> None:
        db = self._connection
        schema.refuse_foreign(db, self._path)
        use_log(db)
        tune(db)
        if schema.version(db, self._path) == schema.CURRENT:
            return
        with self._writing():
            version = schema.version(db, self._path)
            if version == 0 and not is_rebuilding and self._journal.has_entries():
                raise StoreCorruptError(
                    f"{self._path}: the database is gone, but {self._journal.path.name} next to it knows its records",
                    hint="run 'imagestore check --rebuild', or remove that file to start with no records",
                )
            migrate(db, version)
            if version == 0 and self._on_making is not None:
                self._on_making()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """This process's connection to ourselves, in words of ours when something fails."""
        if not self._lock.acquire(blocking=False):
            with self._turns.waiting_thread():
                self._lock.acquire()
        try:
            with Translated(self._path):
                yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        self._opened.check_process()
        with self._locked():
            try:
                yield self._connection
            finally:
                self._way.check_alone()

    @contextlib.contextmanager
    def _reading_apart(
        self, *, before: Callable[[sqlite3.Connection], None] | None = None
    ) -> Iterator[sqlite3.Connection]:
        """A snapshot for reads of the whole store, that neither threads nor processes wait for.

        Args:
            before: called with the connection before the snapshot is taken.
        """
        self._opened.check_process()
        if self._is_writing():  # what this thread wrote and didn't commit yet is seen only here
            if before is not None:
                before(self._connection)
            yield self._connection
            return
        with self._snapshot_apart(before=before) as db:
            yield db

    @contextlib.contextmanager
    def _snapshot_apart(
        self, *, before: Callable[[sqlite3.Connection], None] | None = None
    ) -> Iterator[sqlite3.Connection]:
        """What is committed now, through a connection of its own."""
        with Translated(self._path), self._connected() as db:
            if before is not None:
                before(db)
            db.execute("BEGIN")
            # A snapshot is taken by the first read, not by BEGIN.
            db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            yield db

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A second connection to the same file; where it is gone, or this store was closed, none is made."""
        if self._is_closed:
            raise closed(self._path)
        self._opened.check_file()
        own = connect(self._path, self._address(mode="rw"))
        try:
            yield own.connection
        finally:
            own.close()
            self._way.check_alone()

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several reads that see one state."""
        with self._reading() as db:
            is_outer = not db.in_transaction
            try:
                if is_outer:
                    db.execute("BEGIN")
                yield db
            finally:
                if is_outer:
                    db.rollback()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; inner ones join the outer."""
        self._way.check_writable()
        self._opened.check_process()
        with self._locked():
            db = self._connection
            self._depth += 1
            try:
                if self._depth == 1:
                    reach("database-begin")
                    self._turns.begin(db)
                    reach("database-begun")
                    self._writer = threading.get_ident()
                    self._check_still_ours(db)
                yield db
                if self._depth == 1:
                    reach("database-commit")
                    db.execute("COMMIT")
                    reach("database-committed")
                    self._run_after_commit()
            except BaseException:
                if self._depth == 1 and db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._writer = 0
                    self._numbering.end()
                    self._after_commit.clear()
                    self._put_number = 0

    def _check_still_ours(self, db: sqlite3.Connection) -> None:
        """Look, inside a write transaction, whether what was opened may still be written."""
        self._opened.check_file()
        schema.refuse_moved_on(db, self._path)

    @contextlib.contextmanager
    def _freeing(self) -> Iterator[None]:
        """For changes that free more than they take: also where there is hardly any space left."""
        self._way.check_writable()
        self.ballast.release_where_full()
        try:
            yield
        except StoreFullError as error:
            # A quota, which can't be seen before. The next try has room.
            if not self.ballast.release():
                # What was kept back is used up, by us or by who fills the disk in that time.
                raise StoreFullError(str(error), hint=_OTHERWISE) from error
            raise

    @contextlib.contextmanager
    def _removing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction that frees more than it takes."""
        with self._freeing(), self._writing() as db:
            yield db

    @contextlib.contextmanager
    def _unlinked(self) -> Iterator[sqlite3.Connection]:
        """As _removing(), for who empties both ends of a foreign key: without one SQLite empties a table at once.

        On a connection of its own: an interrupt in the wrong place would leave ours without them.
        """
        self._opened.check_process()
        with self._freeing(), self._locked(), self._connected() as db:
            tune(db, has_foreign_keys=False)
            self._turns.begin(db)
            self._check_still_ours(db)
            try:
                yield db
                reach("database-commit")
                db.execute("COMMIT")
                reach("database-committed")
            finally:  # what isn't committed ends with the connection
                self._numbering.end()

    def _is_writing(self) -> bool:
        return self._writer == threading.get_ident()

    @contextlib.contextmanager
    def _relaxed(self, *, log_pages: int = LOG_PAGES) -> Iterator[sqlite3.Connection]:
        """A write transaction that isn't synced by itself; inside another one simply a part of it.

        Args:
            log_pages: how long the log must be for its commit to bring it home; 0: never.
        """
        self._opened.check_process()
        with self._locked():
            if self._depth:
                yield self._connection
                return
            try:
                self._is_synced = False
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {log_pages}")
                with self._writing() as db:
                    yield db
            finally:
                self._is_synced = True
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")

    def _shorten_log(self) -> None:
        """Bring the log's pages into the database apart; else the next writer's commit would have to.

        A log begins anew only when all of it was brought home, and no reader has an older state of it. So what others
        added since then is brought home too, else it would grow for as long as there are others.
        """
        with Translated(self._path), self._connected() as db:
            pages = -1
            for _ in range(_LOG_TRIES):
                before, (_, pages, _) = pages, db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if pages == before:
                    break

    def _number_change(self, announced: Callable[[int], Iterable[str]] | None = None) -> int:
        """The next number of a change in the journal; inside a write transaction. See Numbering.next()."""
        number = self._numbering.next(self._connection, announced)
        # What is taken away has lines of its own after the commit. What isn't synced may go with the power.
        if announced is None and self._is_synced and not self._numbering.is_rebuilding:
            self._put_number = number
        return number

    def _run_after_commit(self) -> None:
        waiting, self._after_commit = self._after_commit, []
        for work in waiting:
            self._tell(work)
        if self._put_number:
            # Else an older database, put in its place, that lacks just this change couldn't be told from this one.
            self._tell(lambda: self._journal.commit(self._put_number))

    def _tell(self, work: Callable[[], None]) -> None:
        """Tell the journal of what is committed."""
        try:
            work()
        except OSError as error:
            # It is done, whatever the journal says; a journal that knows too much is expected to (0011).
            log.warning("%s: the journal of records wasn't told what was committed: %s", self._path, error)

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except UnicodeEncodeError:
            raise  # what was asked for, not what is here
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(f"{self._path}: a record can't be read: {error}", hint=CORRUPT_HINT) from error
