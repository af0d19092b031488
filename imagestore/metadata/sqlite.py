"""Metadata in an embedded SQLite database: write-ahead log, full sync, explicit transactions.

Every read-then-write begins with BEGIN IMMEDIATE: a plain BEGIN that later writes fails at once when another process
wrote in between. One connection serves all threads of a process, one call at a time; calls take microseconds.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.digest import Digest
from imagestore.errors import (
    AlreadyExistsError,
    LeaseNotFoundError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from imagestore.failpoint import reach
from imagestore.metadata import rows, schema
from imagestore.metadata.api import ImageRecord, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

_BUSY_SECONDS: Final = 30.0
_CODES: Final[dict[int, type[StoreError]]] = {
    sqlite3.SQLITE_BUSY: StoreBusyError,
    sqlite3.SQLITE_LOCKED: StoreBusyError,
    sqlite3.SQLITE_FULL: StoreFullError,
    sqlite3.SQLITE_READONLY: StoreReadOnlyError,
    sqlite3.SQLITE_CANTOPEN: StoreReadOnlyError,
    sqlite3.SQLITE_PERM: StoreReadOnlyError,
    sqlite3.SQLITE_CORRUPT: StoreCorruptError,
    sqlite3.SQLITE_NOTADB: StoreCorruptError,
}
_HINTS: Final[dict[type[StoreError], str]] = {
    StoreBusyError: "another process holds the database; try again",
    StoreFullError: "free space there, or run 'imagestore gc'",
    StoreReadOnlyError: "choose a folder you may write with --root",
    StoreCorruptError: "move the file away to start with empty records; the content beside it is not touched",
}


class SqliteMetadataStore:
    """Records, edges and leases in one file.

    Args:
        path: the database; made when missing, on a local disk.
        clock: seconds since 1970.

    Raises:
        StoreError: it can't be opened, is damaged, or was written by a newer version.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._depth = 0
        with self._translated():
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def put_image(self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]]) -> ImageRecord:
        """Insert or replace a record together with its edges, durably."""
        with self._writing() as db:
            now = self._clock()
            key = (record.reference, record.handler)
            found = db.execute("SELECT created_at FROM image WHERE reference = ? AND handler = ?", key).fetchone()
            db.execute("UPDATE counter SET value = value + 1 WHERE name = 'generation'")
            values = rows.from_record(record, created_at=found[0] if found else now, updated_at=now)
            db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
            db.execute(
                f"INSERT INTO image ({rows.COLUMNS}, generation) VALUES ({rows.MARKS},"  # noqa: S608 - constants
                " (SELECT value FROM counter WHERE name = 'generation'))",
                values,
            )
            db.executemany(
                "INSERT INTO image_root VALUES (?, ?, ?, ?)",
                [(*key, position, str(digest)) for position, digest in enumerate(record.roots)],
            )
            _insert_edges(db, edges)
            stored = self.get_image(*key)
            assert stored is not None
            return stored

    def get_image(self, reference: str, handler: str) -> ImageRecord | None:
        """One record, or None."""
        return next(iter(self.find_images(reference=reference, handler=handler)), None)

    def find_images(
        self, *, reference: str | None = None, handler: str | None = None, image_id_prefix: str | None = None
    ) -> list[ImageRecord]:
        """Records that fit every given condition, ordered by reference and handler."""
        conditions: list[str] = []
        values: list[str] = []
        if reference is not None:
            conditions.append("reference = ?")
            values.append(reference)
        if handler is not None:
            conditions.append("handler = ?")
            values.append(handler)
        if image_id_prefix is not None:
            # "g" is above every hex digit, so this is the range of texts with that beginning, found by the index.
            conditions.append("image_id >= ? AND image_id < ?")
            values += [image_id_prefix, image_id_prefix + "g"]
        return self._select(" AND ".join(conditions) or "TRUE", values)

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest."""
        condition = "(reference, handler) IN (SELECT reference, handler FROM image_root WHERE digest = ?)"
        return self._select(condition, [str(digest)])

    def remove_images(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records in one transaction; return those that were there."""
        removed = []
        with self._writing() as db:
            for key in keys:
                record = self.get_image(*key)
                if record is not None:
                    db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
                    removed.append(record)
        return removed

    def create_lease(self, lease_id: str, *, lifetime_seconds: float) -> Lease:
        """Make a lease."""
        now = self._clock()
        lease = Lease(lease_id, now, now + lifetime_seconds)
        with self._writing() as db:
            if db.execute("SELECT 1 FROM lease WHERE id = ?", (lease_id,)).fetchone():
                raise AlreadyExistsError(f"lease {lease_id!r} exists already")
            db.execute("INSERT INTO lease VALUES (?, ?, ?)", (lease.id, lease.created_at, lease.expires_at))
        return lease

    def renew_lease(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Move a lease's end to now plus its lifetime."""
        with self._writing() as db:
            end = self._clock() + lifetime_seconds
            if not db.execute("UPDATE lease SET expires_at = ? WHERE id = ?", (end, lease_id)).rowcount:
                raise _no_lease(lease_id)

    def lease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Put digests under a lease, before their presence is looked at."""
        with self._writing() as db:
            if not db.execute("SELECT 1 FROM lease WHERE id = ?", (lease_id,)).fetchone():
                raise _no_lease(lease_id)
            db.executemany(
                "INSERT OR IGNORE INTO lease_content VALUES (?, ?)", [(lease_id, str(digest)) for digest in digests]
            )

    def lease_edges(self, lease_id: str, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Remember edges of content that a lease holds."""
        with self._writing() as db:
            _insert_edges(db, edges)
            self.lease_content(lease_id, list(edges))

    def delete_lease(self, lease_id: str) -> bool:
        """Release a lease; say whether it was there."""
        with self._writing() as db:
            return db.execute("DELETE FROM lease WHERE id = ?", (lease_id,)).rowcount > 0

    def leases(self) -> Iterator[Lease]:
        """Every lease, expired ones too."""
        with self._reading() as db:
            found = db.execute("SELECT id, created_at, expires_at FROM lease ORDER BY id").fetchall()
        return (Lease(*row) for row in found)

    def live_roots(self, *, since_generation: int = 0) -> tuple[int, frozenset[Digest]]:
        """What records and unexpired leases hold, and the generation of that answer."""
        with self._reading() as db:
            # One statement is one snapshot.
            found = db.execute(
                "SELECT value, NULL FROM counter WHERE name = 'generation'"
                " UNION ALL SELECT NULL, digest FROM image_root JOIN image USING (reference, handler)"
                " WHERE generation > ?"
                " UNION ALL SELECT NULL, digest FROM lease_content JOIN lease ON lease = id WHERE expires_at > ?",
                (since_generation, self._clock()),
            ).fetchall()
        generation = next(value for value, _ in found if value is not None)
        return generation, frozenset(Digest.parse(text) for text in {text for _, text in found} if text is not None)

    def edges(self) -> Mapping[Digest, tuple[Digest, ...]]:
        """Every edge: children by parent."""
        with self._reading() as db:
            pairs = db.execute("SELECT parent, child FROM edge").fetchall()
        found: dict[Digest, list[Digest]] = {}
        for parent, child in pairs:
            found.setdefault(Digest.parse(parent), []).append(Digest.parse(child))
        return {parent: tuple(children) for parent, children in found.items()}

    def children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at."""
        with self._reading() as db:
            found = db.execute("SELECT child FROM edge WHERE parent = ?", (str(digest),)).fetchall()
        return tuple(Digest.parse(text) for (text,) in found)

    def expire_leases(self) -> int:
        """Delete expired leases; return how many."""
        with self._writing() as db:
            return db.execute("DELETE FROM lease WHERE expires_at <= ?", (self._clock(),)).rowcount

    def forget_content(self, digests: Collection[Digest]) -> None:
        """Drop the edges that start at content that was deleted."""
        with self._writing() as db:
            db.executemany("DELETE FROM edge WHERE parent = ?", [(str(digest),) for digest in digests])

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the database's write lock; commits at the end."""
        with self._writing():
            yield

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        db = self._connection
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {pragma}")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == schema.CURRENT:
            return
        with self._writing():
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > schema.CURRENT:
                raise StoreCorruptError(
                    f"{self._path}: schema version {version} is newer than {schema.CURRENT}, the newest this one reads",
                    hint="use the newer imagestore that wrote it",
                )
            for step in schema.STEPS[version:]:
                for statement in step:
                    reach("database-migrate")
                    db.execute(statement)
            db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {schema.CURRENT}")

    def _select(self, condition: str, values: list[str]) -> list[ImageRecord]:
        with self._reading() as db:
            found = db.execute(
                f"SELECT {rows.COLUMNS}, (SELECT json_group_array(digest) FROM (SELECT digest FROM image_root r"  # noqa: S608
                " WHERE r.reference = image.reference AND r.handler = image.handler ORDER BY position))"
                f" FROM image WHERE {condition} ORDER BY reference, handler",
                values,
            ).fetchall()
            with self._damage_named():
                return [rows.to_record(row) for row in found]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated():
            yield self._connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; inner ones join the outer."""
        with self._lock, self._translated():
            db = self._connection
            if self._depth == 0:
                reach("database-begin")
                db.execute("BEGIN IMMEDIATE")
                reach("database-begun")
            self._depth += 1
            try:
                yield db
            except BaseException:
                self._depth -= 1
                if self._depth == 0 and db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                reach("database-commit")
                db.execute("COMMIT")
                reach("database-committed")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # The low byte of an extended code is the plain one.
            kind = _CODES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, StoreError)
            raise kind(f"{self._path}: {error}", hint=_HINTS.get(kind, "")) from error

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(
                f"{self._path}: an image record can't be read: {error}", hint=_HINTS[StoreCorruptError]
            ) from error


def _insert_edges(db: sqlite3.Connection, edges: Mapping[Digest, Iterable[Digest]]) -> None:
    db.executemany(
        "INSERT OR IGNORE INTO edge VALUES (?, ?)",
        [(str(parent), str(child)) for parent, children in edges.items() for child in children],
    )


def _no_lease(lease_id: str) -> LeaseNotFoundError:
    return LeaseNotFoundError(f"lease {lease_id!r} does not exist or was released")
