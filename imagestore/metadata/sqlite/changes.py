"""Changes of records: their numbers, what is noted of them, and noticing those of other processes.

The numbers come from a counter in the database. The last one that is certainly on the disk is noted next to the
database (see ``last_change``), so that an older database in its place is noticed. One that is restored counts instead:
it is marked (see ``backup``), and goes on with numbers above all that were given.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from typing import TYPE_CHECKING

from imagestore.errors import StoreCorruptError
from imagestore.metadata.sqlite import earlier_journal, schema
from imagestore.metadata.sqlite.earlier_journal import EarlierJournal
from imagestore.metadata.sqlite.forks import OwnConnection
from imagestore.metadata.sqlite.last_change import LastChange, LastChangeNote
from imagestore.metadata.sqlite.schema import COPIED

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.metadata.sqlite.copies import DatabaseCopies


class ChangeLog:
    """Numbers the changes of one connection.

    Args:
        database: its file.
        copies: of the database.
        is_rebuilding: the database is being made to replace the one that was there.

    Attributes:
        is_synced: whether the commits of this connection are synced.
    """

    def __init__(self, database: Path, copies: DatabaseCopies, *, is_rebuilding: bool) -> None:
        self._database = database
        self._copies = copies
        self._note = LastChangeNote(database)
        self.journal = EarlierJournal(database)
        self.is_rebuilding = is_rebuilding
        self.is_synced = True
        self._is_checked = is_rebuilding
        self._number = 0
        self._synced = 0

    def overtaken(self, db: sqlite3.Connection) -> str:
        """Why this database isn't the one that was here; empty when it is.

        Raises:
            OSError: the note can't be read.
        """
        # The note first: the database is never behind what is written there.
        noted = self._note.read()
        if noted is None or self.is_copy(db):
            return ""
        if schema.has_id(db, self._database) and schema.store_id(db, self._database) != noted.store:
            return f"the database is another store's; {self._note.path.name} knows store {noted.store}"
        if noted.number <= self.last(db):
            return ""
        return (
            f"the database ends with change {self.last(db)}, but {self._note.path.name} knows of change {noted.number}:"
            " an older database was put in its place"
        )

    def refuse_overtaken(self, db: sqlite3.Connection) -> None:
        """Check once whether the database may be written, or be collected from.

        Raises:
            StoreCorruptError: see overtaken().
            OSError: the note can't be read.
        """
        if self._is_checked:
            return
        if reason := self.overtaken(db):
            raise StoreCorruptError(
                f"{self._database.parent}: {reason}",
                hint="run 'imagestore check --rebuild', which keeps that file and restores the records of a copy",
            )
        self._is_checked = True

    def refuse_gone(self) -> None:
        """Refuse to make a database where there was one.

        Raises:
            StoreCorruptError: copies of it are here, or the journal that an older version kept.
            OSError: the folder of the copies can't be read.
        """
        if self.is_rebuilding:
            return
        if self._copies.found():
            raise StoreCorruptError(
                f"{self._database}: the database is gone, but {self._copies.folder.name} next to it has copies of it",
                hint="run 'imagestore check --rebuild', or remove that folder to start with no records",
            )
        if self.journal.has_entries():
            raise StoreCorruptError(
                f"{self._database}: the database is gone, but {self.journal.path.name} next to it knows its records",
                hint=f"{earlier_journal.HINT}; or remove that file to start with no records",
            )

    def refuse_migration(self, db: sqlite3.Connection) -> None:
        """Refuse to migrate a database that isn't the one that was here.

        Raises:
            StoreCorruptError: it is older than the journal of the version before, or than what was noted.
            OSError: these can't be read.
        """
        if self.is_copy(db):
            return
        if not self.journal.has_entries():
            self.refuse_overtaken(db)
        elif (number := self.journal.read()[0]) > self.last(db):
            raise StoreCorruptError(
                f"{self._database}: the database ends with change {self.last(db)}, but {self.journal.path.name} knows"
                f" of change {number}: an older database was put in its place",
                hint=earlier_journal.HINT,
            )

    def made(self, db: sqlite3.Connection) -> None:
        """The tables were made; in a rebuild the store keeps its id, where that was noted.

        Raises:
            OSError: the note can't be read or removed.
        """
        if not self.is_rebuilding:
            self._note.remove()
        elif noted := self._note.read():
            schema.take_id(db, noted.store)
            self._go_on(db)

    def migrated(self, db: sqlite3.Connection, *, had_id: bool) -> None:
        """The schema was migrated. A store that had no id gets the one that is known of it.

        Raises:
            OSError: the note or the journal can't be read, or the note can't be removed.
        """
        if not had_id:
            known = self.journal.read()[1] if self.journal.has_entries() else ""
            noted = self._note.read()
            if known or noted:
                schema.take_id(db, known or (noted.store if noted else ""))
        self.settle(db)
        self.number(db)

    def settle(self, db: sqlite3.Connection) -> None:
        """What is here counts from now on, as a restored copy does.

        Raises:
            OSError: the note can't be read or removed.
        """
        self._go_on(db)
        db.execute("DELETE FROM counter WHERE name = ?", (COPIED,))
        self._note.remove()

    def _go_on(self, db: sqlite3.Connection) -> None:
        """Continue behind every number that was given here."""
        noted = self._note.read()
        known = [copy.number for copy in self._copies.found()]
        highest = max([0 if noted is None else noted.number, *known])
        db.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'generation'", (highest,))

    def is_copy(self, db: sqlite3.Connection) -> bool:
        """Whether this database is a backup or a copy that was not opened as a store yet."""
        return db.execute("SELECT 1 FROM counter WHERE name = ?", (COPIED,)).fetchone() is not None

    def number(self, db: sqlite3.Connection) -> None:
        """Number a change; inside a write transaction.

        Raises:
            StoreCorruptError: an older database was put in the store's place.
            OSError: the note can't be read.
        """
        self.refuse_overtaken(db)
        query = "UPDATE counter SET value = value + 1 WHERE name = 'generation' RETURNING value"
        (self._number,) = db.execute(query).fetchone()

    def last(self, db: sqlite3.Connection) -> int:
        """The last number."""
        (number,) = db.execute("SELECT value FROM counter WHERE name = 'generation'").fetchone()
        return int(number)

    def committed(self) -> None:
        """The transaction was committed."""
        # A commit that isn't synced may be lost with the power; then the database would look too old.
        if self._number and self.is_synced:
            self._synced = self._number

    def end(self) -> None:
        """The transaction ended, committed or not."""
        self._number = 0

    def note(self, db: sqlite3.Connection) -> None:
        """Note the last change of this connection that is certainly on the disk.

        Raises:
            OSError: the note can't be written.
        """
        if self._synced and not self.is_rebuilding:
            self._note.write(LastChange(schema.store_id(db, self._database), self._synced))


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
