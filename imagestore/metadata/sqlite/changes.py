"""Changes of records: their numbers, what the journal has to know of them, and noticing those of other processes.

The numbers come from a counter in the database. It goes back with a transaction that dies, whose lines stay in the
journal. So the first number of each transaction comes with a line that names the last committed one; without that line
the journal would take the dead transaction before for a committed one.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import weakref
from typing import TYPE_CHECKING

from imagestore.errors import StoreCorruptError
from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.sqlite.forks import OwnConnection
from imagestore.metadata.sqlite.schema import COPIED, store_id, take_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from imagestore.metadata.sqlite.journal import RecordJournal

log = logging.getLogger(__name__)


class ChangeLog:
    """Numbers the changes of one connection and writes them to the journal.

    Args:
        journal: where changes are noted.
        is_rebuilding: continue after the journal's last number; a rebuild that dies must leave uncertain changes so.

    Attributes:
        is_synced: whether the commits of this connection are synced.
    """

    def __init__(self, journal: RecordJournal, *, is_rebuilding: bool) -> None:
        self._journal = journal
        self.is_rebuilding = is_rebuilding
        self.is_synced = True
        self._has_begun = False
        self._is_checked = is_rebuilding
        self._put_number = 0
        self._after_commit: list[str] = []

    def overtaken(self, db: sqlite3.Connection) -> str:
        """Why this database is older than its journal; empty when they agree.

        Then an older file was put in the database's place. A backup counts instead: it is marked (see ``backup``).

        Raises:
            OSError: the journal can't be read.
        """
        # The journal first: the database is never behind what is written there.
        committed = self._journal.committed()
        if committed <= self.last(db) or db.execute("SELECT 1 FROM counter WHERE name = ?", (COPIED,)).fetchone():
            return ""
        return (
            f"the database ends with change {self.last(db)}, but {self._journal.path.name} knows of change {committed}:"
            " an older database was put in its place"
        )

    def refuse_overtaken(self, db: sqlite3.Connection) -> None:
        """Check once whether the database may be written, or be collected from.

        Raises:
            StoreCorruptError: it is older than its journal; see overtaken().
            OSError: the journal can't be read.
        """
        if self._is_checked:
            return
        if reason := self.overtaken(db):
            raise StoreCorruptError(
                f"{self._journal.path.parent}: {reason}",
                hint="run 'imagestore check --rebuild', which keeps that file and restores the records",
            )
        self._is_checked = True

    def migrated(self, db: sqlite3.Connection) -> None:
        """The schema was migrated: take the store's id from the journal, as after restoring an old backup, or note it.

        Raises:
            OSError: the journal can't be read or written.
        """
        if not self._journal.has_entries() or self.overtaken(db):
            return
        if known := self._journal.read().store_id:
            take_id(db, known)
        self.put(db, lambda _: ())  # a change of nothing: its first line has the id

    def number(self, db: sqlite3.Connection, announced: Callable[[int], Iterable[str]] | None = None) -> int:
        """The next number; inside a write transaction.

        Args:
            db: the connection.
            announced: for a number, the lines that the journal gets after the commit. They cost no write of their own
                where this is the transaction's first change, and none at all if the disk has no room for them.

        Raises:
            OSError: the journal can't be written; no number is used up.
            StoreCorruptError: the database is older than its journal.
        """
        self.refuse_overtaken(db)
        if not self.is_rebuilding:
            self._begin(db, announced)
        query = "UPDATE counter SET value = value + 1 WHERE name = 'generation' RETURNING value"
        (number,) = db.execute(query).fetchone()
        # Removals have lines of their own after the commit. A commit that isn't synced may be lost with the power.
        if announced is None and self.is_synced and not self.is_rebuilding:
            self._put_number = number
        return int(number)

    def _begin(self, db: sqlite3.Connection, announced: Callable[[int], Iterable[str]] | None) -> None:
        last = self.last(db)
        begin = [] if self._has_begun else [lines.begin(last, store_id(db, self._journal.path))]
        if announced is not None:
            with contextlib.suppress(OSError):
                self._journal.append([*begin, *(lines.announced(last + 1, entry) for entry in announced(last + 1))])
                self._has_begun = True
        if not self._has_begun:
            self._journal.append(begin)
            self._has_begun = True

    def last(self, db: sqlite3.Connection) -> int:
        """The last number."""
        (number,) = db.execute("SELECT value FROM counter WHERE name = 'generation'").fetchone()
        return int(number)

    def put(self, db: sqlite3.Connection, entries: Callable[[int], Iterable[str]]) -> None:
        """Number a change and write its lines, before its commit.

        Raises:
            OSError: the journal can't be written.
        """
        self._journal.append(entries(self.number(db)))

    def remove(self, db: sqlite3.Connection, entries: Callable[[int], Iterable[str]]) -> None:
        """Number a change and announce its lines, which follow after its commit."""
        self.after_commit(entries(self.number(db, entries)))

    def after_commit(self, entries: Iterable[str]) -> None:
        """Write lines when this transaction is committed."""
        self._after_commit.extend(entries)

    def committed(self) -> None:
        """The transaction was committed: write what waited for that."""
        if self._put_number:
            # Else an older database in its place, that lacks just this change, couldn't be told from this one.
            self.after_commit([lines.committed(self._put_number)])
        if self._after_commit:
            self.write(self._after_commit)

    def write(self, entries: Iterable[str]) -> None:
        """Write lines of what is committed already; a failure is only logged."""
        try:
            self._journal.append(entries)
        except OSError as error:
            # Rebuilds expect a journal that knows too much (0011).
            log.warning("%s: the journal lacks lines of a committed change: %s", self._journal.path, error)

    def end(self) -> None:
        """The transaction ended, committed or not."""
        self._has_begun = False
        self._after_commit.clear()
        self._put_number = 0


class ChangeWatch:
    """The number of the last change of records by any process, read in microseconds on a connection of its own.

    SQLite's ``data_version`` changes with every commit of another connection; only then is the number read. So leases
    of running work, edges and times of use look like no change, and no caller waits for the store's own connection.

    Args:
        path: the database.
        address: of it, as a URI.
    """

    def __init__(self, path: Path, address: str) -> None:
        self._lock = threading.Lock()
        self._own = OwnConnection(path, address, busy_seconds=0, cached_statements=4)
        self._connection = self._own.connection
        weakref.finalize(self, self._own.close)
        self._data_version: int | None = None
        self._generation: int | None = None

    def generation(self) -> int | None:
        """The number; None when it can't be read."""
        with self._lock:
            try:
                (version,) = self._connection.execute("PRAGMA data_version").fetchone()
                if version != self._data_version:
                    query = "SELECT value FROM counter WHERE name = 'generation'"
                    (self._generation,) = self._connection.execute(query).fetchone()
                    # A commit between the two reads changes the version again, and the next call sees it.
                    self._data_version = version
            except sqlite3.Error:
                # Closed, busy with recovery, or damaged; the next read of the records says which.
                self._data_version = None
                return None
            return self._generation

    def close(self) -> None:
        """Close the connection; later calls return None."""
        with self._lock:
            self._own.close()
