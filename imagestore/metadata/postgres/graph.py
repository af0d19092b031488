"""The questions of a collection in PostgreSQL, over all scopes.

*Does anything keep this* is one statement, so a record that takes over from a lease is never seen half. In a sweep the
rows of content are locked by a statement before it: then a look that comes later waits, and one that came before is
seen.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata import graph
from imagestore.metadata.graph import IS_KNOWN, IS_LEASED, IS_ROOT, Graph
from imagestore.metadata.marking import in_order, in_pages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from imagestore.metadata.postgres.tables import PostgresTables
    from imagestore.metadata.sql import Statements
    from imagestore.oci.digest import Digest


def _unheld(flat: str) -> str:
    """The statement that says which of some digests nothing keeps; ``flat`` is what keeps one alone."""
    return (
        'WITH RECURSIVE asked AS (SELECT value COLLATE "C" AS digest FROM EACH(:texts) t),'
        " above AS (SELECT digest, digest AS node FROM asked UNION"
        " SELECT above.digest, pointing.parent FROM above"
        " JOIN (SELECT parent, child FROM edge UNION ALL SELECT parent, child FROM label_edge) pointing"
        " ON pointing.child = above.node)"
        f" SELECT digest FROM asked WHERE NOT EXISTS ({graph.KEEPS_ALL_NOW}) AND NOT ({flat})"
        f" AND NOT EXISTS (SELECT 1 FROM above WHERE above.digest = asked.digest AND ({IS_ROOT.format('above.node')}))"
    )


#: Those of some digests that nothing keeps; by the store's own namespaces and all leases alone, and at all.
_UNHELD_AT_HOME: Final = _unheld(IS_LEASED.format("asked.digest"))
UNHELD: Final = _unheld(f"{IS_LEASED.format('asked.digest')} OR {IS_KNOWN.format('asked.digest')}")
#: Those of some digests that have no row; they are in order, so that few rows are compared.
_WITHOUT_ROW: Final = (
    "SELECT value FROM EACH(:texts) t EXCEPT SELECT digest FROM content WHERE digest >= :first AND digest <= :last"
)
_POINTING: Final = " UNION ".join(
    f"SELECT parent FROM {table} WHERE parent IN (SELECT value FROM EACH(:texts) t)" for table in ("edge", "label_edge")
)
#: As UNHELD, in a collection's snapshot; it locks nothing and decides nothing.
_UNMARKED: Final = UNHELD.replace("asked", "suspect")
#: All content, and what edges or labels start from, but for what roots hold or point at. The rest may be kept all the
#: same, further down.
_SUSPECTS: Final = (
    "SELECT digest FROM (SELECT digest FROM content UNION SELECT parent FROM edge UNION SELECT parent FROM label_edge"
    " UNION SELECT digest FROM content_label) candidates"
    f" WHERE NOT EXISTS (SELECT 1 FROM ({graph.DEEP_ROOTS}) r WHERE r.digest = candidates.digest)"
    f" AND NOT EXISTS (SELECT 1 FROM ({graph.FLAT_ROOTS}) r WHERE r.digest = candidates.digest)"
    + "".join(
        f" AND NOT EXISTS (SELECT 1 FROM {table} e WHERE e.child = candidates.digest"
        f" AND e.parent IN (SELECT digest FROM ({graph.DEEP_ROOTS}) r))"
        for table in ("edge", "label_edge")
    )
)
#: Contents in one page of what is present, and in one question.
_PAGE: Final = 5000
_ASKED_AT_ONCE: Final = 512
_OF_THESE: Final = "SELECT digest FROM content WHERE digest IN (SELECT value FROM EACH(:texts) t)"
_ABSENT: Final = "NOT EXISTS (SELECT 1 FROM content WHERE content.digest = {0}.{1})"


class PostgresGraph(Graph):
    """Edges and labels."""

    def __init__(self, tables: PostgresTables) -> None:
        super().__init__(tables)
        self._database = tables.database

    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps at one moment. The server finds what may be garbage, which is asked about in pages."""
        absent = [text for some in in_pages(present, _PAGE) for text in self._without_row(some)]
        pointing: set[str] = set()
        rest: set[str] = set()
        with self._tables.reading_whole() as db:
            if db.row(graph.KEEPS_ALL_NOW):
                return []
            suspects = (text for (text,) in db.each(_SUSPECTS))
            for some in in_pages(itertools.chain(absent, suspects), _ASKED_AT_ONCE):
                found = db.texts(_UNMARKED, texts=some)
                above = set(db.texts(_POINTING, texts=found))
                pointing |= above
                rest.update(text for text in found if text not in above)
        return [*in_order(pointing), *in_order(rest)]

    def _without_row(self, texts: list[str]) -> list[str]:
        with self._tables.reading() as db:
            return db.texts(_WITHOUT_ROW, texts=texts, first=min(texts), last=max(texts))

    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those digests that nothing keeps now; in a sweep their rows are locked first."""
        with self._tables.reading() as db:
            asked = list(texts) if self._database.locked is None else self._locked_of(db, list(texts))
            found = set(db.texts(UNHELD, texts=asked))
            return [text for text in texts if text in found]

    def _locked_of(self, db: Statements, texts: list[str]) -> list[str]:
        """Lock rows of content; those that are locked already are left out, and absent content has no row to lock."""
        present = set(db.texts(_OF_THESE, texts=texts))
        locked = set(db.texts(f"{_OF_THESE} ORDER BY digest FOR UPDATE SKIP LOCKED", texts=texts))
        self._database.add_locked(locked)
        return [text for text in texts if text in locked or text not in present]

    def refuse_damaged_indexes(self) -> None:
        """Nothing: the server keeps its indexes."""

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now."""
        with self._tables.reading() as db:
            return not db.texts(UNHELD, texts=[str(digest)])

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, labels or named images of ``HOME``, or any lease, keep this content now."""
        with self._tables.reading() as db:
            return not db.texts(_UNHELD_AT_HOME, texts=[str(digest)])

    def placed(self, found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Names in other scopes begin with the scope."""
        own = self._database.scope
        return [(name if scope == own else f"[{scope}] {name}", *rest) for scope, name, *rest in found]

    def forget_content(self, texts: Collection[str]) -> None:
        """Remove labels of deleted content, and the edges that start there.

        In a sweep, at once for what this transaction deleted. What was absent may be on its way: its labels are removed
        after the sweep's step, in a transaction that excludes others, and only if it is still absent.
        """
        locked = self._database.locked or frozenset()
        ours = [text for text in texts if text in locked]
        others = [text for text in texts if text not in locked]
        if ours:
            with self._tables.writing() as db:
                graph.forget(db, ours, graph.OF_CONTENT)
        if others:
            self._database.after_commit(lambda: self._forget_absent(others))

    def _forget_absent(self, texts: list[str]) -> None:
        with self._tables.batch_alone() as db:
            for table, column in graph.OF_CONTENT:
                some = f"{column} IN (SELECT value FROM EACH(:texts) t)"
                db.run(f"DELETE FROM {table} WHERE {some} AND {_ABSENT.format(table, column)}", texts=texts)
