"""Image records in the database, each with its roots, and a line in the journal for every change."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreBusyError, StoreCorruptError, StoreFullError, StoreReadOnlyError
from imagestore.metadata import image_rows
from imagestore.metadata.namespace_api import HOME
from imagestore.metadata.records import Everything, ListedImage
from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.sqlite.database import Database
from imagestore.metadata.sqlite.failures import CORRUPT_HINT
from imagestore.oci import digest as digests
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import EXPIRE, LeaseTerms
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from imagestore.metadata.records import ImageRecord

log = logging.getLogger(__name__)

#: Times of use are kept to the minute, so that a busy image costs one write a minute.
_USE_SECONDS: Final = 60.0
#: SQLite counts no further.
_MOST_ROWS: Final = 2**63 - 1


# Each pair is looked up; left to choose, SQLite reads all images instead.
_GIVEN: Final = (
    "json_each(?) p CROSS JOIN image ON reference = json_extract(p.value, '$[0]')"
    " AND handler = json_extract(p.value, '$[1]')"
)

# Of a database whose records may go at once, which looks at each page they have: some 20 milliseconds.
_MOST_PAGES: Final = 16_384


class ImageTables(Database):
    """Records by (reference, handler)."""

    def put_image(
        self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]], *, created_at: float | None = None
    ) -> ImageRecord:
        """Insert or replace a record together with its edges, durably; keeps creation time, pin and time of use."""
        (stored,) = self._put_all([(record, edges)], created_at)
        return stored

    def put_images(
        self, records: Iterable[tuple[ImageRecord, Mapping[Digest, Iterable[Digest]]]]
    ) -> tuple[ImageRecord, ...]:
        """Insert or replace records together with their edges, all or none."""
        return self._put_all(records, None)

    def _put_all(
        self, records: Iterable[tuple[ImageRecord, Mapping[Digest, Iterable[Digest]]]], created_at: float | None
    ) -> tuple[ImageRecord, ...]:
        stored: list[ImageRecord] = []
        with self._writing() as db:
            for record, edges in records:
                stored.append(self._put(db, record, created_at))
                insert_edges(db, edges)
            if stored:
                self._journal.put(self._number_change(), stored)
        return tuple(stored)

    def _put(self, db: sqlite3.Connection, record: ImageRecord, created_at: float | None) -> ImageRecord:
        now, key = self._clock(), (record.reference, record.handler)
        first = (record.created_at or now) if created_at is None else created_at
        query = "SELECT created_at, pinned, used_at FROM image WHERE reference = ? AND handler = ?"
        first, pinned, used_at = db.execute(query, key).fetchone() or (first, 0, 0.0)
        # As it reads back: descriptors in records have no platform and no annotations.
        stored = replace(
            record,
            target=_bare(record.target),
            manifest=_bare(record.manifest),
            created_at=first,
            updated_at=now,
            is_pinned=record.is_pinned or bool(pinned),
            used_at=max(record.used_at, used_at),
        )
        db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
        values = image_rows.from_record(stored, created_at=first, updated_at=now)
        db.execute(f"INSERT INTO image ({image_rows.COLUMNS}) VALUES ({image_rows.MARKS})", values)  # noqa: S608 - constants
        held = [*((digest, 0) for digest in record.roots), *((digest, 1) for digest in record.labelled)]
        roots = [(*key, position, str(digest), by_label) for position, (digest, by_label) in enumerate(held)]
        db.executemany("INSERT INTO image_root VALUES (?, ?, ?, ?, ?)", roots)
        return stored

    def get_image(self, reference: str, handler: str) -> ImageRecord | None:
        """One record, or None."""
        return next(iter(self.find_images(reference=reference, handler=handler)), None)

    def get_images(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], ImageRecord]:
        """Those of some records that are there, by (reference, handler)."""
        found = self._select("TRUE", [json.dumps(list(keys))], source=_GIVEN) if keys else []
        return {(each.reference, each.handler): each for each in found}

    def find_images(
        self,
        *,
        reference: str | None = None,
        handler: str | None = None,
        image_id_prefix: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[ImageRecord]:
        """Records that fit every given condition, ordered by reference and handler.

        Raises:
            StoreCorruptError: the index of image ids finds nothing, but there is such a record.
        """
        conditions: list[str] = []
        values: list[str] = []
        if reference is not None:
            conditions.append("reference = ?")
            values.append(reference)
        if handler is not None:
            conditions.append("handler = ?")
            values.append(handler)
        if image_id_prefix is not None:
            # "g" is above every hex digit, so this is the range of texts with that beginning, found by the index.
            conditions.append("image_id >= ? AND image_id < ?")
            values += [image_id_prefix, image_id_prefix + "g"]
        if after is not None:
            conditions.append("(reference, handler) > (?, ?)")
            values += after
        if limit is not None:
            return self._select(" AND ".join(conditions) or "TRUE", values, min(limit, _MOST_ROWS))
        if reference is None and image_id_prefix is None:
            with self._reading_apart() as db, self._damage_named():
                query = _query(" AND ".join(conditions) or "TRUE")
                return [image_rows.to_record(row) for row in db.execute(query, values)]
        condition = " AND ".join(conditions)
        found = self._select(condition, values)
        if not found and image_id_prefix is not None:
            # A condition on the key, so that SQLite reads the table and not the index.
            self._refuse_found("image", f"reference >= '' AND {condition.replace('image_id', '+image_id')}", values)
        return found

    def list_images(self, *, handler: str | None = None, image_id: str | None = None) -> list[ListedImage]:
        """What lists show of records, ordered by reference and handler."""
        given = {name: value for name, value in (("handler", handler), ("image_id", image_id)) if value is not None}
        condition = " AND ".join(f"{name} = :{name}" for name in given) or "TRUE"
        query = (
            "SELECT reference, handler, image_id, json_extract(target, '$[1]'), content_size, pinned"  # noqa: S608
            f" FROM image WHERE {condition} ORDER BY reference, handler"
        )
        with self._reading() if image_id is not None else self._reading_apart() as db:
            return [
                ListedImage(reference, name, config, target, size, bool(pinned))
                for reference, name, config, target, size, pinned in db.execute(query, given)
            ]

    def _refuse_found(self, table: str, condition: str, values: Sequence[str]) -> None:
        """Read a whole table for what its index doesn't find: what isn't there must not be said of what is.

        Raises:
            StoreCorruptError: the index lacks a row.
        """
        with self._reading() as db:
            query = f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1"  # noqa: S608 - constants
            if db.execute(query, values).fetchone():
                raise StoreCorruptError(f"{self._path}: an index of table {table} lacks a row", hint=CORRUPT_HINT)

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest.

        Raises:
            StoreCorruptError: the index of roots finds nothing, but there is such a record.
        """
        condition = (
            "(reference, handler) IN (SELECT reference, handler FROM image_root WHERE digest = ? AND NOT by_label)"
        )
        found = self._select(condition, [str(digest)])
        if not found:
            self._refuse_found("image_root", "+digest = ? AND NOT by_label", [str(digest)])
        return found

    def find_ids(self, references: Collection[str]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record under some references, in their order."""
        query = (
            "SELECT reference, handler, image_id FROM json_each(:texts) t CROSS JOIN image ON reference = t.value"
            " ORDER BY t.key, handler"
        )
        with self._reading() as db:
            return db.execute(query, {"texts": json.dumps(list(references))}).fetchall()

    def find_keys(self, images: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of some images, given by id and handler, in their order."""
        query = (
            "SELECT reference, handler, image_id FROM json_each(:pairs) p CROSS JOIN image"
            " ON image_id = json_extract(p.value, '$[0]') AND handler = json_extract(p.value, '$[1]')"
            " ORDER BY p.key, reference"
        )
        with self._reading() as db:
            return db.execute(query, {"pairs": json.dumps(list(images))}).fetchall()

    def everything(self, most: int) -> Everything | None:
        """What removing every record takes; None where there are more."""
        query = "SELECT reference, handler, image_id FROM image ORDER BY reference, handler LIMIT ?"
        with self._reading_apart() as db:
            found = db.execute(query, (most + 1,)).fetchall()
            if len(found) > most:
                return None
            number = self._numbering.last(db)
            # Of the table, not of its index: that may lack some.
            roots = {text for (text,) in db.execute("SELECT digest FROM image_root WHERE reference >= ''")}
        return Everything(number, found, list(roots))

    def drop_everything(self, known: Everything) -> bool:
        """Remove every record in a moment; see the port."""
        if self._is_writing():  # what isn't committed is only seen there
            return False
        with self._damage_named():
            for text in known.roots:
                digests.check(text)
        with self._unlinked() as db:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            hidden = db.execute("SELECT 1 FROM named_image WHERE namespace = ? LIMIT 1", (HOME,)).fetchone()
            if pages > _MOST_PAGES or hidden or self._numbering.last(db) != known.number:
                return False
            db.execute("DELETE FROM image_root")
            db.execute("DELETE FROM image")
            number = self._numbering.next(db, lambda number: [lines.remove_all(number)])
        # Thousands of lines; writers that wait for the lock needn't wait for them.
        self._tell(lambda: self._journal.remove(number, known.keys))
        return True

    def drop_images(self, keys: Collection[tuple[str, str]]) -> list[str]:
        """Remove records in one transaction, without reading them; return what they held, in text form."""
        query = (
            "SELECT DISTINCT r.digest FROM json_each(:pairs) p CROSS JOIN image_root r"
            " ON r.reference = json_extract(p.value, '$[0]') AND r.handler = json_extract(p.value, '$[1]')"
        )
        if not keys:
            return []
        with self._removing() as db:
            roots = [text for (text,) in db.execute(query, {"pairs": json.dumps(list(keys))})]
            with self._damage_named():
                for text in roots:
                    digests.check(text)
            db.executemany("DELETE FROM image WHERE reference = ? AND handler = ?", keys)
            self._note_removal(tuple(keys))
        return roots

    def remove_images(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records in one transaction; return those that were there."""
        removed = []
        with self._removing() as db:
            for key in keys:
                record = self.get_image(*key)
                if record is not None:
                    db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
                    removed.append(record)
            if removed:
                self._note_removal([(record.reference, record.handler) for record in removed])
        return removed

    def _note_removal(self, keys: Collection[tuple[str, str]]) -> None:
        number = self._number_change(lambda number: [lines.remove(number, key) for key in keys])
        self._after_commit.append(lambda: self._journal.remove(number, keys))

    def pin_images(self, keys: Iterable[tuple[str, str]], *, is_pinned: bool) -> list[ImageRecord]:
        """Pin or unpin records by (reference, handler); return those that are there, as they are now."""
        with self._writing() as db:
            changed = []
            for key in keys:
                db.execute("UPDATE image SET pinned = ? WHERE reference = ? AND handler = ?", (int(is_pinned), *key))
                record = self.get_image(*key)
                if record is not None:
                    changed.append(record)
            if changed:
                self._journal.put(self._number_change(), changed)
            return changed

    def touch_image(self, reference: str, handler: str) -> None:
        """Note that a record is used now; at most one write a minute, not synced, and none where none is possible."""
        now = self._clock()
        with self._reading() as db:
            key = (reference, handler)
            query = "SELECT max(used_at, updated_at) FROM image WHERE reference = ? AND handler = ?"
            found = db.execute(query, key).fetchone()
            # A clock set back must not stop the times for ever.
            if found is None or db.in_transaction or abs(now - found[0]) < _USE_SECONDS:
                return
        # Losing this with the power is no harm; waiting for the disk at each use would be, and so would an image that
        # is here and can't be used for want of a note.
        try:
            with self._relaxed() as db:
                reach("touch-update")
                db.execute("UPDATE image SET used_at = ? WHERE reference = ? AND handler = ?", (now, *key))
        except (StoreBusyError, StoreFullError, StoreReadOnlyError) as error:
            log.debug("the use of an image can't be noted: %s", error, extra={"reference": reference})

    def _expire_images(self, leased: Callable[[], frozenset[str]]) -> int:
        """Remove records whose gc.expire label is past; not those that leases name, as ``reference@handler``."""
        with self._reading_apart() as db, self._damage_named():
            found = db.execute(_query("labels LIKE ?"), [f'%"{EXPIRE}"%'])
            expired = [record for record in map(image_rows.to_record, found) if self._has_expired(record)]
        if not expired:
            return 0
        with self._writing():
            # What was put anew since then is looked at again.
            keys = [(each.reference, each.handler) for each in expired]
            current = [record for key in keys if (record := self.get_image(*key)) is not None]
            spared = leased()
            gone = [
                (each.reference, each.handler)
                for each in current
                if self._has_expired(each) and f"{each.reference}@{each.handler}" not in spared
            ]
            return len(self.remove_images(gone))

    def _has_expired(self, record: ImageRecord) -> bool:
        return EXPIRE in record.labels and LeaseTerms.of(record.labels).expires_at <= self._clock()

    def _records(self, db: sqlite3.Connection) -> Iterator[ImageRecord]:
        with self._damage_named():
            yield from map(image_rows.to_record, db.execute(_query("TRUE")))

    def _select(
        self, condition: str, values: Sequence[str], limit: int = -1, *, source: str = "image"
    ) -> list[ImageRecord]:
        with self._reading() as db:
            found = db.execute(f"{_query(condition, source)} LIMIT ?", [*values, limit]).fetchall()
        with self._damage_named():
            return [image_rows.to_record(row) for row in found]


def _query(condition: str, source: str = "image") -> str:
    return (
        f"SELECT {image_rows.COLUMNS}, (SELECT json_group_array(digest) FROM (SELECT digest FROM image_root r"  # noqa: S608
        " WHERE r.reference = image.reference AND r.handler = image.handler AND NOT by_label ORDER BY position))"
        f" FROM {source} WHERE {condition} ORDER BY reference, handler"
    )


def _bare(descriptor: Descriptor) -> Descriptor:
    return Descriptor(descriptor.media_type, descriptor.digest, descriptor.size)


def insert_edges(db: sqlite3.Connection, edges: Mapping[Digest, Iterable[Digest]]) -> None:
    """Add edges that aren't there yet."""
    db.executemany(
        "INSERT OR IGNORE INTO edge VALUES (?, ?)",
        [(str(parent), str(child)) for parent, children in edges.items() for child in children],
    )
