"""The database of a mirror's catalogue: the port, SQLite for one replica, and answers that replicas remember.

The SQLite file is a cache about a cache: if it is lost or damaged, content is fetched again, and nothing else is lost.
So it has no migrations; another version's file is deleted. PostgreSQL's adapter is ``metadata/postgres/statements``.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from imagestore.errors import StoreError
from imagestore.mirror.catalogue_sql import TABLES, VERSION
from imagestore.util.sqlite_version import check_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

log = logging.getLogger(__name__)

T = TypeVar("T")
#: Values of a statement by the names of its parameters.
Values = dict[str, object]

_BUSY_SECONDS: Final = 10.0
_TYPES: Final = {"text": "TEXT", "integer": "INTEGER", "real": "REAL", "options": "STRICT, WITHOUT ROWID"}
#: Answers that are remembered, of some 300 bytes each.
_MOST_ANSWERS: Final = 20_000


class Transaction(Protocol):
    """Statements that take effect together, or not at all."""

    def rows(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        """Run a query."""

    def run(self, statement: str, values: Values) -> None:
        """Run a statement."""

    def run_many(self, statement: str, rows: Sequence[Values]) -> None:
        """Run a statement once for each of some values."""

    def tell(self) -> None:
        """Announce that answers change: replicas drop those they remember once this is committed."""

    def lock(self, upstream: str) -> None:
        """Hold the upstream's lock until this transaction ends; nothing where writers exclude each other anyway."""


class CatalogueDatabase(Protocol):
    """Runs transactions over ``catalogue_sql.TABLES``; thread-safe. All methods raise StoreError.

    A transaction that the database ends (a deadlock) is run again, so ``work`` must have no other effects.
    """

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run queries, in a transaction or each alone."""

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run a transaction, and commit it."""

    def close(self) -> None:
        """Close it."""


class Changes(Protocol):
    """Follows changes of the rows by any replica."""

    def mark(self) -> int | None:
        """A number that differs after every change; None while changes can't be followed."""


class RememberedAnswers:
    """Answers of the database, kept until a replica changes anything; thread-safe.

    Args:
        changes: of the rows. While they can't be followed, or if None, every question goes to the database.
    """

    def __init__(self, changes: Changes | None) -> None:
        self._changes = changes
        self._lock = threading.Lock()
        self._mark: int | None = None
        self._answers: dict[tuple[object, ...], Any] = {}

    def get(self, key: tuple[object, ...], ask: Callable[[], T]) -> T:
        """The remembered answer, else the one that ``ask`` gets."""
        mark = self._changes.mark() if self._changes is not None else None
        if mark is None:
            return ask()
        with self._lock:
            if self._mark != mark or len(self._answers) >= _MOST_ANSWERS:
                self._mark, self._answers = mark, {}
            elif key in self._answers:
                return cast("T", self._answers[key])
        answer = ask()
        with self._lock:
            # Otherwise the answer may be older than the change.
            if self._changes is not None and self._mark == mark == self._changes.mark():
                self._answers[key] = answer
        return answer


class SqliteCatalogueDatabase:
    """A SQLite file, made when missing: one connection, used by one thread at a time.

    Raises:
        StoreError: it can't be made or opened.
    """

    def __init__(self, path: Path) -> None:
        check_sqlite()
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
            # A power cut may lose the last rows, whose content is fetched again.
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

    def read(self, work: Callable[[_SqliteTransaction], T]) -> T:
        """Run queries, each alone."""
        with self._connection() as db:
            return work(_SqliteTransaction(db))

    def write(self, work: Callable[[_SqliteTransaction], T]) -> T:
        """Run a transaction that excludes all other writers, and commit it."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(_SqliteTransaction(db))
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


class _SqliteTransaction:
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
        """Nothing: answers aren't remembered."""

    def lock(self, upstream: str) -> None:
        """Nothing: BEGIN IMMEDIATE excludes other writers."""
