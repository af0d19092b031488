"""Image records in the database, each with its roots, and a line in the journal for every change."""

from __future__ import annotations

import dataclasses
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.failpoint import reach
from imagestore.gc_labels import EXPIRE, LeaseTerms
from imagestore.metadata import rows
from imagestore.metadata.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.digest import Digest
    from imagestore.metadata.api import ImageRecord

#: Times of use are kept to the minute, so that a busy image costs one write a minute.
_USE_SECONDS: Final = 60.0


class ImageTables(Database):
    """Records by (reference, handler)."""

    def put_image(self, record: ImageRecord, edges: Mapping[Digest, Iterable[Digest]]) -> ImageRecord:
        """Insert or replace a record together with its edges, durably; keeps creation time, pin and time of use."""
        with self._writing() as db:
            now = self._clock()
            key = (record.reference, record.handler)
            before = self.get_image(*key)
            stored = dataclasses.replace(
                record,
                created_at=before.created_at if before else record.created_at or now,
                updated_at=now,
                is_pinned=record.is_pinned or (before is not None and before.is_pinned),
                used_at=max(record.used_at, before.used_at if before else 0.0),
            )
            db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
            values = rows.from_record(stored, created_at=stored.created_at, updated_at=now)
            db.execute(f"INSERT INTO image ({rows.COLUMNS}) VALUES ({rows.MARKS})", values)  # noqa: S608 - constants
            db.executemany(
                "INSERT INTO image_root VALUES (?, ?, ?, ?)",
                [(*key, position, str(digest)) for position, digest in enumerate(record.roots)],
            )
            insert_edges(db, edges)
            self._journal.put(self._number_change(), [stored])
            # As it reads back: descriptors in records have no platform and no annotations.
            found = self.get_image(*key)
            assert found is not None
            return found

    def get_image(self, reference: str, handler: str) -> ImageRecord | None:
        """One record, or None."""
        return next(iter(self.find_images(reference=reference, handler=handler)), None)

    def find_images(
        self, *, reference: str | None = None, handler: str | None = None, image_id_prefix: str | None = None
    ) -> list[ImageRecord]:
        """Records that fit every given condition, ordered by reference and handler."""
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
        return self._select(" AND ".join(conditions) or "TRUE", values)

    def find_by_root(self, digest: Digest) -> list[ImageRecord]:
        """Records that hold this index or manifest."""
        condition = "(reference, handler) IN (SELECT reference, handler FROM image_root WHERE digest = ?)"
        return self._select(condition, [str(digest)])

    def remove_images(self, keys: Iterable[tuple[str, str]]) -> list[ImageRecord]:
        """Remove records in one transaction; return those that were there."""
        removed = []
        with self._writing() as db:
            for key in keys:
                record = self.get_image(*key)
                if record is not None:
                    db.execute("DELETE FROM image WHERE reference = ? AND handler = ?", key)
                    removed.append(record)
            if removed:
                number, gone = self._number_change(), [(record.reference, record.handler) for record in removed]
                self._after_commit.append(lambda: self._journal.remove(number, gone))
        return removed

    def pin_images(self, keys: Iterable[tuple[str, str]], *, is_pinned: bool) -> list[ImageRecord]:
        """Pin or unpin records; return those that are there, as they are now."""
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
        """Note that a record is used now; at most one write a minute, and not synced."""
        now = self._clock()
        with self._reading() as db:
            key = (reference, handler)
            query = "SELECT max(used_at, updated_at) FROM image WHERE reference = ? AND handler = ?"
            found = db.execute(query, key).fetchone()
            # A clock set back must not stop the times for ever.
            if found is None or db.in_transaction or abs(now - found[0]) < _USE_SECONDS:
                return
            # Losing this with the power is no harm; waiting for the disk at each use would be.
            db.execute("PRAGMA synchronous = NORMAL")
            try:
                reach("touch-update")
                db.execute("UPDATE image SET used_at = ? WHERE reference = ? AND handler = ?", (now, *key))
            finally:
                db.execute("PRAGMA synchronous = FULL")

    def _expired_images(self) -> list[tuple[str, str]]:
        now = self._clock()
        labelled = self._select("labels LIKE ?", [f'%"{EXPIRE}"%'])
        return [
            (record.reference, record.handler) for record in labelled if LeaseTerms.of(record.labels).expires_at <= now
        ]

    def _select(self, condition: str, values: list[str]) -> list[ImageRecord]:
        with self._reading() as db:
            found = db.execute(
                f"SELECT {rows.COLUMNS}, (SELECT json_group_array(digest) FROM (SELECT digest FROM image_root r"  # noqa: S608
                " WHERE r.reference = image.reference AND r.handler = image.handler ORDER BY position))"
                f" FROM image WHERE {condition} ORDER BY reference, handler",
                values,
            ).fetchall()
            with self._damage_named():
                return [rows.to_record(row) for row in found]


def insert_edges(db: sqlite3.Connection, edges: Mapping[Digest, Iterable[Digest]]) -> None:
    """Add edges that aren't there yet."""
    db.executemany(
        "INSERT OR IGNORE INTO edge VALUES (?, ?)",
        [(str(parent), str(child)) for parent, children in edges.items() for child in children],
    )
