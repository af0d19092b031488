"""The tables of a scope: statements in PostgreSQL's spelling, in the transactions of ``database``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata import sql
from imagestore.metadata.postgres.database import NOW
from imagestore.metadata.postgres.failures import naming_damage
from imagestore.metadata.sql import Statements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import psycopg

    from imagestore.metadata.postgres.connection import Connection
    from imagestore.metadata.postgres.database import PostgresDatabase

#: Rows of a whole table that are fetched at a time.
_PAGE: Final = 2000


class PostgresStatements(Statements):
    """Statements on a connection.

    Args:
        connection: whose transactions are begun and ended elsewhere.
        scope: the store whose images and leases are meant.
        is_paged: results that may be long are fetched in pages, which needs a transaction.
    """

    def __init__(self, connection: Connection, scope: str, *, is_paged: bool = False) -> None:
        self._connection = connection
        self._scope = scope
        self._is_paged = is_paged

    def execute(self, text: str, **values: object) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement."""
        return self._connection.execute(sql.postgres(text, NOW), self._given(values))

    def each(self, text: str, **values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, page by page in a read of whole tables."""
        if not self._is_paged:
            yield from self.execute(text, **values)
            return
        with self._connection.cursor(name="rows") as cursor:
            cursor.itersize = _PAGE
            cursor.execute(sql.postgres(text, NOW), self._given(values))
            yield from cursor

    def pipeline(self) -> AbstractContextManager[object]:
        """Statements are sent together, in one round trip, as in a pipelined transaction in any case."""
        return contextlib.nullcontext() if self._connection.info.pipeline_status else self._connection.pipeline()

    def _given(self, values: dict[str, object]) -> dict[str, object]:
        values["scope"] = self._scope
        sql.lists_as_json(values)
        return values


class PostgresTables:
    """The database's transactions, for the parts of the store; see the port."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database

    def note_change(self) -> None:
        """Nothing: a number that every change would have to write would serialize all writers."""

    def _on(self, connection: Connection) -> PostgresStatements:
        return PostgresStatements(connection, self.database.scope)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Statements]:
        """Reads that may see different states."""
        with self.database.reading() as db:
            yield self._on(db)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Statements]:
        """Reads that see one state."""
        with self.database.snapshot() as db:
            yield self._on(db)

    @contextlib.contextmanager
    def reading_whole(self) -> Iterator[Statements]:
        """Reads of whole tables, which may take long."""
        with self.database.snapshot() as db:
            yield PostgresStatements(db, self.database.scope, is_paged=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Statements]:
        """A transaction that holds the store's lock shared."""
        with self.database.writing() as db:
            yield self._on(db)

    def removing(self) -> AbstractContextManager[Statements]:
        """As writing(): the disk is the server's."""
        return self.writing()

    @contextlib.contextmanager
    def batch(self) -> Iterator[Statements]:
        """As writing(), for one short step of a long work; in it, a sweep deletes only rows that it has locked."""
        with self.database.batch() as db:
            yield self._on(db)

    @contextlib.contextmanager
    def batch_alone(self) -> Iterator[Statements]:
        """A transaction that holds the store's lock alone."""
        with self.database.transaction(is_alone=True) as db:
            yield self._on(db)

    @contextlib.contextmanager
    def noting_use(self) -> Iterator[Statements]:
        """A statement of its own, which nothing else has to exclude."""
        with self.database.reading() as db:
            yield self._on(db)

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in a transaction."""
        return self.database.is_in_transaction

    def naming_damage(self) -> AbstractContextManager[None]:
        """Rows that can't be parsed are damage of this database."""
        return naming_damage(self.database.name)

    def refuse_hidden(self, table: str, column: str, condition: str, **values: object) -> None:
        """Nothing: the server keeps its indexes."""
