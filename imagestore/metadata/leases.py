"""Leases in the database: containerd's, with its labels for expiry and flatness."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from imagestore import gc_labels
from imagestore.digest import Digest
from imagestore.errors import AlreadyExistsError, InvalidInputError, LeaseNotFoundError
from imagestore.gc_labels import LeaseTerms
from imagestore.metadata.api import Lease
from imagestore.metadata.database import Database
from imagestore.metadata.images import insert_edges
from imagestore.metadata.namespace_api import HOME

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping

#: When a lease ends that expired and is being deleted.
_GONE: Final = -math.inf
#: Contents of expired leases that go in one batch: some milliseconds.
_EXPIRY_BATCH: Final = 512


class LeaseTables(Database):
    """Leases by id, and what they list."""

    def create_lease(
        self,
        lease_id: str,
        *,
        lifetime_seconds: float,
        labels: Mapping[str, str] | None = None,
        namespace: str = HOME,
    ) -> Lease:
        """Make a lease."""
        if not lease_id:
            raise InvalidInputError("a lease needs an id")
        kept = gc_labels.checked(labels or {})
        terms = LeaseTerms.of(kept)
        now = self._clock()
        # As in containerd a lease whose gc.expire can't be read stays until it is deleted.
        expires_at = terms.expires_at if gc_labels.EXPIRE in kept else now + lifetime_seconds
        lease = Lease(lease_id, now, expires_at, terms.is_flat, kept, namespace)
        with self._writing() as db:
            db.execute("DELETE FROM lease WHERE id = ? AND expires_at = ?", (lease_id, _GONE))
            if db.execute("SELECT 1 FROM lease WHERE id = ?", (lease_id,)).fetchone():
                raise AlreadyExistsError(f"lease {lease_id!r} exists already")
            if namespace != HOME:
                db.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (namespace,))
            values = (lease.id, now, expires_at, int(lease.is_flat), json.dumps(kept, sort_keys=True), namespace)
            columns = "id, created_at, expires_at, flat, labels, namespace"
            db.execute(f"INSERT INTO lease ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608 - constants
        return lease

    def renew_lease(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Move a lease's end to now plus its lifetime."""
        with self._writing() as db:
            end = self._clock() + lifetime_seconds
            query = "UPDATE lease SET expires_at = ? WHERE id = ? AND expires_at > ?"
            if not db.execute(query, (end, lease_id, _GONE)).rowcount:
                raise _no_lease(lease_id)

    def lease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Put digests under a lease, before their presence is looked at."""
        with self._writing() as db:
            _check_lease(db, lease_id)
            db.executemany(
                "INSERT OR IGNORE INTO lease_content VALUES (?, ?)", [(lease_id, str(digest)) for digest in digests]
            )

    def lease_edges(self, lease_id: str, edges: Mapping[Digest, Iterable[Digest]]) -> None:
        """Remember edges of content that a lease holds."""
        with self._writing() as db:
            insert_edges(db, edges)
            self.lease_content(lease_id, list(edges))

    def leased_content(self, lease_id: str) -> tuple[Digest, ...]:
        """What a lease lists."""
        with self._snapshot() as db:
            _check_lease(db, lease_id)
            found = db.execute("SELECT digest FROM lease_content WHERE lease = ? ORDER BY digest", (lease_id,))
            return tuple(Digest.parse(text) for (text,) in found.fetchall())

    def unlease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Take digests off a lease."""
        with self._writing() as db:
            _check_lease(db, lease_id)
            pairs = [(lease_id, str(digest)) for digest in digests]
            db.executemany("DELETE FROM lease_content WHERE lease = ? AND digest = ?", pairs)

    def delete_lease(self, lease_id: str) -> bool:
        """Release a lease; say whether it was there."""
        with self._writing() as db:
            return db.execute("DELETE FROM lease WHERE id = ?", (lease_id,)).rowcount > 0

    def leases(self) -> Iterator[Lease]:
        """Every lease, expired ones too."""
        with self._reading() as db:
            found = db.execute(
                "SELECT id, created_at, expires_at, flat, labels, namespace FROM lease"
                " WHERE expires_at > ? ORDER BY id",
                (_GONE,),
            )
            rows = found.fetchall()
        return (
            Lease(lease_id, created_at, expires_at, bool(flat), json.loads(labels), namespace)
            for lease_id, created_at, expires_at, flat, labels, namespace in rows
        )

    def _expire_leases(self) -> int:
        """Delete expired leases: end them for good, then what they list in batches, then themselves."""
        with self._writing() as db:
            # An owner that comes back late must find its lease gone, not shortened.
            db.execute("UPDATE lease SET expires_at = ? WHERE expires_at <= ?", (_GONE, self._clock()))
        some = (
            "DELETE FROM lease_content WHERE (lease, digest) IN (SELECT lease, digest FROM lease_content"
            " WHERE lease IN (SELECT id FROM lease WHERE expires_at = ?) LIMIT ?)"
        )
        while True:
            with self.batch():
                if not self._connection.execute(some, (_GONE, _EXPIRY_BATCH)).rowcount:
                    return self._connection.execute("DELETE FROM lease WHERE expires_at = ?", (_GONE,)).rowcount


def _check_lease(db: sqlite3.Connection, lease_id: str) -> None:
    if not db.execute("SELECT 1 FROM lease WHERE id = ? AND expires_at > ?", (lease_id, _GONE)).fetchone():
        raise _no_lease(lease_id)


def _no_lease(lease_id: str) -> LeaseNotFoundError:
    return LeaseNotFoundError(f"lease {lease_id!r} does not exist or was released")
