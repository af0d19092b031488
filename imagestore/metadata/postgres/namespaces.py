"""Namespaces of a scope in PostgreSQL: their labels, the content each knows, their unfinished writes, what each keeps.

As in the embedded store (see ``sqlite.namespaces``) a namespace first loses the content records that nothing in it
reaches; then content is deleted that no record, and nothing else, holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, NotFoundError
from imagestore.metadata import rows
from imagestore.metadata.marking import mark
from imagestore.metadata.postgres.database import NOW
from imagestore.metadata.postgres.leases import put_namespace
from imagestore.metadata.postgres.named_images import IS_ALIVE
from imagestore.metadata.records import HOME, PROXY, ContentRecord
from imagestore.metadata.rows import INGEST_SECONDS
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.metadata.postgres.connection import Connection
    from imagestore.metadata.postgres.database import PostgresDatabase
    from imagestore.metadata.postgres.graph import PostgresGraph

_IS_OURS: Final = f"owner NOT LIKE '{PROXY}%%'"
_IN_USE: Final = (
    "SELECT 1 FROM named_image WHERE scope = %(scope)s AND namespace = %(name)s"
    " UNION SELECT 1 FROM namespace_content WHERE scope = %(scope)s AND owner = %(name)s"
    " UNION SELECT 1 FROM lease WHERE scope = %(scope)s AND namespace = %(name)s"
    " UNION SELECT 1 FROM namespace_ingest WHERE scope = %(scope)s AND owner = %(name)s"
)


class PostgresNamespaces:
    """Namespaces, content records, unfinished writes."""

    def __init__(self, database: PostgresDatabase, graph: PostgresGraph) -> None:
        self._database = database
        self._scope = database.scope
        self._graph = graph

    def find(self) -> dict[str, dict[str, str]]:
        """Every namespace with its labels, ordered by name; ``HOME`` always exists."""
        with self._database.reading() as db:
            query = "SELECT name, labels FROM namespace WHERE scope = %s"
            found = {HOME: "{}", **dict(db.execute(query, (self._scope,)).fetchall())}
        with self._database.naming_damage():
            return {name: json.loads(found[name]) for name in sorted(found)}

    def create(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a namespace."""
        text = rows.labels_text(labels)
        with self._database.writing() as db:
            statement = "INSERT INTO namespace VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
            if name == HOME or not db.execute(statement, (self._scope, name, text)).rowcount:
                raise AlreadyExistsError(f"namespace {name!r} exists already")

    def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Replace a namespace's labels; creates it when missing."""
        with self._database.writing() as db:
            db.execute(
                "INSERT INTO namespace VALUES (%s, %s, %s)"
                " ON CONFLICT (scope, name) DO UPDATE SET labels = excluded.labels",
                (self._scope, name, rows.labels_text(labels)),
            )

    def remove(self, name: str) -> bool:
        """Remove an empty namespace; False while it isn't empty."""
        with self._database.writing() as db:
            key = (self._scope, name)
            if not db.execute("SELECT 1 FROM namespace WHERE scope = %s AND name = %s FOR UPDATE", key).fetchone():
                raise NotFoundError(f"namespace {name!r} is not there")
            if db.execute(_IN_USE, {"scope": self._scope, "name": name}).fetchone():
                return False
            db.execute("DELETE FROM namespace WHERE scope = %s AND name = %s", key)
            return True

    def record_content(self, owner: str, digest: Digest, size: int) -> bool:
        """Note that an owner knows a blob, before it becomes visible; False when that was noted before."""
        with self._database.writing() as db:
            if not owner.startswith(PROXY):
                put_namespace(db, self._scope, owner)
            statement = (
                f"INSERT INTO namespace_content VALUES (%s, %s, %s, %s, '{{}}', FALSE, {NOW}, {NOW})"  # noqa: S608
                " ON CONFLICT DO NOTHING"
            )
            return db.execute(statement, (self._scope, owner, str(digest), size)).rowcount > 0

    def content_record(self, owner: str, digest: Digest) -> ContentRecord | None:
        """What an owner noted of a blob."""
        return next(iter(self._content_records("AND digest = %s", (owner, str(digest)))), None)

    def content_records(self, owner: str) -> list[ContentRecord]:
        """Every blob an owner knows, ordered by digest."""
        return self._content_records("", (owner,))

    def label_record(self, owner: str, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace an owner's labels of a blob; gc.root and gc.ref.content count within that owner."""
        kept = gc_labels.checked(labels)
        terms = ContentTerms.of(kept)
        key = (self._scope, owner, str(digest))
        with self._database.writing() as db:
            db.execute("DELETE FROM namespace_edge WHERE scope = %s AND owner = %s AND parent = %s", key)
            changed = db.execute(
                f"UPDATE namespace_content SET labels = %s, is_root = %s, updated_at = {NOW}"  # noqa: S608 - constants
                " WHERE scope = %s AND owner = %s AND digest = %s",
                (json.dumps(kept, sort_keys=True), terms.is_root, *key),
            ).rowcount
            if changed:
                children = [str(child) for child in terms.references]
                db.execute("INSERT INTO namespace_edge SELECT %s, %s, %s, unnest(%s::text[])", (*key, children))

    def forget_record(self, owner: str, digest: Digest) -> bool:
        """Remove an owner's record of a blob; return whether it existed."""
        with self._database.writing() as db:
            return _forget(db, self._scope, owner, [str(digest)]) > 0

    def is_home(self, digest: Digest) -> bool:
        """Whether a blob that is present belongs to ``HOME``: each that doesn't belong to other owners only."""
        query = "SELECT owner FROM namespace_content WHERE digest = %s"
        with self._database.reading() as db:
            owners = {owner for (owner,) in db.execute(query, (str(digest),)).fetchall()}
        return not owners or HOME in owners or self._graph.is_kept_at_home(digest)

    def foreign_content(self) -> frozenset[Digest]:
        """Blobs that only other owners know."""
        query = (
            "SELECT digest FROM namespace_content WHERE owner <> %s"
            " EXCEPT SELECT digest FROM namespace_content WHERE owner = %s"
        )
        with self._database.reading() as db:
            digests = [Digest.parse(text) for (text,) in db.execute(query, (HOME, HOME)).fetchall()]
        return frozenset(digest for digest in digests if not self._graph.is_kept_at_home(digest))

    def put_ingest(self, owner: str, ref: str, *, expected: Digest | None, lease: str) -> None:
        """Note an unfinished write; see the port."""
        lifetime = None if lease else INGEST_SECONDS
        with self._database.writing() as db:
            if not owner.startswith(PROXY):
                put_namespace(db, self._scope, owner)
            db.execute(
                f"INSERT INTO namespace_ingest VALUES (%s, %s, %s, %s, %s, {NOW} + %s::double precision)"  # noqa: S608
                " ON CONFLICT (scope, owner, ref) DO UPDATE SET expected = excluded.expected,"
                " lease = coalesce(excluded.lease, namespace_ingest.lease),"
                " expires_at = coalesce(excluded.expires_at, namespace_ingest.expires_at)",
                (self._scope, owner, ref, str(expected or ""), lease or None, lifetime),
            )

    def lease_ingest(self, owner: str, ref: str, lease: str) -> bool:
        """Put an unfinished write under a lease (or, with an empty one, under none); return whether it is known."""
        lifetime = None if lease else INGEST_SECONDS
        with self._database.writing() as db:
            return (
                db.execute(
                    "UPDATE namespace_ingest SET lease = %s,"  # noqa: S608 - constants
                    f" expires_at = coalesce({NOW} + %s::double precision, expires_at)"
                    " WHERE scope = %s AND owner = %s AND ref = %s",
                    (lease or None, lifetime, self._scope, owner, ref),
                ).rowcount
                > 0
            )

    def ingests(self, owner: str) -> dict[str, tuple[str, str]]:
        """An owner's unfinished writes: expected digest (or empty) and lease (or empty) by name on disk."""
        query = "SELECT ref, expected, lease FROM namespace_ingest WHERE scope = %s AND owner = %s"
        with self._database.reading() as db:
            found = db.execute(query, (self._scope, owner)).fetchall()
        return {ref: (expected, lease or "") for ref, expected, lease in found}

    def forget_ingest(self, owner: str, ref: str) -> None:
        """A write ended."""
        with self._database.writing() as db:
            key = (self._scope, owner, ref)
            db.execute("DELETE FROM namespace_ingest WHERE scope = %s AND owner = %s AND ref = %s", key)

    def kept_ingests(self) -> frozenset[str]:
        """Names on disk of writes that a lease, their day or a proxy's containerd keeps, however long untouched."""
        query = (
            "SELECT ref FROM namespace_ingest i LEFT JOIN lease l ON l.scope = i.scope AND l.id = i.lease"  # noqa: S608
            f" WHERE i.scope = %s AND (l.expires_at > {NOW} OR i.owner LIKE '{PROXY}%%'"
            # No day that a wrong clock gave is longer than one.
            f" OR i.expires_at > {NOW} AND i.expires_at <= {NOW} + {INGEST_SECONDS})"
        )
        with self._database.reading() as db:
            return frozenset(ref for (ref,) in db.execute(query, (self._scope,)).fetchall())

    def sweep(self) -> tuple[str, ...]:
        """Remove content records that nothing in their namespace keeps; see the port."""
        with self._database.writing() as db:
            dead = db.execute(
                f"DELETE FROM namespace_ingest i WHERE scope = %s AND {_IS_OURS}"  # noqa: S608 - constants
                f" AND NOT coalesce(expires_at > {NOW}, FALSE)"
                " AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.scope = i.scope AND l.id = i.lease"
                f" AND l.expires_at > {NOW}) RETURNING ref",
                (self._scope,),
            ).fetchall()
            # Those that live on are not a later lease's of the same name.
            db.execute(
                "UPDATE namespace_ingest i SET lease = NULL WHERE scope = %s AND lease IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.scope = i.scope AND l.id = i.lease)",
                (self._scope,),
            )
            query = f"SELECT DISTINCT owner FROM namespace_content WHERE scope = %s AND {_IS_OURS}"  # noqa: S608
            owners = [owner for (owner,) in db.execute(query, (self._scope,)).fetchall()]
        for owner in owners:
            # Alone: what is alive is found downwards, so what was found holds only until the next write.
            with self._database.transaction(is_alone=True) as db:
                known = _known(db, self._scope, owner)
                live = self._live_at_home(known) if owner == HOME else self._live(db, owner)
                _forget(db, self._scope, owner, [text for text in known if text not in live])
        return tuple(ref for (ref,) in dead)

    def _live_at_home(self, known: Iterable[str]) -> set[str]:
        # An unfinished write's content is not yet in the store's graph.
        coming = {expected for expected, _ in self.ingests(HOME).values()}
        return {text for text in known if text in coming or self._graph.is_kept_at_home(Digest.parse(text))}

    def _live(self, db: Connection, owner: str) -> set[str]:
        """What a namespace's own roots reach along its own edges."""
        given = {"scope": self._scope, "owner": owner}
        leased = (
            "SELECT c.digest FROM lease_content c JOIN lease l ON l.scope = c.scope AND l.id = c.lease"  # noqa: S608
            f" WHERE c.scope = %(scope)s AND l.namespace = %(owner)s AND l.expires_at > {NOW} AND"
        )
        roots = (
            "SELECT r.digest FROM named_image_root r JOIN named_image USING (scope, namespace, name)"  # noqa: S608
            f" WHERE scope = %(scope)s AND namespace = %(owner)s AND {IS_ALIVE}"
            " UNION SELECT digest FROM namespace_content WHERE scope = %(scope)s AND owner = %(owner)s AND is_root"
            " UNION SELECT expected FROM namespace_ingest WHERE scope = %(scope)s AND owner = %(owner)s"
            f" UNION {leased} NOT l.flat"
        )
        query = "SELECT parent, child FROM namespace_edge WHERE scope = %(scope)s AND owner = %(owner)s"
        edges = rows.by_parent(db.execute(query, given))
        deep = {text for (text,) in db.execute(roots, given)}
        flat = {text for (text,) in db.execute(f"{leased} l.flat", given)}
        return mark(deep, lambda text: edges.get(text, ())) | flat

    def _content_records(self, condition: str, values: Sequence[str]) -> list[ContentRecord]:
        query = (
            f"SELECT {rows.CONTENT_COLUMNS} FROM namespace_content"  # noqa: S608 - constants
            f" WHERE scope = %s AND owner = %s {condition} ORDER BY digest"
        )
        with self._database.reading() as db, self._database.naming_damage():
            return [rows.content_record(row) for row in db.execute(query, (self._scope, *values)).fetchall()]


def _known(db: Connection, scope: str, owner: str) -> list[str]:
    query = "SELECT digest FROM namespace_content WHERE scope = %s AND owner = %s"
    return [text for (text,) in db.execute(query, (scope, owner))]


def _forget(db: Connection, scope: str, owner: str, texts: Sequence[str]) -> int:
    values = (scope, owner, list(texts))
    db.execute("DELETE FROM namespace_edge WHERE scope = %s AND owner = %s AND parent = ANY(%s)", values)
    return db.execute(
        "DELETE FROM namespace_content WHERE scope = %s AND owner = %s AND digest = ANY(%s)", values
    ).rowcount
