"""Another room's own tables in a shared store's database (the mirror's catalogue), and transactions over them.

Each scope has its own, in a schema of the database. Their version is part of the schema's name: while replicas are
upgraded one by one, the older ones go on with their tables.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from imagestore.errors import StoreBusyError
from imagestore.metadata.postgres.changes import ChangeFeed
from imagestore.metadata.postgres.failures import Translated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from imagestore.metadata.postgres.connection import Connection
    from imagestore.metadata.postgres.database import PostgresDatabase

T = TypeVar("T")

_PARAMETER: Final = re.compile(r":([a-z_]+)")
#: Tries of a transaction that the server aborts because of another one.
_TRIES: Final = 10
_ENDED: Final = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_TYPES: Final = {"text": 'text COLLATE "C"', "integer": "bigint", "real": "double precision", "options": ""}


class SharedStatements:
    """Runs transactions over a room's own tables; thread-safe. Close it.

    Args:
        database: whose connections are used; closed with this.
        name: of the room; part of the schema's name.
        version: of the tables.
        tables: statements that create them, to be formatted with ``text``, ``integer``, ``real`` and ``options``.

    Raises:
        PreconditionError: the user may create no schema.
        StoreError: the database can't be reached.
    """

    def __init__(self, database: PostgresDatabase, *, name: str, version: int, tables: Sequence[str]) -> None:
        self._database = database
        scope = hashlib.sha256(database.scope.encode()).hexdigest()[:12]
        self._name = f"{name}_v{version}_{scope}"
        self._prologue = "; ".join((*database.beginning(), f"SET LOCAL search_path = {self._name}"))
        self._make(tables)
        #: Changes of these tables by all machines.
        self.changes = ChangeFeed(None if database.is_pooled else database.connect, self._name)

    def close(self) -> None:
        """Close the connections."""
        self.changes.close()
        self._database.close()

    def read(self, work: Callable[[StatementTransaction], T]) -> T:
        """Run queries; each sees what was committed before it. Errors are those of write()."""
        return self.write(work)

    def write(self, work: Callable[[StatementTransaction], T]) -> T:
        """Run a transaction and commit it; again when the server aborts it because of another one.

        Raises:
            StoreBusyError: it was aborted too often.
            StoreError: the database can't be reached.
        """
        for _ in range(_TRIES):
            try:
                return self._run(work)
            except _ENDED:
                continue
        raise StoreBusyError(
            f"{self._database.name}: other replicas write the same rows all the time", hint="try again"
        )

    def _run(self, work: Callable[[StatementTransaction], T]) -> T:
        self._database.check_process()
        with Translated(self._database.name, spared=_ENDED), contextlib.ExitStack() as stack:
            db, _ = self._database.begun(stack, self._prologue)
            transaction = StatementTransaction(db, self._name)
            result = work(transaction)
        if transaction.is_notified:
            self.changes.note()
        return result

    def _make(self, tables: Sequence[str]) -> None:
        with self._database.transaction(is_alone=True) as db:
            made = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._name,)).fetchone()
            if made is None:
                db.execute(f"CREATE SCHEMA {self._name}")
                db.execute(f"SET LOCAL search_path = {self._name}")
                for statement in tables:
                    db.execute(statement.format(**_TYPES))


class StatementTransaction:
    """Statements of a transaction; parameters are written ``:name``.

    Args:
        db: in a transaction.
        channel: for notifications of changes.
    """

    def __init__(self, db: Connection, channel: str) -> None:
        self._db = db
        self._channel = channel
        #: Whether other machines are notified when this is committed.
        self.is_notified = False

    def rows(self, statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Run a query."""
        return self._db.execute(_rewritten(statement), values).fetchall()

    def run(self, statement: str, values: Mapping[str, object]) -> None:
        """Run a statement."""
        self._db.execute(_rewritten(statement), values)

    def run_many(self, statement: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Run a statement for each of some values."""
        if rows:
            with self._db.cursor() as cursor:
                cursor.executemany(_rewritten(statement), rows)

    def tell(self) -> None:
        """Notify all machines, once this is committed, that what they cache of these tables is outdated."""
        if not self.is_notified:
            self._db.execute("SELECT pg_notify(%s, '')", (self._channel,))
            self.is_notified = True

    def lock(self, name: str) -> None:
        """Wait for the transactions that hold this lock, and hold it until this one ends."""
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || %s, 0))"
        self._db.execute(lock, (name,))


@functools.lru_cache(maxsize=256)
def _rewritten(statement: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", statement)
