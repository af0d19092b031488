"""Namespaces: their labels, the content each knows, their unfinished writes, and what each keeps.

A collection asks twice. First each namespace loses the content records that nothing *in it* reaches: images, unexpired
leases, gc.root labels and unfinished writes are its roots, gc.ref.content labels its edges (containerd, core/metadata).
Then a file is deleted that no content record, and nothing of the store's own, holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, NotFoundError
from imagestore.metadata import rows
from imagestore.metadata.leases import put_namespace
from imagestore.metadata.marking import mark
from imagestore.metadata.named_images import IS_ALIVE
from imagestore.metadata.records import HOME, PROXY, ContentRecord
from imagestore.metadata.rows import INGEST_SECONDS
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.metadata.graph import Graph
    from imagestore.metadata.sql import Statements
    from imagestore.metadata.tables import Tables

#: Content records of the store's own namespace that are asked about in one batch: some milliseconds.
_SWEPT_AT_ONCE: Final = 64
_IS_OURS: Final = f"owner NOT LIKE '{PROXY}%'"
_OWNED: Final = "scope = :scope AND owner = :owner"
_IN_USE: Final = (
    "SELECT 1 FROM named_image WHERE scope = :scope AND namespace = :name"
    " UNION SELECT 1 FROM namespace_content WHERE scope = :scope AND owner = :name"
    " UNION SELECT 1 FROM lease WHERE scope = :scope AND namespace = :name"
    " UNION SELECT 1 FROM namespace_ingest WHERE scope = :scope AND owner = :name"
)
_LEASED: Final = (
    "SELECT c.digest FROM lease_content c JOIN lease l ON l.scope = c.scope AND l.id = c.lease"
    " WHERE c.scope = :scope AND l.namespace = :owner AND l.expires_at > :now AND"
)
_ROOTS: Final = (
    "SELECT r.digest FROM named_image_root r JOIN named_image USING (scope, namespace, name)"
    f" WHERE scope = :scope AND namespace = :owner AND {IS_ALIVE}"
    f" UNION SELECT digest FROM namespace_content WHERE {_OWNED} AND is_root"
    f" UNION SELECT expected FROM namespace_ingest WHERE {_OWNED}"
    f" UNION {_LEASED} NOT l.flat"
)
_LEASE_OF_INGEST: Final = (
    "SELECT 1 FROM lease l WHERE l.scope = namespace_ingest.scope AND l.id = namespace_ingest.lease"
)


class Namespaces:
    """Namespaces, the content that each owner knows, and its unfinished writes."""

    def __init__(self, tables: Tables, graph: Graph) -> None:
        self._tables = tables
        self._graph = graph

    def find(self) -> dict[str, dict[str, str]]:
        """Every namespace with its labels, ordered by name; ``HOME`` always exists."""
        with self._tables.reading() as db:
            found = {HOME: "{}", **dict(db.rows("SELECT name, labels FROM namespace WHERE scope = :scope"))}
        with self._tables.naming_damage():
            return {name: json.loads(found[name]) for name in sorted(found)}

    def create(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a namespace.

        Raises:
            AlreadyExistsError: it exists.
            InvalidInputError: a label is too long.
        """
        text = rows.labels_text(labels)
        with self._tables.writing() as db:
            query = "INSERT INTO namespace (scope, name, labels) VALUES (:scope, :name, :labels) ON CONFLICT DO NOTHING"
            if name == HOME or not db.run(query, name=name, labels=text):
                raise AlreadyExistsError(f"namespace {name!r} exists already")
            self._tables.note_change()

    def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Replace a namespace's labels; creates it when missing.

        Raises:
            InvalidInputError: a label is too long.
        """
        with self._tables.writing() as db:
            self._tables.note_change()
            db.run(
                "INSERT INTO namespace (scope, name, labels) VALUES (:scope, :name, :labels)"
                " ON CONFLICT (scope, name) DO UPDATE SET labels = excluded.labels",
                name=name,
                labels=rows.labels_text(labels),
            )

    def remove(self, name: str) -> bool:
        """Remove an empty namespace; False while it isn't empty.

        Raises:
            NotFoundError: it doesn't exist.
        """
        with self._tables.writing() as db:
            if not db.row("SELECT 1 FROM namespace WHERE scope = :scope AND name = :name FOR UPDATE", name=name):
                raise NotFoundError(f"namespace {name!r} is not there")
            if db.row(_IN_USE, name=name):
                return False
            db.run("DELETE FROM namespace WHERE scope = :scope AND name = :name", name=name)
            self._tables.note_change()
            return True

    def record_content(self, owner: str, digest: Digest, size: int) -> bool:
        """Note that an owner knows a blob, before it becomes visible; False when that was noted before."""
        with self._tables.writing() as db:
            _put_owner(db, owner)
            query = (
                "INSERT INTO namespace_content (scope, owner, digest, size, labels, is_root, created_at, updated_at)"
                " VALUES (:scope, :owner, :digest, :size, '{}', FALSE, :now, :now) ON CONFLICT DO NOTHING"
            )
            return db.run(query, owner=owner, digest=str(digest), size=size) > 0

    def content_record(self, owner: str, digest: Digest) -> ContentRecord | None:
        """What an owner noted of a blob."""
        return next(iter(self._content_records("AND digest = :digest", owner=owner, digest=str(digest))), None)

    def content_records(self, owner: str) -> list[ContentRecord]:
        """Every blob an owner knows, ordered by digest."""
        return self._content_records("", owner=owner)

    def label_record(self, owner: str, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace an owner's labels of a blob; gc.root and gc.ref.content count within that owner.

        Raises:
            InvalidInputError: a label is too long.
        """
        kept = gc_labels.checked(labels)
        terms = ContentTerms.of(kept)
        key = {"owner": owner, "digest": str(digest)}
        with self._tables.writing() as db:
            db.run(f"DELETE FROM namespace_edge WHERE {_OWNED} AND parent = :digest", **key)
            changed = db.run(
                "UPDATE namespace_content SET labels = :labels, is_root = :is_root, updated_at = :now"
                f" WHERE {_OWNED} AND digest = :digest",
                labels=json.dumps(kept, sort_keys=True),
                is_root=terms.is_root,
                **key,
            )
            if changed:
                db.run(
                    "INSERT INTO namespace_edge (scope, owner, parent, child)"
                    " SELECT :scope, :owner, :digest, value FROM EACH(:children) t",
                    children=[str(child) for child in terms.references],
                    **key,
                )

    def forget_record(self, owner: str, digest: Digest) -> bool:
        """Remove an owner's record of a blob; return whether it existed."""
        with self._tables.removing() as db:
            return _forget(db, owner, [str(digest)]) > 0

    def is_home(self, digest: Digest) -> bool:
        """Whether a blob that is present belongs to ``HOME``: each that doesn't belong to other owners only."""
        with self._tables.reading() as db:
            owners = {*db.texts("SELECT owner FROM namespace_content WHERE digest = :digest", digest=str(digest))}
        return not owners or HOME in owners or self._graph.is_kept_at_home(digest)

    def foreign_content(self) -> frozenset[Digest]:
        """Blobs that only other owners know."""
        query = (
            "SELECT digest FROM namespace_content WHERE owner <> :home"
            " EXCEPT SELECT digest FROM namespace_content WHERE owner = :home"
        )
        with self._tables.reading() as db:
            digests = [Digest.parse(text) for text in db.texts(query, home=HOME)]
        return frozenset(digest for digest in digests if not self._graph.is_kept_at_home(digest))

    def put_ingest(self, owner: str, ref: str, *, expected: Digest | None, lease: str) -> None:
        """Note an unfinished write.

        Args:
            owner: whose write.
            ref: its name on disk.
            expected: what it will hash to, when known.
            lease: the lease it lives with. Empty: it lives a day, whichever leases come and go in that time
                (containerd, core/metadata).
        """
        with self._tables.writing() as db:
            _put_owner(db, owner)
            db.run(
                "INSERT INTO namespace_ingest (scope, owner, ref, expected, lease, expires_at)"
                " VALUES (:scope, :owner, :ref, :expected, :lease, :now + :lifetime)"
                " ON CONFLICT (scope, owner, ref) DO UPDATE SET expected = excluded.expected,"
                " lease = coalesce(excluded.lease, namespace_ingest.lease),"
                " expires_at = coalesce(excluded.expires_at, namespace_ingest.expires_at)",
                expected=str(expected or ""),
                **_ingest(owner, ref, lease),
            )

    def lease_ingest(self, owner: str, ref: str, lease: str) -> bool:
        """Put an unfinished write under a lease (or, with an empty one, under none); return whether it is known."""
        with self._tables.writing() as db:
            changed = db.run(
                "UPDATE namespace_ingest SET lease = :lease, expires_at = coalesce(:now + :lifetime, expires_at)"
                f" WHERE {_OWNED} AND ref = :ref",
                **_ingest(owner, ref, lease),
            )
            return changed > 0

    def ingests(self, owner: str) -> dict[str, tuple[str, str]]:
        """An owner's unfinished writes: expected digest (or empty) and lease (or empty) by name on disk."""
        with self._tables.reading() as db:
            found = db.rows(f"SELECT ref, expected, lease FROM namespace_ingest WHERE {_OWNED}", owner=owner)
        return {ref: (expected, lease or "") for ref, expected, lease in found}

    def forget_ingest(self, owner: str, ref: str) -> None:
        """A write ended."""
        with self._tables.writing() as db:
            db.run(f"DELETE FROM namespace_ingest WHERE {_OWNED} AND ref = :ref", owner=owner, ref=ref)

    def kept_ingests(self) -> frozenset[str]:
        """Names on disk of writes that a lease, their day or a proxy's containerd keeps, however long untouched."""
        query = (
            "SELECT ref FROM namespace_ingest WHERE scope = :scope"
            f" AND (EXISTS ({_LEASE_OF_INGEST} AND l.expires_at > :now) OR NOT {_IS_OURS}"
            # No day that a wrong clock gave is longer than one.
            " OR expires_at > :now AND expires_at <= :now + :day)"
        )
        with self._tables.reading() as db:
            return frozenset(db.texts(query, day=INGEST_SECONDS))

    def sweep(self) -> tuple[str, ...]:
        """Remove content records that nothing in their namespace keeps.

        Returns:
            Names on disk of unfinished writes whose lease is gone or whose day is over; the caller aborts them.
        """
        with self._tables.writing() as db:
            dead = db.texts(
                f"DELETE FROM namespace_ingest WHERE scope = :scope AND {_IS_OURS}"
                " AND NOT coalesce(expires_at > :now, FALSE)"
                f" AND NOT EXISTS ({_LEASE_OF_INGEST} AND l.expires_at > :now) RETURNING ref"
            )
            # Those that live on are not a later lease's of the same name.
            db.run(
                "UPDATE namespace_ingest SET lease = NULL WHERE scope = :scope AND lease IS NOT NULL"
                f" AND NOT EXISTS ({_LEASE_OF_INGEST})"
            )
            owners = db.texts(f"SELECT DISTINCT owner FROM namespace_content WHERE scope = :scope AND {_IS_OURS}")
        for owner in owners:
            self._sweep_home() if owner == HOME else self._sweep_owner(owner)
        return tuple(dead)

    def _sweep_home(self) -> None:
        with self._tables.reading() as db:
            known = _known(db, HOME)
        for start in range(0, len(known), _SWEPT_AT_ONCE):
            some = known[start : start + _SWEPT_AT_ONCE]
            with self._tables.batch_alone() as db:
                live = self._live_at_home(some)
                _forget(db, HOME, [text for text in some if text not in live])

    def _sweep_owner(self, owner: str) -> None:
        """In one batch: what is alive is found downwards, so what was found holds only until the next write."""
        with self._tables.batch_alone() as db:
            edges = rows.by_parent(db.rows(f"SELECT parent, child FROM namespace_edge WHERE {_OWNED}", owner=owner))
            live = mark(db.texts(_ROOTS, owner=owner), lambda text: edges.get(text, ()))
            live.update(db.texts(f"{_LEASED} l.flat", owner=owner))
            _forget(db, owner, [text for text in _known(db, owner) if text not in live])

    def _live_at_home(self, known: Iterable[str]) -> set[str]:
        # An unfinished write's content is not yet in the store's graph.
        coming = {expected for expected, _ in self.ingests(HOME).values()}
        return {text for text in known if text in coming or self._graph.is_kept_at_home(Digest.parse(text))}

    def _content_records(self, condition: str, **values: object) -> list[ContentRecord]:
        query = f"SELECT {rows.CONTENT_COLUMNS} FROM namespace_content WHERE {_OWNED} {condition} ORDER BY digest"
        with self._tables.reading() as db, self._tables.naming_damage():
            return [rows.content_record(row) for row in db.rows(query, **values)]


def _put_owner(db: Statements, owner: str) -> None:
    if not owner.startswith(PROXY):
        put_namespace(db, owner)


def _ingest(owner: str, ref: str, lease: str) -> dict[str, object]:
    return {"owner": owner, "ref": ref, "lease": lease or None, "lifetime": None if lease else INGEST_SECONDS}


def _known(db: Statements, owner: str) -> list[str]:
    return db.texts(f"SELECT digest FROM namespace_content WHERE {_OWNED}", owner=owner)


def _forget(db: Statements, owner: str, texts: list[str]) -> int:
    given = {"owner": owner, "texts": texts}
    some = "(SELECT value FROM EACH(:texts) t)"
    db.run(f"DELETE FROM namespace_edge WHERE {_OWNED} AND parent IN {some}", **given)
    return db.run(f"DELETE FROM namespace_content WHERE {_OWNED} AND digest IN {some}", **given)
