"""What keeps what, over all scopes: edges, labels on content, and the two questions of a collection.

*Is this kept* is one statement, so a record that takes over from a lease is never seen half. In a sweep the rows of
content are locked by a statement before it: then a look that comes later waits, and one that came before is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata import rows
from imagestore.metadata.marking import in_order, mark
from imagestore.metadata.postgres.database import NOW
from imagestore.metadata.postgres.images import insert_edges
from imagestore.metadata.postgres.named_images import IS_ALIVE
from imagestore.metadata.postgres.protocol import RULES
from imagestore.metadata.records import HOME
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from imagestore.metadata.postgres.connection import Connection
    from imagestore.metadata.postgres.database import PostgresDatabase
    from imagestore.metadata.records import Holder

_LEASED: Final = (
    "SELECT c.digest FROM lease_content c JOIN lease l ON l.scope = c.scope AND l.id = c.lease"  # noqa: S608 - constants
    f" WHERE l.expires_at > {NOW}"
)
_NAMED: Final = (
    "SELECT r.digest FROM named_image_root r JOIN named_image USING (scope, namespace, name)"  # noqa: S608 - constants
    f" WHERE namespace = '{HOME}' AND {IS_ALIVE}"
)
_ROOTED: Final = "SELECT r.digest FROM image_root r WHERE TRUE", "SELECT r.digest FROM content_root r WHERE TRUE"
#: What holds a digest and all below it.
_DEEP: Final = (*_ROOTED, f"{_LEASED} AND NOT l.flat", _NAMED)
#: What holds a digest and nothing below it; the second is asked only where other namespaces count.
_FLAT: Final = f"{_LEASED} AND l.flat"
_KNOWN: Final = "SELECT r.digest FROM namespace_content r WHERE TRUE"
#: The leases that keep whatever there is.
_KEEPS_ALL: Final = (
    f"SELECT l.id FROM lease l WHERE l.namespace = '{HOME}' AND l.expires_at > {NOW}"  # noqa: S608 - constants
    f" AND l.labels::jsonb ? '{gc_labels.KEEP_ALL}'"
)


def _exists(queries: Iterable[str], digest: str) -> str:
    """Whether any of these queries has a digest; the name of its table's column ends their conditions."""
    found = (
        f"EXISTS ({query} AND {'c' if query.startswith('SELECT c.') else 'r'}.digest = {digest})" for query in queries
    )
    return " OR ".join(found)


def _unheld(flat: Sequence[str]) -> str:
    """The statement that says which of some digests nothing keeps."""
    return (
        'WITH RECURSIVE asked AS (SELECT unnest(%(texts)s::text[]) COLLATE "C" AS digest),'  # noqa: S608 - constants
        " above AS (SELECT digest, digest AS node FROM asked UNION"
        " SELECT above.digest, pointing.parent FROM above"
        " JOIN (SELECT parent, child FROM edge UNION ALL SELECT parent, child FROM label_edge) pointing"
        " ON pointing.child = above.node)"
        f" SELECT digest FROM asked WHERE NOT EXISTS ({_KEEPS_ALL})"
        f" AND NOT ({_exists(flat, 'asked.digest')})"
        f" AND NOT EXISTS (SELECT 1 FROM above WHERE above.digest = asked.digest AND ({_exists(_DEEP, 'above.node')}))"
    )


#: Those of some digests that nothing keeps; by the store's own namespaces and all leases alone, and at all.
_UNHELD_AT_HOME: Final = _unheld([_FLAT])
_UNHELD: Final = _unheld([_FLAT, _KNOWN])
_PARENTS: Final = "SELECT parent FROM edge WHERE child = %s UNION SELECT parent FROM label_edge WHERE child = %s"
_EDGES: Final = "SELECT parent, child FROM edge UNION ALL SELECT parent, child FROM label_edge"
_ABSENT: Final = "NOT EXISTS (SELECT 1 FROM content WHERE content.digest = {0}.{1})"
#: Tables that begin with a content, and the column that names it.
_OF_CONTENT: Final = (
    ("edge", "parent"),
    ("label_edge", "parent"),
    ("content_label", "digest"),
    ("content_root", "digest"),
)


class PostgresGraph:
    """Edges and labels."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def label_content(self, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels of content; gc.root and gc.ref.content mean what they mean in containerd."""
        kept = gc_labels.checked(labels)
        terms = ContentTerms.of(kept)
        key = str(digest)
        with self._database.writing() as db:
            _forget(db, [key], _OF_CONTENT[1:])
            db.execute(
                "INSERT INTO content_label SELECT %s, * FROM unnest(%s::text[], %s::text[])",
                (key, list(kept), list(kept.values())),
            )
            if terms.is_root:
                db.execute("INSERT INTO content_root VALUES (%s) ON CONFLICT DO NOTHING", (key,))
            db.execute(
                "INSERT INTO label_edge SELECT %s, unnest(%s::text[])", (key, [str(each) for each in terms.references])
            )

    def content_labels(self, digest: Digest) -> dict[str, str]:
        """The labels of content."""
        with self._database.reading() as db:
            found = db.execute("SELECT key, value FROM content_label WHERE digest = %s ORDER BY key", (str(digest),))
            return dict(found.fetchall())

    def put_edges(self, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Replace the edges that start at each parent."""
        with self._database.writing() as db:
            _forget(db, [str(parent) for parent in edges], _OF_CONTENT[:1])
            insert_edges(db, edges)

    def children_of(self, texts: Sequence[str]) -> dict[str, list[str]]:
        """What each content points at; those that point at nothing are left out."""
        query = (
            "SELECT parent, child FROM edge WHERE parent = ANY(%(texts)s)"
            " UNION SELECT parent, child FROM label_edge WHERE parent = ANY(%(texts)s)"
        )
        with self._database.reading() as db:
            return rows.by_parent(db.execute(query, {"texts": list(texts)}).fetchall())

    def edges_as_written(self) -> Mapping[str, Sequence[str]]:
        """Every edge, children by parent; an edge that a label names too comes twice."""
        with self._database.snapshot() as db:
            return rows.by_parent(db.execute(_EDGES).fetchall())

    def own_children(self, digest: Digest) -> tuple[Digest, ...]:
        """What one content points at, labels aside."""
        with self._database.reading() as db:
            found = db.execute("SELECT child FROM edge WHERE parent = %s ORDER BY child", (str(digest),)).fetchall()
        with self._database.naming_damage():
            return tuple(Digest.parse(text) for (text,) in found)

    def parents(self, digest: Digest) -> tuple[Digest, ...]:
        """What points at this content."""
        with self._database.reading() as db:
            found = db.execute(_PARENTS, (str(digest), str(digest))).fetchall()
        with self._database.naming_damage():
            return tuple(Digest.parse(text) for (text,) in sorted(found))

    def garbage(self, present: Iterable[str]) -> list[str]:
        """What nothing keeps at one moment; see the port. In Python, which takes a third of the server's time."""
        listed = list(present)
        with self._database.snapshot() as db:
            if db.execute(_KEEPS_ALL).fetchone():
                return []
            edges = rows.by_parent(db.execute(_EDGES).fetchall())
            roots = {text for query in _DEEP for text in _texts(db, query)}
            flat = {text for query in (_FLAT, _KNOWN) for text in _texts(db, query)}
            labelled = _texts(db, "SELECT DISTINCT digest FROM content_label")
        kept = mark(roots, lambda text: edges.get(text, ())) | flat
        rest = {*listed, *edges, *labelled} - kept
        pointing = {text for text in rest if text in edges}
        return [*in_order(pointing), *in_order(rest - pointing)]

    def unheld(self, texts: Sequence[str]) -> list[str]:
        """Those digests that nothing keeps now; in a sweep their rows are locked first."""
        with self._database.reading() as db:
            asked = list(texts)
            if self._database.locked is not None:
                asked = self._locked_of(db, asked)
                if not RULES.lock_then_ask:
                    return asked
            found = set(_texts(db, _UNHELD, {"texts": asked}))
            return [text for text in texts if text in found]

    def _locked_of(self, db: Connection, texts: list[str]) -> list[str]:
        """Lock rows of content; those that are locked already are left out, and absent content has no row to lock."""
        present = set(_texts(db, "SELECT digest FROM content WHERE digest = ANY(%(texts)s)", {"texts": texts}))
        lock = "SELECT digest FROM content WHERE digest = ANY(%(texts)s)"
        if not RULES.lock_then_ask:
            lock = f"{lock} AND digest IN ({_UNHELD})"
        locked = set(_texts(db, f"{lock} ORDER BY digest FOR UPDATE SKIP LOCKED", {"texts": texts}))
        self._database.add_locked(locked)
        return [text for text in texts if text in locked or text not in present]

    def refuse_damaged_indexes(self) -> None:
        """Nothing: the server keeps its indexes."""

    def keeper_of_all(self) -> str:
        """The id of a lease that keeps all content now; empty: none."""
        with self._database.reading() as db:
            found = db.execute(_KEEPS_ALL).fetchone()
            return str(found[0]) if found else ""

    def is_held(self, digest: Digest) -> bool:
        """Whether anything keeps this content now."""
        with self._database.reading() as db:
            return not _texts(db, _UNHELD, {"texts": [str(digest)]})

    def is_kept_at_home(self, digest: Digest) -> bool:
        """Whether records, labels or named images of ``HOME``, or any lease, keep this content now."""
        with self._database.reading() as db:
            return not _texts(db, _UNHELD_AT_HOME, {"texts": [str(digest)]})

    def holders(self, digest: Digest) -> tuple[Holder, ...]:
        """What keeps this content by itself, without edges; names in other scopes begin with the scope."""
        given = {"digest": str(digest), "scope": self._database.scope}
        in_scope = "CASE WHEN {0}.scope = %(scope)s THEN '' ELSE '[' || {0}.scope || '] ' END || "
        images = (
            f"SELECT DISTINCT {in_scope.format('r')} reference, handler FROM image_root r"  # noqa: S608
            " WHERE digest = %(digest)s ORDER BY 1, 2"
        )
        leases = (
            f"SELECT {in_scope.format('l')} l.id, l.flat FROM lease_content c"  # noqa: S608 - constants
            " JOIN lease l ON l.scope = c.scope AND l.id = c.lease"
            f" WHERE c.digest = %(digest)s AND l.expires_at > {NOW} ORDER BY 1"
        )
        named = (
            f"SELECT {in_scope.format('named_image')} name FROM named_image_root r"  # noqa: S608 - constants
            " JOIN named_image USING (scope, namespace, name)"
            f" WHERE r.digest = %(digest)s AND namespace = '{HOME}' AND {IS_ALIVE} ORDER BY 1"
        )
        owners = (
            f"SELECT {in_scope.format('r')} owner FROM namespace_content r"  # noqa: S608 - constants
            " WHERE digest = %(digest)s ORDER BY 1"
        )
        labelled = "SELECT key FROM content_label WHERE digest = %(digest)s ORDER BY key"
        with self._database.snapshot() as db:
            queries = (images, leases, labelled, named, owners)
            return rows.holders(*(db.execute(query, given).fetchall() for query in queries))

    def forget_content(self, texts: Collection[str]) -> None:
        """Remove labels of deleted content, and the edges that start there.

        In a sweep, at once for what this transaction deleted. What was absent may be on its way: its labels are removed
        after the sweep's step, in a transaction that excludes others, and only if it is still absent.
        """
        locked = self._database.locked or frozenset()
        ours = [text for text in texts if text in locked]
        others = [text for text in texts if text not in locked]
        if ours:
            with self._database.writing() as db:
                _forget(db, ours, _OF_CONTENT)
        if others:
            self._database.after_commit(lambda: self._forget_absent(others))

    def _forget_absent(self, texts: Collection[str]) -> None:
        with self._database.transaction(is_alone=True) as db:
            for table, column in _OF_CONTENT:
                absent = _ABSENT.format(table, column)
                query = f"DELETE FROM {table} WHERE {column} = ANY(%s) AND {absent}"  # noqa: S608 - constants
                db.execute(query, (list(texts),))


def _texts(db: Connection, query: str, values: Mapping[str, Any] | None = None) -> list[str]:
    return [text for (text,) in db.execute(query, values)]


def _forget(db: Connection, texts: Collection[str], tables: Iterable[tuple[str, str]]) -> None:
    for table, column in tables:
        db.execute(f"DELETE FROM {table} WHERE {column} = ANY(%s)", (list(texts),))  # noqa: S608
