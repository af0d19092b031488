"""Leases in SQLite. Those that were made to last have lines in the journal too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError
from imagestore.metadata import rows
from imagestore.metadata.records import HOME, Lease
from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.sqlite.failures import naming_damage
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import LeaseTerms

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping

    from imagestore.metadata.sqlite.database import Database

#: The end of a lease that expired and is being deleted.
_GONE: Final = float("-inf")
#: Contents of expired leases that are deleted in one batch: some milliseconds.
_EXPIRY_BATCH: Final = 512
#: Running work leases for a day. A lease with a longer lifetime outlives a damaged database.
LASTING_SECONDS: Final = 24 * 3600.0 + 60.0


class SqliteLeases:
    """Leases by id, and what they list."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changes = database.changes

    def create(
        self,
        lease_id: str,
        *,
        lifetime_seconds: float,
        labels: Mapping[str, str] | None = None,
        namespace: str = HOME,
        content: Collection[Digest] = (),
    ) -> Lease:
        """Create a lease."""
        if not lease_id:
            raise InvalidInputError("a lease needs an id")
        kept = gc_labels.checked(labels or {})
        now, end = self._database.clock(), rows.lease_end(kept)
        expires_at = now + lifetime_seconds if end is None else end
        lease = Lease(lease_id, now, expires_at, LeaseTerms.of(kept).is_flat, kept, namespace)
        with self._database.writing() as db:
            db.execute("DELETE FROM lease WHERE id = ? AND expires_at = ?", (lease_id, _GONE))
            if db.execute("SELECT 1 FROM lease WHERE id = ?", (lease_id,)).fetchone():
                raise AlreadyExistsError(f"lease {lease.name!r} exists already")
            if namespace != HOME:
                db.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (namespace,))
            values = (lease.id, now, expires_at, int(lease.is_flat), json.dumps(kept, sort_keys=True), namespace)
            db.execute(f"INSERT INTO lease ({rows.LEASE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608 - constants
            _list(db, lease_id, content)
            self._note(db, lease_id)
        return lease

    def renew(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Set a lease's end to now plus its lifetime, and remove a gc.expire label."""
        with self._database.writing() as db:
            was_lasting = self._lasting(lease_id)
            end = self._database.clock() + lifetime_seconds
            # A label that names an earlier end would say what is no longer true.
            query = "UPDATE lease SET expires_at = ?, labels = json_remove(labels, ?) WHERE id = ? AND expires_at > ?"
            if not db.execute(query, (end, f'$."{gc_labels.EXPIRE}"', lease_id, _GONE)).rowcount:
                raise rows.no_lease(lease_id)
            if was_lasting and not self._lasting(lease_id):
                self._note_end(db, lease_id)  # its deletion writes no line
            self._note(db, lease_id)

    def add_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Add content to a lease, before looking whether it is present."""
        with self._database.writing() as db:
            _check_lease(db, lease_id)
            if _list(db, lease_id, digests) and (lease := self._lasting(lease_id)):
                self._changes.put(
                    db, lambda number: [lines.leased(number, lease, part) for part in lines.parts(digests)]
                )

    def content(self, lease_id: str) -> tuple[Digest, ...]:
        """The content that a lease lists."""
        with self._database.snapshot() as db:
            _check_lease(db, lease_id)
            found = db.execute("SELECT digest FROM lease_content WHERE lease = ? ORDER BY digest", (lease_id,))
            return tuple(Digest.parse(text) for (text,) in found.fetchall())

    def remove_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Remove content from a lease; what it doesn't list is ignored."""
        with self._database.removing() as db:
            _check_lease(db, lease_id)
            pairs = [(lease_id, str(digest)) for digest in digests]
            db.executemany("DELETE FROM lease_content WHERE lease = ? AND digest = ?", pairs)
            if self._lasting(lease_id):
                self._changes.remove(
                    db, lambda number: [lines.unleased(number, lease_id, part) for part in lines.parts(digests)]
                )

    def add_image(self, lease_id: str, name: str, handler: str) -> None:
        """Add the name of an image, which need not exist, to a lease; see the port."""
        with self._database.writing() as db:
            _check_lease(db, lease_id)
            db.execute("INSERT OR REPLACE INTO lease_image VALUES (?, ?, ?)", (lease_id, name, handler))

    def remove_image(self, lease_id: str, name: str) -> None:
        """Remove the name of an image from a lease; what it doesn't list is ignored."""
        with self._database.removing() as db:
            _check_lease(db, lease_id)
            db.execute("DELETE FROM lease_image WHERE lease = ? AND name = ?", (lease_id, name))

    def images(self, lease_id: str) -> tuple[str, ...]:
        """The names of images that a lease lists."""
        with self._database.snapshot() as db:
            _check_lease(db, lease_id)
            found = db.execute("SELECT name FROM lease_image WHERE lease = ? ORDER BY name", (lease_id,))
            return tuple(name for (name,) in found.fetchall())

    def leased_records(self) -> frozenset[str]:
        """What unexpired leases of ``HOME`` name, as ``reference@handler`` each."""
        with self._database.reading() as db:
            found = db.execute(
                "SELECT name, lease_image.handler FROM lease_image JOIN lease ON lease = id"
                " WHERE namespace = ? AND expires_at > ?",
                (HOME, self._database.clock()),
            )
            return rows.leased_records(found.fetchall())

    def delete(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Delete a lease; return whether it existed."""
        with self._database.writing() if is_of_work else self._database.removing() as db:
            query = "DELETE FROM lease WHERE id = ? RETURNING expires_at - created_at"
            found = db.execute(query, (lease_id,)).fetchall()
            if found and found[0][0] > LASTING_SECONDS:
                self._note_end(db, lease_id)
            return bool(found)

    def find(self, *, namespace: str | None = None) -> list[Lease]:
        """Every lease, or those of a namespace; expired ones too."""
        if namespace is None:
            return self._found("expires_at > ?", _GONE)
        return self._found("expires_at > ? AND namespace = ?", _GONE, namespace)

    def get(self, lease_id: str) -> Lease | None:
        """One lease, also an expired one."""
        return next(iter(self._found("id = ? AND expires_at > ?", lease_id, _GONE)), None)

    def _found(self, condition: str, *values: str | float) -> list[Lease]:
        with self._database.reading() as db, naming_damage(self._database.path):
            return _selected(db, condition, *values)

    def lasting(self, db: sqlite3.Connection) -> Iterator[tuple[Lease, tuple[Digest, ...]]]:
        """Leases with a long lifetime that a connection sees, with the content they list."""
        for lease in _selected(db, "expires_at - created_at > ?", LASTING_SECONDS):
            listed = db.execute("SELECT digest FROM lease_content WHERE lease = ? ORDER BY digest", (lease.id,))
            yield lease, tuple(Digest.parse(text) for (text,) in listed.fetchall())

    def _lasting(self, lease_id: str) -> Lease | None:
        return next(iter(self._found("id = ? AND expires_at - created_at > ?", lease_id, LASTING_SECONDS)), None)

    def _note(self, db: sqlite3.Connection, lease_id: str) -> None:
        """Write a lasting lease to the journal; those of running work are lost with a damaged database."""
        if lease := self._lasting(lease_id):
            self._changes.put(db, lambda number: lines.whole_lease(number, lease, self.content(lease_id)))

    def _note_end(self, db: sqlite3.Connection, lease_id: str) -> None:
        """Tell the journal that a lease is gone, or no longer a lasting one."""
        self._changes.remove(db, lambda number: [lines.release(number, lease_id)])

    def expire(self) -> int:
        """Delete expired leases: end them for good, then what they list in batches, then themselves."""
        with self._database.writing() as db:
            # An owner that comes back late must find its lease gone, not shortened.
            db.execute("UPDATE lease SET expires_at = ? WHERE expires_at <= ?", (_GONE, self._database.clock()))
        some = (
            "DELETE FROM lease_content WHERE (lease, digest) IN (SELECT lease, digest FROM lease_content"
            " WHERE lease IN (SELECT id FROM lease WHERE expires_at = ?) LIMIT ?)"
        )
        while True:
            with self._database.batch() as db:
                if not db.execute(some, (_GONE, _EXPIRY_BATCH)).rowcount:
                    return db.execute("DELETE FROM lease WHERE expires_at = ?", (_GONE,)).rowcount


def _selected(db: sqlite3.Connection, condition: str, *values: str | float) -> list[Lease]:
    query = f"SELECT {rows.LEASE_COLUMNS} FROM lease WHERE {condition} ORDER BY id"  # noqa: S608 - constants
    return [rows.lease(row) for row in db.execute(query, values).fetchall()]


def _list(db: sqlite3.Connection, lease_id: str, digests: Collection[Digest]) -> int:
    """Put digests under a lease; return how many are new there."""
    pairs = [(lease_id, str(digest)) for digest in digests]
    return db.executemany("INSERT OR IGNORE INTO lease_content VALUES (?, ?)", pairs).rowcount


def _check_lease(db: sqlite3.Connection, lease_id: str) -> None:
    if not db.execute("SELECT 1 FROM lease WHERE id = ? AND expires_at > ?", (lease_id, _GONE)).fetchone():
        raise rows.no_lease(lease_id)
