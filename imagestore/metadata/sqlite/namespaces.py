"""Namespaces in SQLite: their labels, the content each knows, their unfinished writes, and what each keeps.

A collection asks twice. First each namespace loses the content records that nothing *in it* reaches: images, unexpired
leases, gc.root labels and unfinished writes are its roots, gc.ref.content labels its edges (containerd, core/metadata).
Then a file is deleted that no content record, and nothing of the store's own, holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, NotFoundError
from imagestore.metadata import rows
from imagestore.metadata.marking import mark
from imagestore.metadata.records import HOME, PROXY, ContentRecord
from imagestore.metadata.rows import INGEST_SECONDS
from imagestore.metadata.sqlite.failures import naming_damage
from imagestore.metadata.sqlite.named_images import IS_ALIVE
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.metadata.sqlite.database import Database
    from imagestore.metadata.sqlite.graph import SqliteGraph

#: Content records of the store's own namespace that are asked about in one batch: some milliseconds.
_SWEPT_AT_ONCE: Final = 64
_IN_USE: Final = (
    "SELECT 1 FROM named_image WHERE namespace = :name UNION SELECT 1 FROM namespace_content WHERE owner = :name"
    " UNION SELECT 1 FROM lease WHERE namespace = :name UNION SELECT 1 FROM namespace_ingest WHERE owner = :name"
)


class SqliteNamespaces:
    """Namespaces, content records, unfinished writes."""

    def __init__(self, database: Database, graph: SqliteGraph) -> None:
        self._database = database
        self._graph = graph

    def find(self) -> dict[str, dict[str, str]]:
        """Every namespace with its labels, ordered by name; ``HOME`` always exists."""
        with self._database.reading() as db:
            found = dict(db.execute("SELECT name, labels FROM namespace").fetchall())
        found.setdefault(HOME, "{}")
        with naming_damage(self._database.path):
            return {name: json.loads(found[name]) for name in sorted(found)}

    def create(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a namespace."""
        text = rows.labels_text(labels)
        with self._database.writing() as db:
            if name == HOME or db.execute("SELECT 1 FROM namespace WHERE name = ?", (name,)).fetchone():
                raise AlreadyExistsError(f"namespace {name!r} exists already")
            db.execute("INSERT INTO namespace VALUES (?, ?)", (name, text))

    def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Replace a namespace's labels; creates it when missing."""
        with self._database.writing() as db:
            db.execute("INSERT OR REPLACE INTO namespace VALUES (?, ?)", (name, rows.labels_text(labels)))

    def remove(self, name: str) -> bool:
        """Remove an empty namespace; False while it isn't empty."""
        with self._database.writing() as db:
            if not db.execute("SELECT 1 FROM namespace WHERE name = ?", (name,)).fetchone():
                raise NotFoundError(f"namespace {name!r} is not there")
            if db.execute(_IN_USE, {"name": name}).fetchone():
                return False
            db.execute("DELETE FROM namespace WHERE name = ?", (name,))
            return True

    def record_content(self, owner: str, digest: Digest, size: int) -> bool:
        """Note that an owner knows a blob, before it becomes visible; False when that was noted before."""
        now = self._database.clock()
        with self._database.writing() as db:
            if not owner.startswith(PROXY):
                db.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (owner,))
            values = (owner, str(digest), size, now, now)
            statement = "INSERT OR IGNORE INTO namespace_content VALUES (?, ?, ?, '{}', 0, ?, ?)"
            return db.execute(statement, values).rowcount > 0

    def content_record(self, owner: str, digest: Digest) -> ContentRecord | None:
        """What an owner noted of a blob."""
        return next(iter(self._content_records("owner = ? AND digest = ?", (owner, str(digest)))), None)

    def content_records(self, owner: str) -> list[ContentRecord]:
        """Every blob an owner knows, ordered by digest."""
        return self._content_records("owner = ?", (owner,))

    def label_record(self, owner: str, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace an owner's labels of a blob; gc.root and gc.ref.content count within that owner."""
        kept = gc_labels.checked(labels)
        terms = ContentTerms.of(kept)
        with self._database.writing() as db:
            key = (owner, str(digest))
            db.execute("DELETE FROM namespace_edge WHERE owner = ? AND parent = ?", key)
            changed = db.execute(
                "UPDATE namespace_content SET labels = ?, is_root = ?, updated_at = ? WHERE owner = ? AND digest = ?",
                (json.dumps(kept, sort_keys=True), int(terms.is_root), self._database.clock(), *key),
            ).rowcount
            if changed:
                db.executemany(
                    "INSERT INTO namespace_edge VALUES (?, ?, ?)",
                    [(*key, str(child)) for child in terms.references],
                )

    def forget_record(self, owner: str, digest: Digest) -> bool:
        """Remove an owner's record of a blob; return whether it existed."""
        with self._database.removing() as db:
            return _forget(db, owner, [str(digest)]) > 0

    def is_home(self, digest: Digest) -> bool:
        """Whether a blob that is present belongs to ``HOME``: each that doesn't belong to other owners only."""
        with self._database.reading() as db:
            query = "SELECT owner FROM namespace_content WHERE digest = ?"
            owners = {owner for (owner,) in db.execute(query, (str(digest),)).fetchall()}
        return not owners or HOME in owners or self._graph.is_kept_at_home(digest)

    def foreign_content(self) -> frozenset[Digest]:
        """Blobs that only other owners know."""
        with self._database.reading() as db:
            found = db.execute(
                "SELECT DISTINCT digest FROM namespace_content WHERE owner <> ?"
                " EXCEPT SELECT digest FROM namespace_content WHERE owner = ?",
                (HOME, HOME),
            ).fetchall()
        digests = [Digest.parse(text) for (text,) in found]
        return frozenset(digest for digest in digests if not self._graph.is_kept_at_home(digest))

    def put_ingest(self, owner: str, ref: str, *, expected: Digest | None, lease: str) -> None:
        """Note an unfinished write; see the port."""
        ends_at = None if lease else self._database.clock() + INGEST_SECONDS
        values = (owner, ref, str(expected or ""), lease or None, ends_at)
        with self._database.writing() as db:
            if not owner.startswith(PROXY):
                db.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (owner,))
            db.execute(
                "INSERT INTO namespace_ingest VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " expected = excluded.expected, lease = coalesce(excluded.lease, lease),"
                " expires_at = coalesce(excluded.expires_at, expires_at)",
                values,
            )

    def lease_ingest(self, owner: str, ref: str, lease: str) -> bool:
        """Put an unfinished write under a lease (or, with an empty one, under none); return whether it is known."""
        ends_at = None if lease else self._database.clock() + INGEST_SECONDS
        with self._database.writing() as db:
            changes = "lease = ?, expires_at = coalesce(?, expires_at)"
            statement = f"UPDATE namespace_ingest SET {changes} WHERE owner = ? AND ref = ?"  # noqa: S608 - constants
            return db.execute(statement, (lease or None, ends_at, owner, ref)).rowcount > 0

    def ingests(self, owner: str) -> dict[str, tuple[str, str]]:
        """An owner's unfinished writes: expected digest (or empty) and lease (or empty) by name on disk."""
        with self._database.reading() as db:
            found = db.execute("SELECT ref, expected, lease FROM namespace_ingest WHERE owner = ?", (owner,)).fetchall()
        return {ref: (expected, lease or "") for ref, expected, lease in found}

    def forget_ingest(self, owner: str, ref: str) -> None:
        """A write ended."""
        with self._database.writing() as db:
            db.execute("DELETE FROM namespace_ingest WHERE owner = ? AND ref = ?", (owner, ref))

    def kept_ingests(self) -> frozenset[str]:
        """Names on disk of writes that a lease, their day or a proxy's containerd keeps, however long untouched."""
        now = self._database.clock()
        with self._database.reading() as db:
            query = (
                "SELECT ref FROM namespace_ingest JOIN lease ON lease = lease.id WHERE lease.expires_at > :now"
                # No day that a wrong clock gave is longer than one.
                " UNION SELECT ref FROM namespace_ingest WHERE expires_at > :now AND expires_at <= :now + :day"
                " UNION SELECT ref FROM namespace_ingest WHERE owner LIKE 'proxy:%'"
            )
            return frozenset(ref for (ref,) in db.execute(query, {"now": now, "day": INGEST_SECONDS}).fetchall())

    def sweep(self) -> tuple[str, ...]:
        """Remove content records that nothing in their namespace keeps; see the port."""
        now = self._database.clock()
        with self._database.writing() as db:
            dead = db.execute(
                "DELETE FROM namespace_ingest WHERE owner NOT LIKE 'proxy:%' AND NOT coalesce(expires_at > :now, 0)"
                " AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.id = namespace_ingest.lease AND l.expires_at > :now)"
                " RETURNING ref",
                {"now": now},
            ).fetchall()
            # Those that live on are not a later lease's of the same name.
            db.execute("UPDATE namespace_ingest SET lease = NULL WHERE lease NOT IN (SELECT id FROM lease)")
            query = "SELECT DISTINCT owner FROM namespace_content WHERE owner NOT LIKE 'proxy:%'"
            owners = [owner for (owner,) in db.execute(query).fetchall()]
        for owner in owners:
            self._sweep_home() if owner == HOME else self._sweep_owner(owner)
        return tuple(ref for (ref,) in dead)

    def _sweep_home(self) -> None:
        with self._database.reading() as db:
            known = _known(db, HOME)
        for start in range(0, len(known), _SWEPT_AT_ONCE):
            some = known[start : start + _SWEPT_AT_ONCE]
            with self._database.batch() as db:
                live = self._live_at_home(some)
                _forget(db, HOME, [text for text in some if text not in live])

    def _sweep_owner(self, owner: str) -> None:
        """In one batch: what is alive is found downwards, so what was found holds only until the next write."""
        with self._database.batch() as db:
            live = _live(db, owner, self._database.clock())
            _forget(db, owner, [text for text in _known(db, owner) if text not in live])

    def _live_at_home(self, known: Iterable[str]) -> set[str]:
        # An unfinished write's content is not yet in the store's graph.
        coming = {expected for expected, _ in self.ingests(HOME).values()}
        return {text for text in known if text in coming or self._graph.is_kept_at_home(Digest.parse(text))}

    def _content_records(self, condition: str, values: Sequence[str]) -> list[ContentRecord]:
        with self._database.reading() as db:
            found = db.execute(
                f"SELECT {rows.CONTENT_COLUMNS} FROM namespace_content WHERE {condition} ORDER BY digest",  # noqa: S608 - constants
                values,
            ).fetchall()
            with naming_damage(self._database.path):
                return [rows.content_record(row) for row in found]


def _live(db: sqlite3.Connection, owner: str, now: float) -> set[str]:
    """What a namespace's own roots reach along its own edges."""
    given = {"owner": owner, "now": now}
    roots = db.execute(
        "SELECT r.digest FROM named_image_root r JOIN named_image USING (namespace, name)"  # noqa: S608 - constants
        f" WHERE namespace = :owner AND {IS_ALIVE}"
        " UNION SELECT digest FROM namespace_content WHERE owner = :owner AND is_root"
        " UNION SELECT expected FROM namespace_ingest WHERE owner = :owner"
        " UNION SELECT digest FROM lease_content JOIN lease ON lease = id"
        " WHERE lease.namespace = :owner AND expires_at > :now AND NOT flat",
        given,
    ).fetchall()
    flat = db.execute(
        "SELECT digest FROM lease_content JOIN lease ON lease = id"
        " WHERE lease.namespace = :owner AND expires_at > :now AND flat",
        given,
    ).fetchall()
    edges = rows.by_parent(db.execute("SELECT parent, child FROM namespace_edge WHERE owner = :owner", given))
    return mark({text for (text,) in roots}, lambda text: edges.get(text, ())) | {text for (text,) in flat}


def _known(db: sqlite3.Connection, owner: str) -> list[str]:
    return [text for (text,) in db.execute("SELECT digest FROM namespace_content WHERE owner = ?", (owner,))]


def _forget(db: sqlite3.Connection, owner: str, digests: Iterable[str]) -> int:
    keys = [(owner, text) for text in digests]
    db.executemany("DELETE FROM namespace_edge WHERE owner = ? AND parent = ?", keys)
    return db.executemany("DELETE FROM namespace_content WHERE owner = ? AND digest = ?", keys).rowcount
