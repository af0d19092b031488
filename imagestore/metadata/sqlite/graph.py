"""The questions of a collection in SQLite: downwards in one snapshot, upwards step by step under the write lock."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreCorruptError
from imagestore.metadata import graph
from imagestore.metadata.graph import IS_KNOWN, IS_LEASED, IS_ROOT, Graph
from imagestore.metadata.marking import climb, in_order, mark
from imagestore.metadata.sqlite import integrity
from imagestore.metadata.sqlite.failures import CORRUPT_HINT
from imagestore.oci.digest import as_written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from imagestore.metadata.sql import Statements
    from imagestore.metadata.sqlite.tables import SqliteTables
    from imagestore.oci.digest import Digest

_CHILDREN: Final = (
    "SELECT child FROM edge WHERE parent = :parent UNION SELECT child FROM label_edge WHERE parent = :parent"
)
#: What edges or labels start from, except roots.
_INNER: Final = (
    "SELECT parent FROM (SELECT DISTINCT parent FROM edge WHERE parent >= '') e"
    f" WHERE NOT ({IS_ROOT.format('e.parent')})"
    f" UNION SELECT digest FROM content_label d WHERE NOT ({IS_ROOT.format('d.digest')})"
)
#: What roots point at: all but what starts from the others. To look up each parent among the roots takes far longer.
_BELOW_ROOTS: Final = " UNION ALL ".join(
    f"SELECT child FROM {table} WHERE parent >= '' AND parent NOT IN (SELECT value FROM EACH(:inner) t)"
    for table in ("edge", "label_edge")
)
#: Those of some digests that are roots, leased or pointed at, and so may be held. The others certainly aren't.
_SUSPECTS: Final = (
    f"SELECT value FROM EACH(:texts) t WHERE {IS_ROOT.format('value')} OR {IS_LEASED.format('value')}"
    " OR EXISTS (SELECT 1 FROM edge WHERE child = value) OR EXISTS (SELECT 1 FROM label_edge WHERE child = value)"
    f" OR {IS_KNOWN.format('value')}"
)
_IS_KEPT: Final = (
    f"{IS_ROOT.format(':key')} OR {IS_LEASED.format(':key')}"
    # The common case, without fetching ten thousand parents of a base layer.
    f" OR EXISTS (SELECT 1 FROM edge WHERE child = :key AND ({IS_ROOT.format('parent')}))"
)
#: Whether there is anything that a root or a flat one could be, expired or not.
_ANY_ROOT: Final = (
    "EXISTS (SELECT 1 FROM image_root WHERE reference >= '') OR EXISTS (SELECT 1 FROM content_root)"
    " OR EXISTS (SELECT 1 FROM lease_content WHERE lease >= '')"
    " OR EXISTS (SELECT 1 FROM named_image_root WHERE namespace >= '')"
    " OR EXISTS (SELECT 1 FROM namespace_content WHERE owner >= '')"
    f" OR EXISTS ({graph.KEEPS_ALL})"
)
#: Tables that decide whether content is held.
_HOLDING: Final = (
    *("image_root", "edge", "label_edge", "content_root", "lease", "lease_content"),
    *("named_image", "named_image_root", "namespace_content"),
)


class SqliteGraph(Graph):
    """Edges and labels."""

    def __init__(self, tables: SqliteTables) -> None:
        super().__init__(tables)
        self._sqlite = tables
        self._has_whole_indexes = False

    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps at one moment. Lets the database join: a big store has a million digests.

        Raises:
            StoreCorruptError: an older database was put in the store's place, which lacks newer images.
        """
        # The check comes before the snapshot, which may lack a change that is noted a moment later.
        with self._sqlite.reading_checked() as db:
            if db.row(f"{graph.KEEPS_ALL_NOW} LIMIT 1"):
                return []
            # What points on without being a root itself: garbage, or inside a graph of several levels; usually little.
            inner = set(_each(db, _INNER))
            rest = inner.union(present)
            rest.difference_update(_each(db, graph.DEEP_ROOTS))
            rest.difference_update(_each(db, _BELOW_ROOTS, inner=list(inner)))
            below = mark(inner - rest, lambda text: db.texts(_CHILDREN, parent=text))
            rest -= below
            rest.difference_update(_each(db, graph.FLAT_ROOTS))
            return [*in_order(rest & inner), *in_order(rest - inner)]

    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those digests that nothing keeps now."""
        with self._tables.snapshot() as db:
            if self.keeps_nothing():
                return list(texts)
            if self.keeper_of_all():
                return []
            suspects = set(db.texts(_SUSPECTS, texts=list(texts)))
            return [text for text in texts if text not in suspects or not self.is_held(as_written(text))]

    def refuse_damaged_indexes(self) -> None:
        """Check once that the indexes which the upward question reads are whole: a missing row would hide a holder.

        Raises:
            StoreCorruptError: an index doesn't match its table.
        """
        database = self._sqlite.database
        if self._has_whole_indexes or database.verified.is_so():
            return
        with database.reading_apart() as db:
            found = integrity.damaged_tables(db, _HOLDING)
        if found:
            raise StoreCorruptError(f"{database.path}: {found[0]}; nothing was removed", hint=CORRUPT_HINT)
        self._has_whole_indexes = True
        database.verified.note()

    def keeps_nothing(self) -> bool:
        """Whether nothing exists that could keep content, not even something that has expired; read from the tables."""
        with self._tables.reading() as db:
            return not db.is_so(_ANY_ROOT)

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now."""
        with self._tables.snapshot() as db:
            return db.is_so(IS_KNOWN.format(":key"), key=str(digest)) or self.is_kept_at_home(digest)

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, labels or named images of ``HOME``, or any lease, keep this content now."""
        key = str(digest)
        with self._tables.snapshot() as db:
            if self.keeper_of_all() or db.is_so(_IS_KEPT, key=key):
                return True
            chain = climb(
                key,
                lambda text: db.texts(graph.PARENTS, child=text),
                lambda text: db.is_so(IS_ROOT.format(":key"), key=text),
            )
            return bool(chain)

    def forget_content(self, texts: Collection[str]) -> None:
        """Remove labels of deleted content, and the edges that start there."""
        if texts:
            with self._tables.writing() as db:
                # Content without labels has no rows in any of the other tables, and most stores have no labels at all.
                has_labels = db.is_so("EXISTS (SELECT 1 FROM content_label)")
                graph.forget(db, texts, graph.OF_CONTENT if has_labels else graph.OF_CONTENT[:1])


def _each(db: Statements, query: str, **values: object) -> Iterator[str]:
    """The only column of a query's rows, as they come."""
    return map(operator.itemgetter(0), db.each(query, **values))
