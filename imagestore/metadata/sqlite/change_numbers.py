"""Numbers of changes, from a counter in the database, and what the journal must be told of them.

The counter goes back with a transaction that dies, whose lines stay in the journal. So the first number of each
transaction comes with a line that says where the last committed one ended; a transaction that took a number without it
would make the journal believe the dead one before.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imagestore.errors import StoreCorruptError
from imagestore.metadata.sqlite.schema import COPIED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from imagestore.metadata.sqlite.journal import RecordJournal


class Numbering:
    """Numbers for the changes of one connection.

    Args:
        journal: where changes are noted.
        is_rebuilding: go on where the journal ends instead; a rebuild that dies must leave what was uncertain so.
    """

    def __init__(self, journal: RecordJournal, *, is_rebuilding: bool) -> None:
        self._journal = journal
        self.is_rebuilding = is_rebuilding
        self._has_begun = False
        self._is_checked = is_rebuilding

    def overtaken(self, db: sqlite3.Connection) -> str:
        """Why the database can't be the one that the journal goes with: it ends before what was committed to it.

        An older file was put in its place. A backup isn't meant: it is marked, and counts (see copying).

        Returns:
            The reason; empty when database and journal agree.

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
        """Look once whether the database may be written, or be collected from.

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

    def next(self, db: sqlite3.Connection, announced: Callable[[int], Iterable[str]] | None = None) -> int:
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
            self._tell(self.last(db), announced)
        query = "UPDATE counter SET value = value + 1 WHERE name = 'generation' RETURNING value"
        (number,) = db.execute(query).fetchone()
        return int(number)

    def _tell(self, last: int, announced: Callable[[int], Iterable[str]] | None) -> None:
        begin = None if self._has_begun else last
        if announced is not None:
            with contextlib.suppress(OSError):
                self._journal.announce(last + 1, announced(last + 1), begin=begin)
                self._has_begun = True
        if not self._has_begun:
            self._journal.begin(last)
            self._has_begun = True

    def last(self, db: sqlite3.Connection) -> int:
        """The number that was given last."""
        (number,) = db.execute("SELECT value FROM counter WHERE name = 'generation'").fetchone()
        return int(number)

    def end(self) -> None:
        """The transaction ended, well or badly."""
        self._has_begun = False
