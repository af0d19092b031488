"""Image records by (reference, handler), each with its roots."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreBusyError, StoreFullError, StoreReadOnlyError
from imagestore.metadata import rows
from imagestore.metadata.records import ListedImage
from imagestore.oci import digest as digests
from imagestore.oci.gc_labels import EXPIRE
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from imagestore.metadata.leases import Leases
    from imagestore.metadata.records import ImageRecord
    from imagestore.metadata.sql import Statements
    from imagestore.metadata.tables import Tables
    from imagestore.oci.digest import Digest

log = logging.getLogger(__name__)

#: SQLite counts no further.
_MOST_ROWS: Final = 2**63 - 1
#: Records of a long list that are read at a time: a store of many machines may have a million.
PAGE_ROWS: Final = 1000
_COLUMNS: Final = rows.IMAGE_COLUMNS.split(", ")
#: What a replaced record keeps of the one before, or the later of both.
_KEPT: Final = ("reference", "handler", "created_at")
_GREATEST: Final = ("pinned", "used_at")
_PUT: Final = (
    (
        f"INSERT INTO image (scope, {rows.IMAGE_COLUMNS}) VALUES (:scope, {', '.join(f':{name}' for name in _COLUMNS)})"
        " ON CONFLICT (scope, reference, handler) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in (*_KEPT, *_GREATEST))
        + "".join(
            f", {name} = CASE WHEN image.{name} > excluded.{name} THEN image.{name} ELSE excluded.{name} END"
            for name in _GREATEST
        )
        + " RETURNING created_at, updated_at, pinned, used_at"
    )
    .replace(":created_at", "coalesce(:created_at, :now)")
    .replace(":updated_at", ":now")
)
_PUT_ROOTS: Final = (
    "INSERT INTO image_root (scope, reference, handler, position, digest, by_label)"
    " SELECT :scope, :reference, :handler, key + {0}, value, {1} FROM EACH(:{2}) t"
)
_SELECT: Final = (
    f"SELECT {rows.IMAGE_COLUMNS}, (SELECT LIST(digest) FROM (SELECT digest FROM image_root r"
    " WHERE r.scope = image.scope AND r.reference = image.reference AND r.handler = image.handler AND NOT by_label"
    " ORDER BY position) o)"
)
_KEY: Final = "scope = :scope AND reference = :reference AND handler = :handler"
# Each pair is looked up; left to choose, SQLite reads all images instead.
_GIVEN: Final = "FROM PAIRS(:keys) p CROSS JOIN image WHERE scope = :scope AND reference = p.one AND handler = p.two"
_AMONG_GIVEN: Final = "(scope, reference, handler) IN (SELECT :scope, one, two FROM PAIRS(:keys) p)"
# A clock set back must not stop the times for ever.
_IS_DUE: Final = f"abs(:now - used_at) >= {rows.USE_SECONDS} AND abs(:now - updated_at) >= {rows.USE_SECONDS}"
_HAS_EXPIRY: Final = f"labels LIKE '%\"{EXPIRE}\"%'"


class Images:
    """Records by (reference, handler).

    Args:
        tables: where they are.
        leases: asked when images expire.
    """

    def __init__(self, tables: Tables, leases: Leases) -> None:
        self._tables = tables
        self._leases = leases

    def put(
        self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]], *, created_at: float | None = None
    ) -> ImageRecord:
        """Insert or replace a record and add edges, durably; keeps creation time, pin and time of use.

        Args:
            record: its times are the store's.
            edges: what its manifests point at.
            created_at: seconds since 1970, for a new record, 0 too; by default the record's, or now if that is 0.

        Returns:
            The record as stored.
        """
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
        with self._tables.writing() as db:
            stored = [_put(db, record, edges, created_at) for record, edges in records]
            if stored:
                self._tables.note_change()
        return tuple(stored)

    def get(self, reference: str, handler: str) -> ImageRecord | None:
        """One record."""
        return next(iter(self.find(reference=reference, handler=handler)), None)

    def get_many(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], ImageRecord]:
        """The records that exist, by (reference, handler)."""
        if not keys:
            return {}
        with self._tables.reading() as db:
            found = self._records(db, f"{_SELECT} {_GIVEN} ORDER BY p.key", keys=list(keys))
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

        Args:
            reference: canonical text.
            handler: runtime handler.
            image_id_prefix: beginning of ``algorithm:hex``.
            after: only records behind this (reference, handler), which need not exist.
            limit: at most so many.

        Raises:
            StoreCorruptError: the index of image ids finds nothing, but there is such a record.
        """
        condition, values = rows.image_condition(
            reference=reference, handler=handler, image_id_prefix=image_id_prefix, after=after
        )
        is_whole = limit is None and reference is None and image_id_prefix is None
        most = {} if limit is None else {"limit": min(limit, _MOST_ROWS)}
        with self._tables.reading_whole() if is_whole else self._tables.reading() as db:
            found = self._select(db, condition, **values, **most)
        if not found and limit is None and image_id_prefix is not None:
            self._tables.refuse_hidden("image", "image_id", condition, **values)
        return found

    def walk(self, *, handler: str | None = None, after: tuple[str, str] | None = None) -> Iterator[ImageRecord]:
        """As find(), but page by page, for lists of any length.

        Each page sees the state of its moment, so a record that comes or goes in that time may be in the list or not.
        The first page is read at once, so a store that can't be read is refused here.
        """
        return self._pages(self.find(handler=handler, after=after, limit=PAGE_ROWS), handler)

    def _pages(self, page: list[ImageRecord], handler: str | None) -> Iterator[ImageRecord]:
        while page:
            yield from page
            last = page[-1]
            page = self.find(handler=handler, after=(last.reference, last.handler), limit=PAGE_ROWS)

    def find_listed(self, *, handler: str | None = None, image_id: str | None = None) -> list[ListedImage]:
        """As find(), what lists show; it takes a tenth of the time. ``image_id`` is in text form."""
        given = {name: value for name, value in (("handler", handler), ("image_id", image_id)) if value is not None}
        condition = " AND ".join(["scope = :scope", *(f"{name} = :{name}" for name in given)])
        query = (
            "SELECT reference, handler, image_id, AT(target, 1), AT(manifest, 1), content_size, pinned"
            f" FROM image WHERE {condition} ORDER BY reference, handler"
        )
        with self._tables.reading() if image_id is not None else self._tables.reading_whole() as db:
            return [
                ListedImage(reference, name, config, target, manifest, size, bool(pinned))
                for reference, name, config, target, manifest, size, pinned in db.each(query, **given)
            ]

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest.

        Raises:
            StoreCorruptError: the index of roots finds nothing, but there is such a record.
        """
        holding = "SELECT scope, reference, handler FROM image_root WHERE digest = :digest AND NOT by_label"
        with self._tables.reading() as db:
            found = self._select(db, f"(scope, reference, handler) IN ({holding})", digest=str(digest))
        if not found:
            condition = "scope = :scope AND digest = :root AND NOT by_label"
            self._tables.refuse_hidden("image_root", "digest", condition, root=str(digest))
        return found

    def find_ids(self, references: Collection[str]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these references, in their order."""
        query = (
            "SELECT reference, handler, image_id FROM EACH(:texts) t CROSS JOIN image"
            " WHERE scope = :scope AND reference = t.value ORDER BY t.key, handler"
        )
        with self._tables.reading() as db:
            return [(a, b, c) for a, b, c in db.rows(query, texts=list(references))]

    def find_keys(self, images: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
        """Reference, handler and image id of every record of these (image id, handler), in their order."""
        query = (
            "SELECT reference, handler, image_id FROM PAIRS(:keys) p CROSS JOIN image"
            " WHERE scope = :scope AND image_id = p.one AND handler = p.two ORDER BY p.key, reference"
        )
        with self._tables.reading() as db:
            return [(a, b, c) for a, b, c in db.rows(query, keys=list(images))]

    def remove(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records by (reference, handler) in one transaction; return those that existed."""
        with self._tables.removing() as db:
            removed = self.get_many(list(dict.fromkeys(keys)))
            self._delete(db, list(removed))
        return [*removed.values()]

    def drop(self, keys: Collection[tuple[str, str]]) -> list[str]:
        """Remove records in one transaction without reading them; return the digests that they held, as texts.

        Raises:
            StoreCorruptError: a digest can't be read; nothing is removed.
        """
        query = (
            "SELECT DISTINCT r.digest FROM PAIRS(:keys) p CROSS JOIN image_root r"
            " WHERE r.scope = :scope AND r.reference = p.one AND r.handler = p.two"
        )
        if not keys:
            return []
        with self._tables.removing() as db, self._tables.naming_damage():
            roots = db.texts(query, keys=list(keys))
            for text in roots:
                digests.check(text)
            self._delete(db, list(keys))
        return roots

    def _delete(self, db: Statements, keys: list[tuple[str, str]]) -> None:
        if keys:
            db.run(f"DELETE FROM image WHERE {_AMONG_GIVEN}", keys=keys)
            self._tables.note_change()

    def pin(self, keys: Iterable[tuple[str, str]], *, is_pinned: bool) -> list[ImageRecord]:
        """Pin or unpin records by (reference, handler); return those that exist, as they are now."""
        asked = list(dict.fromkeys(keys))
        with self._tables.writing() as db:
            db.run(f"UPDATE image SET pinned = :pinned WHERE {_AMONG_GIVEN}", pinned=int(is_pinned), keys=asked)
            changed = [*self.get_many(asked).values()]
            if changed:
                self._tables.note_change()
        return changed

    def touch(self, reference: str, handler: str) -> None:
        """Note that a record is used now: at most one write a minute, not synced, and none where none is possible."""
        self.touch_many([(reference, handler)])

    def touch_many(self, keys: Collection[tuple[str, str]]) -> None:
        """As touch() for several records by (reference, handler), in one transaction."""
        if self._tables.is_in_transaction:
            return
        listed = sorted(set(keys))
        with self._tables.reading() as db:
            if not db.row(f"SELECT 1 {_GIVEN} AND {_IS_DUE} LIMIT 1", keys=listed):
                return
        # A power cut may lose it; each use would wait for the disk otherwise. An image stays usable without the note.
        try:
            with self._tables.noting_use() as db:
                reach("touch-update")
                db.run(f"UPDATE image SET used_at = :now WHERE {_AMONG_GIVEN} AND {_IS_DUE}", keys=listed)
        except (StoreBusyError, StoreFullError, StoreReadOnlyError) as error:
            log.debug("the use of images can't be noted: %s", error, extra={"reference": listed[0][0]})

    def expire(self) -> int:
        """Remove records whose gc.expire label is past and that no lease names; return how many."""
        with self._tables.reading_whole() as db:
            expired = self._expired(db, "scope = :scope")
        if not expired:
            return 0
        with self._tables.writing() as db:
            # A record may have been replaced since then.
            current = self._expired(db, _AMONG_GIVEN, keys=expired)
            leased = self._leases.leased_records()
            return len(self.remove(key for key in current if "@".join(key) not in leased))

    def _expired(self, db: Statements, condition: str, **values: object) -> list[tuple[str, str]]:
        (now,) = db.row("SELECT :now") or (0.0,)
        found = self._select(db, f"{condition} AND {_HAS_EXPIRY}", **values)
        return [(each.reference, each.handler) for each in found if each.has_expired(now)]

    def _select(self, db: Statements, condition: str, **values: object) -> list[ImageRecord]:
        most = " LIMIT :limit" if "limit" in values else ""
        query = f"{_SELECT} FROM image WHERE {condition} ORDER BY reference, handler{most}"
        return self._records(db, query, **values)

    def _records(self, db: Statements, query: str, **values: object) -> list[ImageRecord]:
        with self._tables.naming_damage():
            return [rows.image_record(row) for row in db.each(query, **values)]


def _put(
    db: Statements, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]], created_at: float | None
) -> ImageRecord:
    key = {"reference": record.reference, "handler": record.handler}
    values: dict[str, object] = dict(zip(_COLUMNS, rows.image_values(record), strict=True))
    values["created_at"] = (record.created_at or None) if created_at is None else created_at
    roots, labelled = [str(digest) for digest in record.roots], [str(digest) for digest in record.labelled]
    with db.pipeline():
        put = db.execute(_PUT, **values)
        db.execute(f"DELETE FROM image_root WHERE {_KEY}", **key)
        db.execute(_PUT_ROOTS.format(0, "FALSE", "roots"), roots=roots, **key)
        if labelled:
            db.execute(_PUT_ROOTS.format(len(roots), "TRUE", "labelled"), labelled=labelled, **key)
        insert_edges(db, edges)
    ((created, updated, pinned, used),) = put.fetchall()
    return rows.stored_image(record, created_at=created, updated_at=updated, is_pinned=bool(pinned), used_at=used)


def insert_edges(db: Statements, edges: Mapping[Digest, Iterable[Digest]]) -> None:
    """Add edges that aren't there yet."""
    # In order, so that transactions don't deadlock.
    found = sorted({(str(parent), str(child)) for parent, children in edges.items() for child in children})
    if found:
        db.execute(
            "INSERT INTO edge (parent, child) SELECT one, two FROM PAIRS(:edges) p WHERE TRUE ON CONFLICT DO NOTHING",
            edges=found,
        )
