"""Image records of a scope in PostgreSQL, each with its roots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata import rows
from imagestore.metadata.postgres.database import NOW
from imagestore.metadata.records import ListedImage
from imagestore.oci.gc_labels import EXPIRE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from imagestore.metadata.postgres.connection import Connection
    from imagestore.metadata.postgres.database import PostgresDatabase
    from imagestore.metadata.postgres.leases import PostgresLeases
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest

_MARKS: Final = ", ".join("%s" for _ in rows.IMAGE_COLUMNS.split(","))
_ROOTS: Final = (
    "(SELECT coalesce(json_agg(r.digest ORDER BY r.position), '[]'::json)::text FROM image_root r"
    " WHERE r.scope = image.scope AND r.reference = image.reference AND r.handler = image.handler AND NOT r.by_label)"
)
#: What a replaced record keeps of the one before, and its times by the server's clock.
_PUT: Final = (
    f"INSERT INTO image (scope, {rows.IMAGE_COLUMNS}) VALUES (%s, {_MARKS})"  # noqa: S608 - constants
    " ON CONFLICT (scope, reference, handler) DO UPDATE SET"
    " target = excluded.target, manifest = excluded.manifest, image_id = excluded.image_id,"
    " platform = excluded.platform, wanted = excluded.wanted, content_size = excluded.content_size,"
    " labels = excluded.labels, warnings = excluded.warnings, updated_at = excluded.updated_at,"
    " pinned = greatest(image.pinned, excluded.pinned), used_at = greatest(image.used_at, excluded.used_at)"
    " RETURNING created_at, updated_at, pinned, used_at"
)
_PAIRS: Final = "unnest(%(first)s::text[], %(second)s::text[]) WITH ORDINALITY AS given(one, two, number)"


class PostgresImages:
    """Records by (reference, handler).

    Args:
        database: where they are.
        leases: asked when images expire.
    """

    def __init__(self, database: PostgresDatabase, leases: PostgresLeases) -> None:
        self._database = database
        self._scope = database.scope
        self._leases = leases

    def put(
        self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]], *, created_at: float | None = None
    ) -> ImageRecord:
        """Insert or replace a record and add edges, durably; keeps creation time, pin and time of use."""
        (stored,) = self._put_all([(record, edges)], created_at)
        return stored

    def put_many(
        self, records: Iterable[tuple[ImageRecord, Mapping[Digest, Iterable[Digest]]]]
    ) -> tuple[ImageRecord, ...]:
        """As put() for several records with their edges, all of them or none."""
        return self._put_all(records, None)

    def _put_all(
        self, records: Iterable[tuple[ImageRecord, Mapping[Digest, Iterable[Digest]]]], created_at: float | None
    ) -> tuple[ImageRecord, ...]:
        with self._database.writing() as db:
            now = _now(db)
            return tuple(
                self._put(
                    db,
                    replace(
                        record,
                        created_at=(record.created_at or now) if created_at is None else created_at,
                        updated_at=now,
                    ),
                    edges,
                )
                for record, edges in records
            )

    def _put(self, db: Connection, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]]) -> ImageRecord:
        key = (self._scope, record.reference, record.handler)
        held = rows.image_roots(record)
        with db.pipeline():
            put = db.execute(_PUT, (self._scope, *rows.image_values(record)))
            db.execute("DELETE FROM image_root WHERE (scope, reference, handler) = (%s, %s, %s)", key)
            db.execute(
                "INSERT INTO image_root SELECT %s, %s, %s, number - 1, digest, by_label"
                " FROM unnest(%s::text[], %s::boolean[]) WITH ORDINALITY AS given(digest, by_label, number)",
                (*key, [text for text, _ in held], [by_label for _, by_label in held]),
            )
            insert_edges(db, edges)
        row = put.fetchone()
        if row is None:
            raise ValueError("the database returned no row for a record that it took")
        created, updated, pinned, used = row
        return rows.stored_image(record, created_at=created, updated_at=updated, is_pinned=bool(pinned), used_at=used)

    def get(self, reference: str, handler: str) -> ImageRecord | None:
        """One record."""
        return next(iter(self.find(reference=reference, handler=handler)), None)

    def get_many(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], ImageRecord]:
        """The records that exist, by (reference, handler)."""
        if not keys:
            return {}
        condition = (
            "(reference, handler) IN (SELECT one, two FROM unnest(%(first)s::text[], %(second)s::text[]) g(one, two))"
        )
        found = self._select(condition, _pairs(keys))
        return {(each.reference, each.handler): each for each in found}

    def find(
        self,
        *,
        reference: str | None = None,
        handler: str | None = None,
        image_id_prefix: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[ImageRecord]:
        """Records that meet every given condition, ordered by reference and handler."""
        condition, values = rows.image_condition(
            "%({})s", reference=reference, handler=handler, image_id_prefix=image_id_prefix, after=after
        )
        return self._select(condition, values, limit)

    def find_listed(self, *, handler: str | None = None, image_id: str | None = None) -> list[ListedImage]:
        """As find(), what lists show."""
        given = {name: value for name, value in (("handler", handler), ("image_id", image_id)) if value is not None}
        condition = " AND ".join(["scope = %(scope)s", *(f"{name} = %({name})s" for name in given)])
        query = (
            "SELECT reference, handler, image_id, target::json ->> 1, manifest::json ->> 1, content_size, pinned"  # noqa: S608
            f" FROM image WHERE {condition} ORDER BY reference, handler"
        )
        with self._database.reading_long() as db:
            return [
                ListedImage(reference, name, config, target, manifest, size, bool(pinned))
                for reference, name, config, target, manifest, size, pinned in _run(
                    db, query, {**given, "scope": self._scope}
                )
            ]

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest."""
        condition = (
            "(scope, reference, handler) IN"
            " (SELECT scope, reference, handler FROM image_root WHERE digest = %(digest)s AND NOT by_label)"
        )
        return self._select(condition, {"digest": str(digest)})

    def find_ids(self, references: Collection[str]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these references, in their order."""
        query = (
            "SELECT reference, handler, image_id FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS given(one, number)"
            " JOIN image ON scope = %(scope)s AND reference = one ORDER BY number, handler"
        )
        with self._database.reading() as db:
            return [(a, b, c) for a, b, c in _run(db, query, {"texts": list(references), "scope": self._scope})]

    def find_keys(self, images: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these (image id, handler), in their order."""
        query = (
            f"SELECT reference, handler, image_id FROM {_PAIRS}"  # noqa: S608 - constants
            " JOIN image ON scope = %(scope)s AND image_id = one AND handler = two ORDER BY number, reference"
        )
        with self._database.reading() as db:
            return [(a, b, c) for a, b, c in _run(db, query, {**_pairs(images), "scope": self._scope})]

    def drop(self, keys: Collection[tuple[str, str]]) -> list[str]:
        """Remove records in one transaction without reading them; return the digests that they held, as texts."""
        if not keys:
            return []
        listed = f"FROM image_root r JOIN {_PAIRS} ON r.scope = %(scope)s AND r.reference = one AND r.handler = two"
        values = {**_pairs(keys), "scope": self._scope}
        with self._database.writing() as db:
            roots = [text for (text,) in _run(db, f"SELECT DISTINCT r.digest {listed}", values)]
            condition = "scope = %(scope)s AND reference = one AND handler = two"
            _run(db, f"DELETE FROM image USING {_PAIRS} WHERE {condition}", values)  # noqa: S608 - constants
        return roots

    def remove(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records in one transaction; return those that existed."""
        listed = list(keys)
        with self._database.writing():
            there = self.get_many(listed)
            self.drop(list(there))
        return [there[key] for key in dict.fromkeys(listed) if key in there]

    def pin(self, keys: Iterable[tuple[str, str]], *, is_pinned: bool) -> list[ImageRecord]:
        """Pin or unpin records by (reference, handler); return those that exist, as they are now."""
        listed = list(keys)
        with self._database.writing() as db:
            condition = "scope = %(scope)s AND reference = one AND handler = two"
            values = {**_pairs(listed), "scope": self._scope, "pinned": int(is_pinned)}
            _run(db, f"UPDATE image SET pinned = %(pinned)s FROM {_PAIRS} WHERE {condition}", values)  # noqa: S608
            there = self.get_many(listed)
        return [there[key] for key in dict.fromkeys(listed) if key in there]

    def touch(self, reference: str, handler: str) -> None:
        """Note that a record is used now: at most one write a minute."""
        self.touch_many([(reference, handler)])

    def touch_many(self, keys: Collection[tuple[str, str]]) -> None:
        """As touch() for several records, in one transaction."""
        query = (
            f"UPDATE image SET used_at = {NOW} FROM {_PAIRS}"  # noqa: S608 - constants
            " WHERE scope = %(scope)s AND reference = one AND handler = two"
            f" AND abs({NOW} - greatest(used_at, updated_at)) >= {rows.USE_SECONDS}"
        )
        if not self._database.is_in_transaction:
            with self._database.reading() as db:
                db.execute(query, {**_pairs(sorted(set(keys))), "scope": self._scope})

    def expire(self) -> int:
        """Remove records whose gc.expire label is past and that no lease names; return how many."""
        with self._database.writing() as db:
            now = _now(db)
            found = self._select("labels LIKE %(pattern)s", {"pattern": f'%"{EXPIRE}"%'})
            expired = [(each.reference, each.handler) for each in found if each.has_expired(now)]
            if not expired:
                return 0
            leased = self._leases.leased_records()
            return len(self.remove(key for key in expired if "@".join(key) not in leased))

    def _select(self, condition: str, values: Mapping[str, Any], limit: int | None = None) -> list[ImageRecord]:
        query = (
            f"SELECT {rows.IMAGE_COLUMNS}, {_ROOTS} FROM image"  # noqa: S608 - constants
            f" WHERE scope = %(scope)s AND {condition} ORDER BY reference, handler LIMIT %(limit)s"
        )
        with self._database.reading_long() as db:
            found = _run(db, query, {**values, "scope": self._scope, "limit": limit})
        with self._database.naming_damage():
            return [rows.image_record(row) for row in found]


def insert_edges(db: Connection, edges: Mapping[Digest, Iterable[Digest]]) -> None:
    """Add edges that aren't there yet."""
    pairs = sorted({(str(parent), str(child)) for parent, children in edges.items() for child in children})
    if pairs:
        db.execute(
            "INSERT INTO edge SELECT * FROM unnest(%s::text[], %s::text[]) ON CONFLICT DO NOTHING",
            ([parent for parent, _ in pairs], [child for _, child in pairs]),
        )


def _run(db: Connection, query: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of a statement of ours; none of one that returns none."""
    cursor = db.execute(query, values)
    return cursor.fetchall() if cursor.description is not None else []


def _pairs(keys: Collection[tuple[str, str]]) -> dict[str, list[str]]:
    return {"first": [one for one, _ in keys], "second": [two for _, two in keys]}


def _now(db: Connection) -> float:
    row = db.execute(f"SELECT {NOW}").fetchone()
    return float(row[0]) if row else 0.0
