"""A mirror's rows in an SQLite database next to the store's, for one replica.

It is a cache about a cache: a lost or damaged file costs what was fetched, and nothing else. So it has no migrations.
Another version's file is thrown away.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import StoreError
from imagestore.mirror.sql_rows import SqlCatalogueRows
from imagestore.mirror.sql_statements import TABLES, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from imagestore.mirror.sql_rows import Values

log = logging.getLogger(__name__)

T = TypeVar("T")

_BUSY_SECONDS: Final = 10.0
_TYPES: Final = {"text": "TEXT", "integer": "INTEGER", "real": "REAL", "options": "STRICT, WITHOUT ROWID"}


def open_sqlite_rows(path: Path) -> SqlCatalogueRows:
    """The rows in a file, which is made when missing.

    Args:
        path: of the database.

    Raises:
        StoreError: it can't be made or opened.
    """
    return SqlCatalogueRows(SqliteCatalogueDatabase(path))


class SqliteCatalogueDatabase:
    """One connection, used by one thread at a time.

    Args:
        path: of the database; made when missing.

    Raises:
        StoreError: it can't be made or opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._db = self._opened()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"{path}: {error}") from error
            log.warning("the mirror's catalogue is damaged and begins anew", extra={"path": str(path)})
            self._db = self._anew()

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # Power lost: the last rows too, which only are fetched again.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.execute("BEGIN IMMEDIATE")
                # Another connection may have made the tables since.
                (version,) = db.execute("PRAGMA user_version").fetchone()
                made = [table.format(**_TYPES) for table in TABLES] if version == 0 else []
                for statement in (*made, f"PRAGMA user_version = {version or VERSION}", "COMMIT"):
                    db.execute(statement)
        except BaseException:
            db.close()
            raise
        if version in (0, VERSION):
            return db
        db.close()
        log.warning("another version's catalogue of the mirror begins anew", extra={"path": str(self._path)})
        return self._anew()

    def _anew(self) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return self._opened()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def read(self, work: Callable[[SqliteTransaction], T]) -> T:
        """Run queries, each alone."""
        with self._connection() as db:
            return work(SqliteTransaction(db))

    def write(self, work: Callable[[SqliteTransaction], T]) -> T:
        """Run a transaction, and commit it; it excludes all others that write."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(SqliteTransaction(db))
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            return result

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise StoreError(f"{self._path}: {error}") from error


class SqliteTransaction:
    """Statements of a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def rows(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        """Run a query."""
        return self._db.execute(statement, values).fetchall()

    def run(self, statement: str, values: Values) -> None:
        """Run a statement."""
        self._db.execute(statement, values)

    def run_many(self, statement: str, rows: Sequence[Values]) -> None:
        """Run a statement for each of some values."""
        self._db.executemany(statement, rows)

    def tell(self) -> None:
        """Nothing: there is one replica, and it remembers nothing."""

    def lock(self, upstream: str) -> None:
        """Nothing: BEGIN IMMEDIATE did it."""
