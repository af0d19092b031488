"""Image records in SQLite, each with its roots, and a line in the journal for every change."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreBusyError, StoreCorruptError, StoreFullError, StoreReadOnlyError
from imagestore.metadata import rows
from imagestore.metadata.records import ListedImage
from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.sqlite.failures import CORRUPT_HINT, naming_damage
from imagestore.oci import digest as digests
from imagestore.oci.gc_labels import EXPIRE
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from imagestore.metadata.records import ImageRecord
    from imagestore.metadata.sqlite.database import Database
    from imagestore.metadata.sqlite.leases import SqliteLeases
    from imagestore.oci.digest import Digest

log = logging.getLogger(__name__)

#: SQLite counts no further.
_MOST_ROWS: Final = 2**63 - 1
_MARKS: Final = ", ".join("?" for _ in rows.IMAGE_COLUMNS.split(","))
# Each pair is looked up; left to choose, SQLite reads all images instead.
_GIVEN: Final = (
    "json_each(:pairs) p CROSS JOIN image ON reference = json_extract(p.value, '$[0]')"
    " AND handler = json_extract(p.value, '$[1]')"
)


class SqliteImages:
    """Records by (reference, handler).

    Args:
        database: where they are.
        leases: asked when images expire.
    """

    def __init__(self, database: Database, leases: SqliteLeases) -> None:
        self._database = database
        self._changes = database.changes
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
        stored: list[ImageRecord] = []
        with self._database.writing() as db:
            for record, edges in records:
                stored.append(self._put(db, record, created_at))
                insert_edges(db, edges)
            if stored:
                self._changes.put(db, lambda number: [lines.put(number, record) for record in stored])
        return tuple(stored)

    def _put(self, db: sqlite3.Connection, record: ImageRecord, created_at: float | None) -> ImageRecord:
        now, key = self._database.clock(), (record.reference, record.handler)
        first = (record.created_at or now) if created_at is None else created_at
        query = "SELECT created_at, pinned, used_at FROM image WHERE reference = ? AND handler = ?"
        first, pinned, used_at = db.execute(query, key).fetchone() or (first, 0, 0.0)
        stored = rows.stored_image(
            record,
            created_at=first,
            updated_at=now,
            is_pinned=record.is_pinned or bool(pinned),
            used_at=max(record.used_at, used_at),
        )
        db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
        db.execute(f"INSERT INTO image ({rows.IMAGE_COLUMNS}) VALUES ({_MARKS})", rows.image_values(stored))  # noqa: S608 - constants
        held = [(*key, position, *each) for position, each in enumerate(rows.image_roots(record))]
        db.executemany("INSERT INTO image_root VALUES (?, ?, ?, ?, ?)", held)
        return stored

    def get(self, reference: str, handler: str) -> ImageRecord | None:
        """One record."""
        return next(iter(self.find(reference=reference, handler=handler)), None)

    def get_many(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], ImageRecord]:
        """The records that exist, by (reference, handler)."""
        found = self._select("TRUE", {"pairs": json.dumps(list(keys))}, source=_GIVEN) if keys else []
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
        """Records that meet every given condition, ordered by reference and handler.

        Raises:
            StoreCorruptError: the index of image ids finds nothing, but there is such a record.
        """
        condition, values = rows.image_condition(
            ":{}", reference=reference, handler=handler, image_id_prefix=image_id_prefix, after=after
        )
        if limit is not None:
            return self._select(condition, values, min(limit, _MOST_ROWS))
        if reference is None and image_id_prefix is None:
            with self._database.reading_apart() as db, naming_damage(self._database.path):
                return [rows.image_record(row) for row in db.execute(_query(condition), values)]
        found = self._select(condition, values)
        if not found and image_id_prefix is not None:
            # A condition on the key, so that SQLite reads the table and not the index.
            self._refuse_found("image", f"reference >= '' AND {condition.replace('image_id', '+image_id')}", values)
        return found

    def find_listed(self, *, handler: str | None = None, image_id: str | None = None) -> list[ListedImage]:
        """As find(), what lists show."""
        given = {name: value for name, value in (("handler", handler), ("image_id", image_id)) if value is not None}
        condition = " AND ".join(f"{name} = :{name}" for name in given) or "TRUE"
        query = (
            "SELECT reference, handler, image_id, json_extract(target, '$[1]'), json_extract(manifest, '$[1]'),"  # noqa: S608
            f" content_size, pinned FROM image WHERE {condition} ORDER BY reference, handler"
        )
        with self._database.reading() if image_id is not None else self._database.reading_apart() as db:
            return [
                ListedImage(reference, name, config, target, manifest, size, bool(pinned))
                for reference, name, config, target, manifest, size, pinned in db.execute(query, given)
            ]

    def _refuse_found(self, table: str, condition: str, values: Mapping[str, str]) -> None:
        """Read a whole table for what its index doesn't find, so that a damaged index hides no record.

        Raises:
            StoreCorruptError: the index lacks a row.
        """
        with self._database.reading() as db:
            query = f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1"  # noqa: S608 - constants
            if db.execute(query, values).fetchone():
                raise StoreCorruptError(
                    f"{self._database.path}: an index of table {table} lacks a row", hint=CORRUPT_HINT
                )

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest.

        Raises:
            StoreCorruptError: the index of roots finds nothing, but there is such a record.
        """
        values = {"digest": str(digest)}
        holding = "SELECT reference, handler FROM image_root WHERE digest = :digest AND NOT by_label"
        found = self._select(f"(reference, handler) IN ({holding})", values)
        if not found:
            self._refuse_found("image_root", "+digest = :digest AND NOT by_label", values)
        return found

    def find_ids(self, references: Collection[str]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these references, in their order."""
        query = (
            "SELECT reference, handler, image_id FROM json_each(:texts) t CROSS JOIN image ON reference = t.value"
            " ORDER BY t.key, handler"
        )
        with self._database.reading() as db:
            return db.execute(query, {"texts": json.dumps(list(references))}).fetchall()

    def find_keys(self, images: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these (image id, handler), in their order."""
        query = (
            "SELECT reference, handler, image_id FROM json_each(:pairs) p CROSS JOIN image"
            " ON image_id = json_extract(p.value, '$[0]') AND handler = json_extract(p.value, '$[1]')"
            " ORDER BY p.key, reference"
        )
        with self._database.reading() as db:
            return db.execute(query, {"pairs": json.dumps(list(images))}).fetchall()

    def drop(self, keys: Collection[tuple[str, str]]) -> list[str]:
        """Remove records in one transaction without reading them; return the digests that they held, as texts."""
        query = (
            "SELECT DISTINCT r.digest FROM json_each(:pairs) p CROSS JOIN image_root r"
            " ON r.reference = json_extract(p.value, '$[0]') AND r.handler = json_extract(p.value, '$[1]')"
        )
        if not keys:
            return []
        with self._database.removing() as db:
            roots = [text for (text,) in db.execute(query, {"pairs": json.dumps(list(keys))})]
            with naming_damage(self._database.path):
                for text in roots:
                    digests.check(text)
            db.executemany("DELETE FROM image WHERE reference = ? AND handler = ?", keys)
            self._changes.remove(db, lambda number: [lines.remove(number, key) for key in keys])
        return roots

    def remove(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records in one transaction; return those that existed."""
        removed = {}
        with self._database.removing() as db:
            for key in keys:
                record = self.get(*key)
                if record is not None:
                    db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
                    removed[key] = record
            if removed:
                self._changes.remove(db, lambda number: [lines.remove(number, key) for key in removed])
        return [*removed.values()]

    def pin(self, keys: Iterable[tuple[str, str]], *, is_pinned: bool) -> list[ImageRecord]:
        """Pin or unpin records by (reference, handler); return those that exist, as they are now."""
        with self._database.writing() as db:
            changed = []
            for key in keys:
                db.execute("UPDATE image SET pinned = ? WHERE reference = ? AND handler = ?", (int(is_pinned), *key))
                record = self.get(*key)
                if record is not None:
                    changed.append(record)
            if changed:
                self._changes.put(db, lambda number: [lines.put(number, record) for record in changed])
            return changed

    def touch(self, reference: str, handler: str) -> None:
        """Note that a record is used now: at most one write a minute, not synced, and none where none is possible."""
        self.touch_many([(reference, handler)])

    def touch_many(self, keys: Collection[tuple[str, str]]) -> None:
        """As touch() for several records, in one transaction."""
        now, query = self._database.clock(), f"SELECT reference, handler, max(used_at, updated_at) FROM {_GIVEN}"  # noqa: S608
        with self._database.reading() as db:
            if db.in_transaction:
                return
            found = db.execute(query, {"pairs": json.dumps(list(keys))}).fetchall()
        # A clock set back must not stop the times for ever.
        due = [(now, reference, handler) for reference, handler, at in found if abs(now - at) >= rows.USE_SECONDS]
        if not due:
            return
        # A power cut may lose it; each use would wait for the disk otherwise. An image stays usable without the note.
        try:
            with self._database.relaxed() as db:
                reach("touch-update")
                db.executemany("UPDATE image SET used_at = ? WHERE reference = ? AND handler = ?", due)
        except (StoreBusyError, StoreFullError, StoreReadOnlyError) as error:
            log.debug("the use of images can't be noted: %s", error, extra={"reference": due[0][1]})

    def expire(self) -> int:
        """Remove records whose gc.expire label is past and that no lease names; return how many."""
        with self._database.reading_apart() as db, naming_damage(self._database.path):
            found = map(rows.image_record, db.execute(_query("labels LIKE ?"), [f'%"{EXPIRE}"%']))
            expired = [(each.reference, each.handler) for each in found if each.has_expired(self._database.clock())]
        if not expired:
            return 0
        with self._database.writing():
            # A record may have been replaced since then.
            current = [record for key in expired if (record := self.get(*key)) is not None]
            leased, now = self._leases.leased_records(), self._database.clock()
            gone = [
                (each.reference, each.handler)
                for each in current
                if each.has_expired(now) and f"{each.reference}@{each.handler}" not in leased
            ]
            return len(self.remove(gone))

    def read_all(self, db: sqlite3.Connection) -> Iterator[ImageRecord]:
        """Every record that a connection sees."""
        with naming_damage(self._database.path):
            yield from map(rows.image_record, db.execute(_query("TRUE")))

    def _select(
        self, condition: str, values: Mapping[str, str], limit: int = -1, *, source: str = "image"
    ) -> list[ImageRecord]:
        with self._database.reading() as db:
            found = db.execute(f"{_query(condition, source)} LIMIT {limit}", values).fetchall()
        with naming_damage(self._database.path):
            return [rows.image_record(row) for row in found]


def _query(condition: str, source: str = "image") -> str:
    return (
        f"SELECT {rows.IMAGE_COLUMNS}, (SELECT json_group_array(digest) FROM (SELECT digest FROM image_root r"  # noqa: S608
        " WHERE r.reference = image.reference AND r.handler = image.handler AND NOT by_label ORDER BY position))"
        f" FROM {source} WHERE {condition} ORDER BY reference, handler"
    )


def insert_edges(db: sqlite3.Connection, edges: Mapping[Digest, Iterable[Digest]]) -> None:
    """Add edges that aren't there yet."""
    db.executemany(
        "INSERT OR IGNORE INTO edge VALUES (?, ?)",
        [(str(parent), str(child)) for parent, children in edges.items() for child in children],
    )
