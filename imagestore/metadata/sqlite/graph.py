"""What keeps what, in SQLite: edges, labels on content, and the two questions of a collection.

*Everything that is kept* is answered downwards from all roots, in one snapshot. *Is this kept* is answered upwards from
one content, so that removing one image costs what the image has, not what the store has.
"""

from __future__ import annotations

import itertools
import json
import operator
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreCorruptError
from imagestore.metadata import rows
from imagestore.metadata.marking import climb, in_order, mark
from imagestore.metadata.records import HOME
from imagestore.metadata.sqlite import integrity
from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.sqlite.failures import CORRUPT_HINT, naming_damage
from imagestore.metadata.sqlite.images import insert_edges
from imagestore.metadata.sqlite.named_images import IS_ALIVE
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest, as_written
from imagestore.oci.gc_labels import ContentTerms

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from imagestore.metadata.records import Holder
    from imagestore.metadata.sqlite.database import Database

# Collection reads the tables: if an index lacks a row, needed content would be garbage. SQLite reads covering indexes
# even with NOT INDEXED; a condition on the key's first column makes it read the table.
_ALL: Final = "parent, child FROM {0} WHERE parent >= ''"
_EDGES: Final = f"SELECT {_ALL.format('edge')} UNION ALL SELECT {_ALL.format('label_edge')}"
_LEASED: Final = "SELECT digest FROM lease CROSS JOIN lease_content ON lease = id WHERE expires_at > :now AND"
_ROOTED: Final = "SELECT digest FROM image_root WHERE reference >= '' UNION ALL SELECT digest FROM content_root"
_NAMED: Final = (
    "SELECT r.digest FROM named_image_root r JOIN named_image USING (namespace, name)"  # noqa: S608 - constants
    f" WHERE namespace = 'k8s.io' AND {IS_ALIVE}"
)
_DEEP_ROOTS: Final = f"{_ROOTED} UNION ALL {_LEASED} NOT flat UNION ALL {_NAMED}"
#: What holds a digest and nothing below it.
_FLAT: Final = f"{_LEASED} flat UNION ALL SELECT digest FROM namespace_content WHERE owner >= ''"  # noqa: S608 - constants
_CHILDREN: Final = (
    "SELECT child FROM edge WHERE parent = :parent UNION SELECT child FROM label_edge WHERE parent = :parent"
)
_BELOW: Final = "SELECT e.parent, e.child FROM json_each(:texts) d CROSS JOIN edge e ON e.parent = d.value"
_BELOW_WITH_LABELS: Final = f"{_BELOW} UNION {_BELOW.replace(' edge ', ' label_edge ')}"
_PARENTS: Final = (
    "SELECT parent FROM edge WHERE child = :child UNION SELECT parent FROM label_edge WHERE child = :child"
)
#: Whether something keeps a digest and all it points at.
_IS_ROOT: Final = (
    "EXISTS (SELECT 1 FROM image_root r WHERE r.digest = {0})"  # noqa: S608 - constants
    " OR EXISTS (SELECT 1 FROM content_root c WHERE c.digest = {0})"
    " OR EXISTS (SELECT 1 FROM lease_content l JOIN lease ON l.lease = lease.id"
    " WHERE l.digest = {0} AND expires_at > :now AND NOT flat)"
    " OR EXISTS (SELECT 1 FROM named_image_root n JOIN named_image USING (namespace, name)"
    " WHERE n.digest = {0} AND namespace = 'k8s.io'"
    f" AND {IS_ALIVE})"
)
_BELOW_ROOTS: Final = (
    f"SELECT child FROM edge WHERE parent IN ({_DEEP_ROOTS})"  # noqa: S608 - constants
    # There are few labels, mostly none; then the roots aren't read again.
    f" UNION ALL SELECT child FROM label_edge WHERE parent IN ({_DEEP_ROOTS})"
)
#: What edges or labels start from, except roots.
_INNER: Final = (
    f"SELECT DISTINCT parent FROM edge e WHERE NOT ({_IS_ROOT.format('e.parent')})"  # noqa: S608 - constants
    f" UNION SELECT digest FROM content_label d WHERE NOT ({_IS_ROOT.format('d.digest')})"
)
#: Those of some digests that are roots, leased or pointed at, and so may be held. The others certainly aren't.
_SUSPECTS: Final = (
    f"SELECT value FROM json_each(:texts) WHERE {_IS_ROOT.format('value')}"  # noqa: S608 - constants
    " OR EXISTS (SELECT 1 FROM lease_content l JOIN lease ON l.lease = lease.id"
    " WHERE l.digest = value AND expires_at > :now)"
    " OR EXISTS (SELECT 1 FROM edge WHERE child = value)"
    " OR EXISTS (SELECT 1 FROM label_edge WHERE child = value)"
    " OR EXISTS (SELECT 1 FROM namespace_content WHERE digest = value)"
)

#: Leases that keep all content, of any namespace.
_KEEPS_ALL: Final = (
    f"SELECT id FROM lease WHERE namespace = '{HOME}'"  # noqa: S608 - constants
    f" AND json_type(labels, '$.\"{gc_labels.KEEP_ALL}\"') IS NOT NULL"
)
_KEEPS_ALL_NOW: Final = f"{_KEEPS_ALL} AND expires_at > :now LIMIT 1"

_HAS_LABELS: Final = "SELECT EXISTS (SELECT 1 FROM content_label)"
#: Whether there is anything that _IS_ROOT or _FLAT could find, expired or not.
_ANY_ROOT: Final = (
    "SELECT EXISTS (SELECT 1 FROM image_root WHERE reference >= '') OR EXISTS (SELECT 1 FROM content_root)"  # noqa: S608
    " OR EXISTS (SELECT 1 FROM lease_content WHERE lease >= '')"
    " OR EXISTS (SELECT 1 FROM named_image_root WHERE namespace >= '')"
    " OR EXISTS (SELECT 1 FROM namespace_content WHERE owner >= '')"
    f" OR EXISTS ({_KEEPS_ALL})"
)

#: Tables that decide whether content is held.
_HOLDING: Final = (
    *("image_root", "edge", "label_edge", "content_root", "lease", "lease_content"),
    *("named_image", "named_image_root", "namespace_content"),
)
#: The labels of content, and what follows from them.
_OF_LABELS: Final = ("label_edge", "content_label", "content_root")


class SqliteGraph:
    """Edges and labels."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_whole_indexes = False

    def label_content(self, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels of content; gc.root and gc.ref.content mean what they mean in containerd."""
        kept = gc_labels.checked(labels)
        terms = ContentTerms.of(kept)
        key = str(digest)
        with self._database.writing() as db:
            self._note_labels(db, digest, self.content_labels(digest), kept)
            _forget(db, [key], *_OF_LABELS)
            db.executemany("INSERT INTO content_label VALUES (?, ?, ?)", [(key, *each) for each in kept.items()])
            if terms.is_root:
                db.execute("INSERT INTO content_root VALUES (?)", (key,))
            pairs = [(key, str(child)) for child in terms.references]
            db.executemany("INSERT INTO label_edge VALUES (?, ?)", pairs)

    def content_labels(self, digest: Digest) -> dict[str, str]:
        """The labels of content."""
        with self._database.reading() as db:
            found = db.execute("SELECT key, value FROM content_label WHERE digest = ? ORDER BY key", (str(digest),))
            return dict(found.fetchall())

    def _note_labels(
        self, db: sqlite3.Connection, digest: Digest, before: Mapping[str, str], after: Mapping[str, str]
    ) -> None:
        """What is added is in the journal before the commit, what is removed after it."""
        changes = self._database.changes
        number = changes.number(db)
        if not after.items() <= before.items():
            self._database.journal.append([lines.labels(number, digest, {**before, **after})])
        if not before.items() <= after.items():
            changes.after_commit([lines.labels(number, digest, after, is_committed=True)])

    def all_labels(self, db: sqlite3.Connection) -> Iterator[tuple[Digest, dict[str, str]]]:
        """The labels of all content that a connection sees."""
        found = db.execute("SELECT digest, key, value FROM content_label ORDER BY digest, key")
        for text, group in itertools.groupby(found, key=operator.itemgetter(0)):
            yield as_written(text), {key: value for _, key, value in group}

    def children_of(self, texts: Sequence[str]) -> dict[str, list[str]]:
        """What each content points at; those that point at nothing are left out."""
        with self._database.snapshot() as db:
            query = _BELOW_WITH_LABELS if db.execute(_HAS_LABELS).fetchone()[0] else _BELOW
            return rows.by_parent(db.execute(query, {"texts": json.dumps(texts)}))

    def put_edges(self, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Replace the edges that start at each parent."""
        with self._database.writing() as db:
            db.executemany("DELETE FROM edge WHERE parent = ?", [(str(parent),) for parent in edges])
            insert_edges(db, edges)

    def edges_as_written(self) -> dict[str, list[str]]:
        """Every edge, children by parent; an edge that a label names too comes twice."""
        with self._database.reading_apart() as db:
            return rows.by_parent(db.execute(_EDGES))

    def own_children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at, labels aside."""
        with self._database.reading() as db:
            found = db.execute("SELECT child FROM edge WHERE parent = ?", (str(digest),)).fetchall()
        with naming_damage(self._database.path):
            return tuple(Digest.parse(text) for (text,) in found)

    def parents(self, digest: Digest) -> tuple[Digest, ...]:
        """What points at this content."""
        with self._database.reading() as db:
            return tuple(map(Digest.parse, _texts(db, _PARENTS, {"child": str(digest)})))

    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps at one moment; see the port. Lets the database join: a big store has a million digests.

        Raises:
            StoreCorruptError: the database is older than its journal, and so lacks newer images.
        """
        # The check comes before the snapshot, which may lack a change that the journal knows a moment later.
        with self._database.reading_apart(before=self._database.changes.refuse_overtaken) as db:
            values = {"now": self._database.clock()}
            if db.execute(_KEEPS_ALL_NOW, values).fetchone():
                return []
            # What points on without being a root itself: garbage, or inside a graph of several levels; usually little.
            inner = set(_texts(db, _INNER, values))
            rest = inner.union(present)
            rest.difference_update(_texts(db, _DEEP_ROOTS, values))
            rest.difference_update(_texts(db, _BELOW_ROOTS, values))
            below = mark(inner - rest, lambda text: _texts(db, _CHILDREN, {"parent": text}))
            rest -= below
            rest.difference_update(_texts(db, _FLAT, values))
            return [*in_order(rest & inner), *in_order(rest - inner)]

    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those digests that nothing keeps now."""
        with self._database.snapshot() as db:
            if self.keeps_nothing():
                return list(texts)
            if self.keeper_of_all():
                return []
            found = db.execute(_SUSPECTS, {"texts": json.dumps(texts), "now": self._database.clock()})
            suspects = {text for (text,) in found}
            return [text for text in texts if text not in suspects or not self.is_held(as_written(text))]

    def refuse_damaged_indexes(self) -> None:
        """Check once that the indexes which the upward question reads are whole: a missing row would hide a holder.

        Raises:
            StoreCorruptError: an index doesn't match its table.
        """
        if self._has_whole_indexes:
            return
        with self._database.reading_apart() as db:
            found = integrity.damaged_tables(db, _HOLDING)
        if found:
            raise StoreCorruptError(f"{self._database.path}: {found[0]}; nothing was removed", hint=CORRUPT_HINT)
        self._has_whole_indexes = True

    def keeper_of_all(self) -> str:
        """The id of a lease that keeps all content now; empty: none."""
        with self._database.reading() as db:
            found = db.execute(_KEEPS_ALL_NOW, {"now": self._database.clock()}).fetchone()
            return str(found[0]) if found else ""

    def keeps_nothing(self) -> bool:
        """Whether nothing exists that could keep content, not even something that has expired; read from the tables."""
        with self._database.reading() as db:
            return not db.execute(_ANY_ROOT).fetchone()[0]

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now."""
        with self._database.snapshot() as db:
            query = "SELECT EXISTS (SELECT 1 FROM namespace_content WHERE digest = ?)"
            return bool(db.execute(query, (str(digest),)).fetchone()[0]) or self.is_kept_at_home(digest)

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, labels or named images of ``HOME``, or any lease, keep this content now."""
        now, key = self._database.clock(), str(digest)
        with self._database.snapshot() as db:
            if self.keeper_of_all():
                return True
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
                lambda text: _texts(db, _PARENTS, {"child": text}),
                lambda text: bool(db.execute(is_root, {"key": text, "now": now}).fetchone()[0]),
            )
            return bool(chain)

    def holders(self, digest: Digest) -> tuple[Holder, ...]:
        """What keeps this content by itself, without edges."""
        given = {"key": str(digest), "home": HOME, "now": self._database.clock()}
        with self._database.snapshot() as db:
            return rows.holders(
                db.execute(
                    "SELECT DISTINCT reference, handler FROM image_root WHERE digest = :key ORDER BY 1, 2", given
                ),
                db.execute(
                    "SELECT id, flat FROM lease_content JOIN lease ON lease = id"
                    " WHERE digest = :key AND expires_at > :now ORDER BY id",
                    given,
                ),
                db.execute("SELECT key FROM content_label WHERE digest = :key ORDER BY key", given),
                db.execute(
                    "SELECT name FROM named_image_root r JOIN named_image USING (namespace, name)"  # noqa: S608 - constants
                    f" WHERE r.digest = :key AND namespace = :home AND {IS_ALIVE} ORDER BY name",
                    given,
                ),
                db.execute("SELECT owner FROM namespace_content WHERE digest = :key ORDER BY owner", given),
            )

    def forget_content(self, texts: Collection[str]) -> None:
        """Remove labels of deleted content, and the edges that start there."""
        if texts:
            with self._database.writing() as db:
                # Content without labels has no rows in any of the other tables, and most stores have no labels at all.
                has_labels = db.execute(_HAS_LABELS).fetchone()[0]
                _forget(db, texts, "edge", *(_OF_LABELS if has_labels else ()))


def _texts(db: sqlite3.Connection, query: str, values: Mapping[str, object]) -> Iterator[str]:
    """The only column of a query's rows, as they come."""
    return (text for (text,) in db.execute(query, values))


def _forget(db: sqlite3.Connection, texts: Collection[str], *tables: str) -> None:
    """Delete the rows of some contents; edges begin with them."""
    listed = json.dumps(list(texts))
    for table in tables:
        column = "parent" if table.endswith("edge") else "digest"
        db.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (listed,))  # noqa: S608
