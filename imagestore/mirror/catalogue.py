"""What a mirror has, and when it was last asked for: tags, documents, what they name, and bytes against quotas.

It is a cache about a cache: a lost or damaged file costs what was fetched, and nothing else. So it has its own database
next to the store's, and no migrations: another version's file is thrown away. What keeps content from being collected
is a lease for each upstream (see ``keeping``), which follows this file.
"""

from __future__ import annotations

import contextlib
import json
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
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

log = logging.getLogger(__name__)

_VERSION: Final = 2
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
        is_here INTEGER NOT NULL,
        PRIMARY KEY (upstream, digest)
    ) STRICT, WITHOUT ROWID""",
)
#: Whether anything of an upstream names a digest.
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
                for statement in (*_TABLES, f"PRAGMA user_version = {_VERSION}", "COMMIT"):
                    db.execute(statement)
        except BaseException:
            db.close()
            raise
        if version in (0, _VERSION):
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
        # Where documents disagree about a size, what is here decides.
        query = (
            "SELECT p.media_type, p.digest, p.size FROM part p"
            " JOIN document d ON d.name = p.name AND d.digest = p.parent"
            " LEFT JOIN blob b ON b.upstream = d.upstream AND b.digest = p.digest AND b.is_here"
            " WHERE p.name = ? AND p.digest = ? ORDER BY p.size = b.size DESC LIMIT 1"
        )
        row = self._row(query, name, str(digest))
        return self.document(name, digest) if row is None else _descriptor(row)

    def is_earned(self, upstream: str, digest: Digest) -> bool:
        """Whether an upstream is known to have content: it came from there, or it said so.

        That a document of an upstream names content is no proof: anybody can push one that names another's.
        """
        return self._row("SELECT 1 FROM blob WHERE upstream = ? AND digest = ?", upstream, str(digest)) is not None

    def put_document(
        self,
        upstream: str,
        name: str,
        document: Descriptor,
        parts: Sequence[Descriptor],
        *,
        tag: str = "",
        is_here: bool = True,
    ) -> None:
        """Note a document that an upstream has, what it names, and the tag that leads to it now."""
        now, digest = self._clock(), str(document.digest)
        with self._writing() as db:
            db.execute(
                "INSERT INTO document VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET served_at = excluded.served_at, size = excluded.size,"
                # What was first asked for as a blob may turn out to be a manifest.
                " media_type = iif(excluded.media_type = ?, media_type, excluded.media_type)",
                (name, digest, upstream, document.media_type, document.size, now, OCTETS),
            )
            rows = [(name, digest, str(part.digest), part.media_type, part.size) for part in parts]
            db.executemany("INSERT OR IGNORE INTO part VALUES (?, ?, ?, ?, ?)", rows)
            _put_blob(db, upstream, document, is_here=is_here)
            if tag:
                db.execute("INSERT OR REPLACE INTO tag VALUES (?, ?, ?, ?)", (name, tag, digest, now))

    def put_blob(self, upstream: str, name: str, blob: Descriptor) -> None:
        """Note content that came from an upstream; what nothing names is a document of its own, so that it can go."""
        with self._writing() as db:
            _put_blob(db, upstream, blob, is_here=True)
            if db.execute(_IS_NAMED, {"digest": str(blob.digest), "upstream": upstream}).fetchone() is None:
                values = (name, str(blob.digest), upstream, OCTETS, blob.size, self._clock())
                db.execute("INSERT INTO document VALUES (?, ?, ?, ?, ?, ?)", values)

    def forget_content(self, digest: Digest) -> None:
        """Content that was here is gone, or damaged: it counts against no quota."""
        with self._writing() as db:
            db.execute("UPDATE blob SET is_here = 0 WHERE digest = ?", (str(digest),))

    def distrust(self, name: str, digest: Digest) -> None:
        """Forget the size that an upstream told of a blob, which was wrong."""
        with self._writing() as db:
            values = (name, str(digest), OCTETS)
            db.execute("DELETE FROM document WHERE name = ? AND digest = ? AND media_type = ?", values)

    def drop_tag(self, name: str, tag: str) -> None:
        """Forget a tag that its upstream doesn't have any more."""
        with self._writing() as db:
            db.execute("DELETE FROM tag WHERE name = ? AND tag = ?", (name, tag))

    def note_served(self, name: str, digest: Digest) -> None:
        """A document, or what it names, was served now; the least recently served are evicted first."""
        with self._writing() as db:
            db.execute(
                "UPDATE document SET served_at = :now WHERE name = :name AND (digest = :digest"
                " OR digest IN (SELECT parent FROM part WHERE name = :name AND digest = :digest))",
                {"now": self._clock(), "name": name, "digest": str(digest)},
            )

    def used_bytes(self, upstream: str) -> int:
        """What an upstream's content takes."""
        row = self._row("SELECT coalesce(sum(size), 0) FROM blob WHERE upstream = ? AND is_here", upstream)
        assert row is not None
        return int(row[0])

    def counted_bytes(self, upstream: str, digest: Digest) -> int:
        """What one content counts already; 0 when it isn't here."""
        query = "SELECT size FROM blob WHERE upstream = ? AND digest = ? AND is_here"
        row = self._row(query, upstream, str(digest))
        return 0 if row is None else int(row[0])

    def evict_one(
        self, upstream: str, *, not_since: float, spared: Collection[Digest] = ()
    ) -> tuple[Digest, ...] | None:
        """Forget the document that wasn't served for the longest time, with its tags.

        Args:
            upstream: whose.
            not_since: seconds since 1970; one that was served later stays.
            spared: content on its way; what is it, or names it, stays.

        Returns:
            Content that nothing of the upstream names any more; None when there is no such document.
        """
        values = {
            "upstream": upstream,
            "not_since": not_since,
            "spared": json.dumps([str(digest) for digest in spared]),
        }
        with self._writing() as db:
            oldest = db.execute(
                "SELECT name, digest FROM document d WHERE upstream = :upstream AND served_at < :not_since"
                " AND digest NOT IN (SELECT value FROM json_each(:spared)) AND NOT EXISTS (SELECT 1 FROM part p"
                " WHERE p.name = d.name AND p.parent = d.digest AND p.digest IN (SELECT value FROM json_each(:spared)))"
                " ORDER BY served_at LIMIT 1",
                values,
            ).fetchone()
            if oldest is None:
                return None
            parts = db.execute("SELECT digest FROM part WHERE name = ? AND parent = ?", oldest).fetchall()
            db.execute("DELETE FROM tag WHERE name = ? AND digest = ?", oldest)
            db.execute("DELETE FROM document WHERE name = ? AND digest = ?", oldest)
            return _freed(db, upstream, {oldest[1], *(text for (text,) in parts)})

    def forget_unnamed(self, upstream: str) -> None:
        """Forget content that no document names, as a crash may leave it."""
        with self._writing() as db:
            texts = [text for (text,) in db.execute("SELECT digest FROM blob WHERE upstream = ?", (upstream,))]
            _freed(db, upstream, texts)

    def forget_upstream(self, upstream: str) -> None:
        """Forget all that is here of an upstream."""
        with self._writing() as db:
            db.execute("DELETE FROM tag WHERE name IN (SELECT name FROM document WHERE upstream = ?)", (upstream,))
            db.execute("DELETE FROM document WHERE upstream = ?", (upstream,))
            db.execute("DELETE FROM blob WHERE upstream = ?", (upstream,))

    def contents(self, upstream: str) -> frozenset[Digest]:
        """All that an upstream's lease has to hold: what is here, and what its documents name."""
        query = (
            "SELECT digest FROM blob WHERE upstream = ?1 UNION SELECT digest FROM document WHERE upstream = ?1 UNION"
            " SELECT p.digest FROM part p JOIN document d ON d.name = p.name AND d.digest = p.parent"
            " WHERE d.upstream = ?1"
        )
        return frozenset(Digest.parse(text) for text in self._texts(query, upstream))

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a repository that were asked for, in order."""
        return self._texts("SELECT tag FROM tag WHERE name = ? ORDER BY tag", name)

    def names(self, upstream: str) -> tuple[str, ...]:
        """The repositories of an upstream that have something here, in order."""
        return self._texts("SELECT DISTINCT name FROM document WHERE upstream = ? ORDER BY name", upstream)

    def upstreams(self) -> tuple[str, ...]:
        """The upstreams that have something here."""
        return self._texts("SELECT upstream FROM blob UNION SELECT upstream FROM document")

    def _texts(self, query: str, *values: str) -> tuple[str, ...]:
        with self._reading() as db:
            return tuple(text for (text,) in db.execute(query, values).fetchall())

    def _row(self, query: str, *values: str) -> tuple[Any, ...] | None:
        with self._reading() as db:
            row: tuple[Any, ...] | None = db.execute(query, values).fetchone()
        return row

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise StoreError(f"{self._path}: {error}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


def _put_blob(db: sqlite3.Connection, upstream: str, blob: Descriptor, *, is_here: bool) -> None:
    db.execute(
        "INSERT INTO blob VALUES (?, ?, ?, ?)"
        # Of what is here, what its upstream says is no news.
        " ON CONFLICT DO UPDATE SET size = iif(is_here AND NOT excluded.is_here, size, excluded.size),"
        " is_here = max(is_here, excluded.is_here)",
        (upstream, str(blob.digest), blob.size, int(is_here)),
    )


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
