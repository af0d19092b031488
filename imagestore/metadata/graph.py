"""What keeps what: edges, labels on content, and the questions of a collection.

Edges say which content points at which (manifest to config and layers). Content that records and unexpired leases reach
along edges is never collected. An index is held as a root and has no edges: its other manifests belong to other
handlers' records, or to none. Digests are texts where there may be a million of them.

Each database answers the questions in its own way. *Everything that nothing keeps* is answered downwards from all
roots. *Does anything keep this* is answered upwards from one content, so that removing one image costs what the image
has, not what the store has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata import rows
from imagestore.metadata.images import insert_edges
from imagestore.metadata.named_images import IS_ALIVE
from imagestore.metadata.records import HOME
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from imagestore.metadata.records import Holder
    from imagestore.metadata.sql import Statements
    from imagestore.metadata.tables import Tables

# Collection reads the tables: if an index of SQLite lacks a row, needed content would be garbage. It reads covering
# indexes even with NOT INDEXED; a condition on the key's first column makes it read the table.
_ALL_EDGES: Final = "SELECT parent, child FROM {0} WHERE parent >= ''"
_EDGES: Final = f"{_ALL_EDGES.format('edge')} UNION ALL {_ALL_EDGES.format('label_edge')}"
_LEASED: Final = (
    "SELECT c.digest FROM lease l CROSS JOIN lease_content c"
    " WHERE c.scope = l.scope AND c.lease = l.id AND l.expires_at > :now AND"
)
_NAMED: Final = (
    "SELECT r.digest FROM named_image_root r JOIN named_image USING (scope, namespace, name)"
    f" WHERE namespace = '{HOME}' AND {IS_ALIVE}"
)
#: What holds a digest and all below it, of all scopes.
DEEP_ROOTS: Final = (
    "SELECT digest FROM image_root WHERE reference >= '' UNION ALL SELECT digest FROM content_root"
    f" UNION ALL {_LEASED} NOT l.flat UNION ALL {_NAMED}"
)
#: What holds a digest and nothing below it.
FLAT_ROOTS: Final = f"{_LEASED} l.flat UNION ALL SELECT digest FROM namespace_content WHERE owner >= ''"
_IS_LEASED: Final = (
    "EXISTS (SELECT 1 FROM lease_content c JOIN lease l ON l.scope = c.scope AND l.id = c.lease"
    " WHERE c.digest = {0} AND l.expires_at > :now%s)"
)
#: Whether any lease lists a digest.
IS_LEASED: Final = _IS_LEASED % ""
#: Whether something keeps a digest and all it points at.
IS_ROOT: Final = (
    "EXISTS (SELECT 1 FROM image_root r WHERE r.digest = {0})"
    " OR EXISTS (SELECT 1 FROM content_root r WHERE r.digest = {0})"
    f" OR {_IS_LEASED % ' AND NOT l.flat'}"
    f" OR EXISTS ({_NAMED} AND r.digest = {{0}})"
)
#: Whether an owner knows a digest.
IS_KNOWN: Final = "EXISTS (SELECT 1 FROM namespace_content r WHERE r.digest = {0})"
#: Leases that keep all content, of any namespace.
KEEPS_ALL: Final = f"SELECT id FROM lease WHERE namespace = '{HOME}' AND HAS(labels, '{gc_labels.KEEP_ALL}')"
KEEPS_ALL_NOW: Final = f"{KEEPS_ALL} AND expires_at > :now"
PARENTS: Final = "SELECT parent FROM edge WHERE child = :child UNION SELECT parent FROM label_edge WHERE child = :child"

#: The labels of content, and what follows from them, by the column that names the content.
OF_LABELS: Final = (("label_edge", "parent"), ("content_label", "digest"), ("content_root", "digest"))
#: All that begins with a content.
OF_CONTENT: Final = (("edge", "parent"), *OF_LABELS)


class Graph(ABC):
    """Edges and labels, and what they keep."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @abstractmethod
    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps at one moment, for a collection that then asks unheld(); no writer waits.

        Args:
            present: digests of the content that exists.

        Returns:
            Those that no record, no unexpired lease and no label keeps along any edges, and absent content that has
            edges or labels but isn't kept. What points at something comes before what doesn't.
        """

    @abstractmethod
    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those digests that nothing keeps now; the cost is that of their parents."""

    @abstractmethod
    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now; the cost is that of its parents, not of the store."""

    @abstractmethod
    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, labels or named images of ``HOME``, or any lease, keep this content now."""

    @abstractmethod
    def refuse_damaged_indexes(self) -> None:
        """Check, once for each opened store, that unheld() and is_held() can be relied on.

        Raises:
            StoreCorruptError: an index lacks rows, or has others than its table.
        """

    @abstractmethod
    def forget_content(self, texts: Collection[str]) -> None:
        """Remove labels of deleted content, and the edges that start there."""

    def keeper_of_all(self) -> str:
        """The id of a lease that keeps all content now, as after a rebuild that skipped records; empty: none."""
        with self._tables.reading() as db:
            return next(iter(db.texts(f"{KEEPS_ALL_NOW} LIMIT 1")), "")

    def label_content(self, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels of content; gc.root and gc.ref.content mean what they mean in containerd.

        Raises:
            InvalidInputError: a label is too long.
        """
        kept = gc_labels.checked(labels)
        terms = ContentTerms.of(kept)
        key = str(digest)
        with self._tables.writing() as db:
            self._tables.note_change()
            forget(db, [key], OF_LABELS)
            db.run(
                "INSERT INTO content_label (digest, key, value) SELECT :digest, one, two FROM PAIRS(:labels) p",
                digest=key,
                labels=list(kept.items()),
            )
            if terms.is_root:
                db.run("INSERT INTO content_root (digest) VALUES (:digest) ON CONFLICT DO NOTHING", digest=key)
            db.run(
                "INSERT INTO label_edge (parent, child) SELECT :digest, value FROM EACH(:texts) t",
                digest=key,
                texts=[str(each) for each in terms.references],
            )

    def content_labels(self, digest: Digest) -> dict[str, str]:
        """The labels of content."""
        with self._tables.reading() as db:
            query = "SELECT key, value FROM content_label WHERE digest = :digest ORDER BY key"
            return dict(db.rows(query, digest=str(digest)))

    def labelled(self) -> list[str]:
        """All content that has labels."""
        with self._tables.reading_whole() as db:
            return db.texts("SELECT DISTINCT digest FROM content_label ORDER BY digest")

    def put_edges(self, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Replace the edges that start at each parent."""
        with self._tables.writing() as db:
            forget(db, [str(parent) for parent in edges], OF_CONTENT[:1])
            insert_edges(db, edges)

    def children_of(self, texts: Sequence[str]) -> dict[str, list[str]]:
        """What each content points at; those that point at nothing are left out."""
        below = "SELECT e.parent, e.child FROM EACH(:texts) t CROSS JOIN {0} e WHERE e.parent = t.value"
        with self._tables.reading() as db:
            query = f"{below.format('edge')} UNION {below.format('label_edge')}"
            return rows.by_parent(db.rows(query, texts=list(texts)))

    def own_children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at, labels aside."""
        with self._tables.reading() as db:
            found = db.texts("SELECT child FROM edge WHERE parent = :digest ORDER BY child", digest=str(digest))
        with self._tables.naming_damage():
            return tuple(map(Digest.parse, found))

    def parents(self, digest: Digest) -> tuple[Digest, ...]:
        """What points at this content."""
        with self._tables.reading() as db:
            found = db.texts(PARENTS, child=str(digest))
        with self._tables.naming_damage():
            return tuple(map(Digest.parse, sorted(found)))

    def edges_as_written(self) -> Mapping[str, Sequence[str]]:
        """Every edge, children by parent; an edge that a label names too comes twice."""
        with self._tables.reading_whole() as db:
            return rows.by_parent(db.each(_EDGES))

    def holders(self, digest: Digest) -> tuple[Holder, ...]:
        """What keeps this content by itself, without edges; names in other scopes begin with the scope."""
        images = (
            "SELECT DISTINCT scope, reference, handler FROM image_root WHERE digest = :digest"
            " ORDER BY scope, reference, handler"
        )
        leases = (
            "SELECT l.scope, l.id, l.flat FROM lease_content c JOIN lease l ON l.scope = c.scope AND l.id = c.lease"
            " WHERE c.digest = :digest AND l.expires_at > :now ORDER BY l.scope, l.id"
        )
        named = _NAMED.replace("r.digest", "scope, name", 1) + " AND r.digest = :digest ORDER BY scope, name"
        owners = "SELECT scope, owner FROM namespace_content WHERE digest = :digest ORDER BY scope, owner"
        labels = "SELECT key FROM content_label WHERE digest = :digest ORDER BY key"
        with self._tables.snapshot() as db:
            found = {query: db.rows(query, digest=str(digest)) for query in (images, leases, labels, named, owners)}
        return rows.holders(
            self.placed(found[images]),
            self.placed(found[leases]),
            found[labels],
            self.placed(found[named]),
            self.placed(found[owners]),
        )

    def placed(self, found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Rows that begin with a scope, in a shared store, and a name, as rows that begin with a name."""
        return found


def forget(db: Statements, texts: Collection[str], tables: Iterable[tuple[str, str]]) -> None:
    """Delete the rows of some contents from tables with a column that names it."""
    for table, column in tables:
        db.run(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM EACH(:texts) t)", texts=list(texts))
