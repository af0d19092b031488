"""What a mirror has, and when it was last asked for: tags, documents, what they name, and bytes against quotas.

It is a cache about a cache: a lost or damaged file costs what was fetched, and nothing else. So it has its own database
beside the store's, and no migrations: another version's file is thrown away. What keeps content from being collected
is a lease for each upstream (see ``keeping``), which follows this file.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import OCTETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_BUSY_SECONDS: Final = 10.0
_TABLES: Final = (
    """CREATE TABLE tag (
        name TEXT NOT NULL,
        tag TEXT NOT NULL,
        digest TEXT NOT NULL,
        checked_at REAL NOT NULL,
        PRIMARY KEY (name, tag)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE document (
        name TEXT NOT NULL,
        digest TEXT NOT NULL,
        upstream TEXT NOT NULL,
        media_type TEXT NOT NULL,
        size INTEGER NOT NULL,
        served_at REAL NOT NULL,
        PRIMARY KEY (name, digest)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX document_by_use ON document (upstream, served_at)",
    "CREATE INDEX document_by_digest ON document (digest, upstream)",
    """CREATE TABLE part (
        name TEXT NOT NULL,
        parent TEXT NOT NULL,
        digest TEXT NOT NULL,
        media_type TEXT NOT NULL,
        size INTEGER NOT NULL,
        PRIMARY KEY (name, parent, digest),
        FOREIGN KEY (name, parent) REFERENCES document (name, digest) ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX part_by_digest ON part (digest, name)",
    """CREATE TABLE blob (
        upstream TEXT NOT NULL,
        digest TEXT NOT NULL,
        size INTEGER NOT NULL,
        PRIMARY KEY (upstream, digest)
    ) STRICT, WITHOUT ROWID""",
)
_IS_NAMED: Final = (
    "SELECT 1 FROM document WHERE digest = :digest AND upstream = :upstream UNION ALL"
    " SELECT 1 FROM part p JOIN document d ON d.name = p.name AND d.digest = p.parent"
    " WHERE p.digest = :digest AND d.upstream = :upstream LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class CachedTag:
    """Where a tag led when its upstream was last asked.

    Attributes:
        target: of the index or manifest.
        checked_at: seconds since 1970.
    """

    target: Descriptor
    checked_at: float


class Catalogue:
    """Rows of one mirror; thread-safe. Names are whole: ``docker.io/library/python``.

    Args:
        path: of the database; made when missing.
        clock: seconds since 1970.

    Raises:
        StoreError: it can't be made or opened.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        try:
            self._db = self._opened()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"{path}: {error}") from error
            _log.warning("the mirror's catalogue is damaged and begins anew", extra={"path": str(path)})
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
                for statement in (*_TABLES, f"PRAGMA user_version = {_VERSION}", "COMMIT"):
                    db.execute(statement)
        except BaseException:
            db.close()
            raise
        if version in (0, _VERSION):
            return db
        db.close()
        _log.warning("another version's catalogue of the mirror begins anew", extra={"path": str(self._path)})
        return self._anew()

    def _anew(self) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return self._opened()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def tag(self, name: str, tag: str) -> CachedTag | None:
        """Where a tag led, if its document is still known."""
        query = (
            "SELECT d.media_type, d.digest, d.size, checked_at FROM tag JOIN document d USING (name, digest)"
            " WHERE name = ? AND tag = ?"
        )
        row = self._row(query, name, tag)
        return None if row is None else CachedTag(_descriptor(row), row[3])

    def document(self, name: str, digest: Digest) -> Descriptor | None:
        """An index or manifest (or a blob that was asked for on its own) of a repository."""
        query = "SELECT media_type, digest, size FROM document WHERE name = ? AND digest = ?"
        row = self._row(query, name, str(digest))
        return None if row is None else _descriptor(row)

    def member(self, name: str, digest: Digest) -> Descriptor | None:
        """Anything that a repository is known to have: documents, and what they name."""
        query = "SELECT media_type, digest, size FROM part WHERE name = ? AND digest = ? LIMIT 1"
        row = self._row(query, name, str(digest))
        return self.document(name, digest) if row is None else _descriptor(row)

    def put_document(
        self, upstream: str, name: str, document: Descriptor, parts: Sequence[Descriptor], *, tag: str = ""
    ) -> None:
        """Note a document that is here, what it names, and the tag that leads to it now."""
        now, digest = self._clock(), str(document.digest)
        with self._writing() as db:
            db.execute(
                "INSERT INTO document VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET served_at = excluded.served_at,"
                # What was first asked for as a blob may turn out to be a manifest.
                " media_type = iif(excluded.media_type = ?, media_type, excluded.media_type)",
                (name, digest, upstream, document.media_type, document.size, now, OCTETS),
            )
            rows = [(name, digest, str(part.digest), part.media_type, part.size) for part in parts]
            db.executemany("INSERT OR IGNORE INTO part VALUES (?, ?, ?, ?, ?)", rows)
            db.execute("INSERT OR IGNORE INTO blob VALUES (?, ?, ?)", (upstream, digest, document.size))
            if tag:
                db.execute("INSERT OR REPLACE INTO tag VALUES (?, ?, ?, ?)", (name, tag, digest, now))

    def put_blob(self, upstream: str, blob: Descriptor) -> None:
        """Note content that is here, for the quota."""
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO blob VALUES (?, ?, ?)", (upstream, str(blob.digest), blob.size))

    def drop_tag(self, name: str, tag: str) -> None:
        """Forget a tag that its upstream doesn't have any more."""
        with self._writing() as db:
            db.execute("DELETE FROM tag WHERE name = ? AND tag = ?", (name, tag))

    def note_served(self, name: str, digest: Digest) -> None:
        """A document was served now; the least recently served are evicted first."""
        with self._writing() as db:
            values = (self._clock(), name, str(digest))
            db.execute("UPDATE document SET served_at = ? WHERE name = ? AND digest = ?", values)

    def used_bytes(self, upstream: str) -> int:
        """What an upstream's content takes."""
        row = self._row("SELECT coalesce(sum(size), 0) FROM blob WHERE upstream = ?", upstream)
        assert row is not None
        return int(row[0])

    def evict_one(self, upstream: str, *, not_since: float) -> tuple[Digest, ...] | None:
        """Forget the document that wasn't served for the longest time, with its tags.

        Args:
            upstream: whose.
            not_since: seconds since 1970; one that was served later stays.

        Returns:
            Content that nothing of the upstream names any more; None when there is no such document.
        """
        with self._writing() as db:
            oldest = db.execute(
                "SELECT name, digest FROM document WHERE upstream = ? AND served_at < ? ORDER BY served_at LIMIT 1",
                (upstream, not_since),
            ).fetchone()
            if oldest is None:
                return None
            parts = db.execute("SELECT digest FROM part WHERE name = ? AND parent = ?", oldest).fetchall()
            db.execute("DELETE FROM tag WHERE name = ? AND digest = ?", oldest)
            db.execute("DELETE FROM document WHERE name = ? AND digest = ?", oldest)
            return _freed(db, upstream, {oldest[1], *(text for (text,) in parts)})

    def forget_upstream(self, upstream: str) -> None:
        """Forget all that is here of an upstream."""
        with self._writing() as db:
            db.execute("DELETE FROM tag WHERE name IN (SELECT name FROM document WHERE upstream = ?)", (upstream,))
            db.execute("DELETE FROM document WHERE upstream = ?", (upstream,))
            db.execute("DELETE FROM blob WHERE upstream = ?", (upstream,))

    def contents(self, upstream: str) -> frozenset[Digest]:
        """All that an upstream's lease has to hold: what is here, and what its documents name."""
        query = (
            "SELECT digest FROM blob WHERE upstream = :u UNION SELECT digest FROM document WHERE upstream = :u UNION"
            " SELECT p.digest FROM part p JOIN document d ON d.name = p.name AND d.digest = p.parent"
            " WHERE d.upstream = :u"
        )
        with self._lock:
            return frozenset(Digest.parse(text) for (text,) in self._db.execute(query, {"u": upstream}).fetchall())

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a repository that were asked for, in order."""
        with self._lock:
            rows = self._db.execute("SELECT tag FROM tag WHERE name = ? ORDER BY tag", (name,)).fetchall()
        return tuple(tag for (tag,) in rows)

    def names(self) -> tuple[str, ...]:
        """The repositories that have something here, in order."""
        with self._lock:
            rows = self._db.execute("SELECT DISTINCT name FROM document ORDER BY name").fetchall()
        return tuple(name for (name,) in rows)

    def upstreams(self) -> tuple[str, ...]:
        """The upstreams that have something here."""
        with self._lock:
            rows = self._db.execute("SELECT DISTINCT upstream FROM blob ORDER BY upstream").fetchall()
        return tuple(upstream for (upstream,) in rows)

    def _row(self, query: str, *values: str) -> tuple[Any, ...] | None:
        with self._lock:
            row: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
        return row

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(f"{self._path}: {error}") from error


def _freed(db: sqlite3.Connection, upstream: str, candidates: Iterable[str]) -> tuple[Digest, ...]:
    freed = []
    for text in candidates:
        values = {"digest": text, "upstream": upstream}
        if db.execute(_IS_NAMED, values).fetchone() is None:
            db.execute("DELETE FROM blob WHERE upstream = :upstream AND digest = :digest", values)
            freed.append(Digest.parse(text))
    return tuple(freed)


def _descriptor(row: Sequence[Any]) -> Descriptor:
    return Descriptor(row[0], Digest.parse(row[1]), row[2])
