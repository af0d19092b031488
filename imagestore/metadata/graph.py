"""What keeps what: edges, labels on content, and the two questions of collection.

*Everything that is kept* is answered downwards from all roots, in one snapshot. *Is this kept* is answered upwards from
one content, so that removing one image costs what the image has, not what the store has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore import gc_labels
from imagestore.digest import Digest
from imagestore.gc import climb, mark
from imagestore.gc_labels import ContentTerms
from imagestore.metadata.api import Holder, HolderKind
from imagestore.metadata.database import Database
from imagestore.metadata.images import insert_edges
from imagestore.metadata.namespace_api import HOME

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Mapping

_EDGES: Final = "SELECT parent, child FROM edge UNION ALL SELECT parent, child FROM label_edge"
_DEEP_ROOTS: Final = (
    "SELECT digest FROM image_root UNION ALL SELECT digest FROM content_root UNION ALL"
    " SELECT digest FROM lease_content JOIN lease ON lease = id WHERE expires_at > :now AND NOT flat UNION ALL"
    " SELECT r.digest FROM named_image_root r JOIN named_image USING (namespace, name)"
    " WHERE namespace = 'k8s.io' AND expires_at > :now"
)
#: What holds a digest and nothing below it.
_FLAT_ROOTS: Final = (
    "SELECT digest FROM lease_content JOIN lease ON lease = id WHERE expires_at > :now AND flat UNION ALL"
    " SELECT digest FROM namespace_content"
)
_PARENTS: Final = (
    "SELECT parent FROM edge WHERE child = :child UNION SELECT parent FROM label_edge WHERE child = :child"
)
#: Whether something keeps a digest and all it points at.
_IS_ROOT: Final = (
    "EXISTS (SELECT 1 FROM image_root r WHERE r.digest = {0})"
    " OR EXISTS (SELECT 1 FROM content_root c WHERE c.digest = {0})"
    " OR EXISTS (SELECT 1 FROM lease_content l JOIN lease ON l.lease = lease.id"
    " WHERE l.digest = {0} AND expires_at > :now AND NOT flat)"
    " OR EXISTS (SELECT 1 FROM named_image_root n JOIN named_image USING (namespace, name)"
    " WHERE n.digest = {0} AND namespace = 'k8s.io' AND expires_at > :now)"
)


class GraphTables(Database):
    """Edges and labels."""

    def label_content(self, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels of content."""
        kept = gc_labels.checked(labels)
        terms = ContentTerms.of(kept)
        key = str(digest)
        with self._writing() as db:
            _forget_labels(db, [digest])
            db.executemany("INSERT INTO content_label VALUES (?, ?, ?)", [(key, *each) for each in kept.items()])
            if terms.is_root:
                db.execute("INSERT INTO content_root VALUES (?)", (key,))
            pairs = [(key, str(child)) for child in terms.references]
            db.executemany("INSERT INTO label_edge VALUES (?, ?)", pairs)

    def content_labels(self, digest: Digest) -> dict[str, str]:
        """The labels of content."""
        with self._reading() as db:
            found = db.execute("SELECT key, value FROM content_label WHERE digest = ? ORDER BY key", (str(digest),))
            return dict(found.fetchall())

    def put_edges(self, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Replace the edges that start at each parent."""
        with self._writing() as db:
            db.executemany("DELETE FROM edge WHERE parent = ?", [(str(parent),) for parent in edges])
            insert_edges(db, edges)

    def edges(self) -> Mapping[Digest, tuple[Digest, ...]]:
        """Every edge: children by parent."""
        with self._reading() as db:
            pairs = db.execute(_EDGES).fetchall()
        found: dict[Digest, dict[Digest, None]] = {}
        for parent, child in pairs:
            found.setdefault(Digest.parse(parent), {})[Digest.parse(child)] = None
        return {parent: tuple(children) for parent, children in found.items()}

    def children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at."""
        query = (
            "SELECT child FROM edge WHERE parent = :parent UNION SELECT child FROM label_edge WHERE parent = :parent"
        )
        with self._reading() as db:
            found = db.execute(query, {"parent": str(digest)}).fetchall()
        return tuple(Digest.parse(text) for (text,) in found)

    def parents(self, digest: Digest) -> tuple[Digest, ...]:
        """Which contents point at this one."""
        with self._reading() as db:
            return tuple(Digest.parse(text) for text in _parents(db, str(digest)))

    def reachable(self) -> frozenset[Digest]:
        """What records, unexpired leases and labels keep, along all edges, at one moment."""
        now = self._clock()
        with self._snapshot() as db:
            roots = {text for (text,) in db.execute(_DEEP_ROOTS, {"now": now})}
            flat = {text for (text,) in db.execute(_FLAT_ROOTS, {"now": now})}
            edges: dict[str, list[str]] = {}
            for parent, child in db.execute(_EDGES):
                edges.setdefault(parent, []).append(child)
        # Marking works on the texts: a big store has a million of them.
        live = mark(roots, lambda text: edges.get(text, ())) | flat
        return frozenset(map(_as_written, live))

    def parents_of_any(self) -> frozenset[Digest]:
        """Every content that edges or labels start from."""
        query = "SELECT parent FROM edge UNION SELECT parent FROM label_edge UNION SELECT digest FROM content_label"
        with self._reading() as db:
            return frozenset(_as_written(text) for (text,) in db.execute(query))

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now."""
        with self._snapshot() as db:
            query = "SELECT EXISTS (SELECT 1 FROM namespace_content WHERE digest = ?)"
            return bool(db.execute(query, (str(digest),)).fetchone()[0]) or self.is_kept_at_home(digest)

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, leases or labels of the store's own namespace, or any lease, keep this content now."""
        now, key = self._clock(), str(digest)
        with self._snapshot() as db:
            held = (
                f"SELECT {_IS_ROOT.format(':key')} OR EXISTS (SELECT 1 FROM lease_content l JOIN lease"  # noqa: S608
                " ON l.lease = lease.id WHERE l.digest = :key AND expires_at > :now)"
                # The common case, without fetching ten thousand parents of a base layer.
                f" OR EXISTS (SELECT 1 FROM edge WHERE child = :key AND ({_IS_ROOT.format('parent')}))"
            )
            if db.execute(held, {"key": key, "now": now}).fetchone()[0]:
                return True
            is_root = f"SELECT {_IS_ROOT.format(':key')}"
            chain = climb(
                key,
                lambda text: _parents(db, text),
                lambda text: bool(db.execute(is_root, {"key": text, "now": now}).fetchone()[0]),
            )
            return bool(chain)

    def holders(self, digest: Digest) -> tuple[Holder, ...]:
        """What keeps this content by itself, without edges."""
        key = str(digest)
        with self._snapshot() as db:
            images = db.execute(
                "SELECT DISTINCT reference, handler FROM image_root WHERE digest = ? ORDER BY reference, handler",
                (key,),
            ).fetchall()
            leases = db.execute(
                "SELECT id, flat FROM lease_content JOIN lease ON lease = id WHERE digest = ? AND expires_at > ?"
                " ORDER BY id",
                (key, self._clock()),
            ).fetchall()
            labels = [name for name in self.content_labels(digest) if name.startswith(gc_labels.ROOT)]
            named = db.execute(
                "SELECT name FROM named_image_root r JOIN named_image USING (namespace, name)"
                " WHERE r.digest = ? AND namespace = ? AND expires_at > ? ORDER BY name",
                (key, HOME, self._clock()),
            ).fetchall()
            owners = db.execute(
                "SELECT owner FROM namespace_content WHERE digest = ? ORDER BY owner", (key,)
            ).fetchall()
        return (
            *(Holder(HolderKind.IMAGE, reference, handler) for reference, handler in images),
            *(Holder(HolderKind.FLAT_LEASE if flat else HolderKind.LEASE, name) for name, flat in leases),
            *(Holder(HolderKind.LABEL, name) for name in labels),
            *(Holder(HolderKind.NAMED_IMAGE, name) for (name,) in named),
            *(Holder(HolderKind.NAMESPACE, owner) for (owner,) in owners),
        )

    def forget_content(self, digests: Collection[Digest]) -> None:
        """Drop labels of content that was deleted, and the edges that start there."""
        with self._writing() as db:
            db.executemany("DELETE FROM edge WHERE parent = ?", [(str(digest),) for digest in digests])
            _forget_labels(db, digests)


def _as_written(text: str) -> Digest:
    """A digest from a text that was made from one; parsing half a million again would take a second."""
    algorithm, _, encoded = text.partition(":")
    return Digest(algorithm, encoded)


def _parents(db: sqlite3.Connection, child: str) -> list[str]:
    return [text for (text,) in db.execute(_PARENTS, {"child": child})]


def _forget_labels(db: sqlite3.Connection, digests: Iterable[Digest]) -> None:
    keys = [(str(digest),) for digest in digests]
    db.executemany("DELETE FROM content_label WHERE digest = ?", keys)
    db.executemany("DELETE FROM content_root WHERE digest = ?", keys)
    db.executemany("DELETE FROM label_edge WHERE parent = ?", keys)
