"""The tables of an embedded store: statements in SQLite's spelling, in the transactions of ``database``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from imagestore.errors import StoreCorruptError
from imagestore.metadata import sql
from imagestore.metadata.sql import Statements
from imagestore.metadata.sqlite.failures import CORRUPT_HINT, naming_damage

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from imagestore.metadata.sqlite.database import Database


class SqliteStatements(Statements):
    """Statements on a connection.

    Args:
        connection: whose transactions are begun and ended elsewhere.
        clock: seconds since 1970.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._now = clock()

    def execute(self, text: str, **values: object) -> sqlite3.Cursor:
        """Run a statement."""
        values["now"] = self._now
        sql.lists_as_json(values)
        return self._connection.execute(sql.sqlite(text), values)

    def each(self, text: str, **values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, as they come."""
        return self.execute(text, **values)

    def pipeline(self) -> AbstractContextManager[object]:
        """Nothing: there is no server to wait for."""
        return contextlib.nullcontext()


class _Transaction:
    """A block of the database that yields its connection, as one that yields statements on it."""

    __slots__ = ("_block", "_clock")

    def __init__(self, block: AbstractContextManager[sqlite3.Connection], clock: Callable[[], float]) -> None:
        self._block = block
        self._clock = clock

    def __enter__(self) -> Statements:
        return SqliteStatements(self._block.__enter__(), self._clock)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        return self._block.__exit__(kind, value, traceback)


class SqliteTables:
    """The database's transactions, for the parts of the store; see the port.

    Args:
        database: opened before the first transaction.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def on(self, connection: sqlite3.Connection) -> SqliteStatements:
        """Statements on a connection."""
        return SqliteStatements(connection, self.database.clock)

    def _in(self, block: AbstractContextManager[sqlite3.Connection]) -> AbstractContextManager[Statements]:
        return _Transaction(block, self.database.clock)

    def reading(self) -> AbstractContextManager[Statements]:
        """Reads that may see different states."""
        return self._in(self.database.reading())

    def snapshot(self) -> AbstractContextManager[Statements]:
        """Reads that see one state."""
        return self._in(self.database.snapshot())

    def reading_whole(self) -> AbstractContextManager[Statements]:
        """Reads of whole tables, on a connection of their own."""
        return self._in(self.database.reading_apart())

    def reading_checked(self) -> AbstractContextManager[Statements]:
        """As reading_whole(), refused where an older database was put in the store's place."""
        return self._in(self.database.reading_apart(before=self.database.changes.refuse_overtaken))

    def writing(self) -> AbstractContextManager[Statements]:
        """A transaction, under the write lock."""
        return self._in(self.database.writing())

    def note_change(self) -> None:
        """Count it."""
        with self.database.writing() as db:
            self.database.changes.number(db)

    def removing(self) -> AbstractContextManager[Statements]:
        """A transaction that frees more than it takes: possible on a full disk too."""
        return self._in(self.database.removing())

    def batch(self) -> AbstractContextManager[Statements]:
        """One short step of a long work, which lets waiting writers go first."""
        return self._in(self.database.batch())

    def batch_alone(self) -> AbstractContextManager[Statements]:
        """As batch(): there is one writer at a time."""
        return self.batch()

    def noting_use(self) -> AbstractContextManager[Statements]:
        """A change that isn't synced."""
        return self._in(self.database.relaxed())

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in a transaction."""
        return self.database.is_writing()

    def naming_damage(self) -> AbstractContextManager[None]:
        """Rows that can't be parsed are damage of this database."""
        return naming_damage(self.database.path)

    def refuse_hidden(self, table: str, column: str, condition: str, **values: object) -> None:
        """Read the whole table for what its index doesn't find, so that a damaged index hides no record.

        Raises:
            StoreCorruptError: the index lacks a row.
        """
        # "+" keeps SQLite from the index, a condition on the key from a covering one.
        query = f"SELECT 1 FROM {table} WHERE reference >= '' AND {condition.replace(column, f'+{column}')} LIMIT 1"
        with self.reading() as db:
            if db.row(query, **values):
                path = self.database.path
                raise StoreCorruptError(f"{path}: an index of table {table} lacks a row", hint=CORRUPT_HINT)
