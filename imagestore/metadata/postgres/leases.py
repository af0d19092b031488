"""Leases of a scope in PostgreSQL. Their ends are by the server's clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError
from imagestore.metadata import rows
from imagestore.metadata.postgres.database import NOW
from imagestore.metadata.records import HOME, Lease
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import LeaseTerms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from imagestore.metadata.postgres.connection import Connection
    from imagestore.metadata.postgres.database import PostgresDatabase

#: Contents of expired leases that go in one batch.
_EXPIRY_BATCH: Final = 2048


class PostgresLeases:
    """Leases by id, and what they list."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._scope = database.scope

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
        is_flat = LeaseTerms.of(kept).is_flat
        with self._database.writing() as db:
            if namespace != HOME:
                put_namespace(db, self._scope, namespace)
            text = json.dumps(kept, sort_keys=True)
            values = (self._scope, lease_id, namespace, rows.lease_end(kept), lifetime_seconds, is_flat, text)
            with db.pipeline():
                made = db.execute(
                    "INSERT INTO lease (scope, id, namespace, created_at, expires_at, flat, labels)"  # noqa: S608
                    f" VALUES (%s, %s, %s, {NOW}, coalesce(%s::double precision, {NOW} + %s), %s, %s)"
                    f" ON CONFLICT DO NOTHING RETURNING {rows.LEASE_COLUMNS}",
                    values,
                )
                self._list(db, lease_id, content)
            row = made.fetchone()
            if row is None:
                name = Lease(lease_id, 0.0, 0.0, namespace=namespace).name
                raise AlreadyExistsError(f"lease {name!r} exists already")
        return rows.lease(row)

    def renew(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Set a lease's end to now plus its lifetime, and remove a gc.expire label."""
        with self._database.writing() as db:
            # A label that names an earlier end would say what is no longer true.
            row = db.execute(
                f"UPDATE lease SET expires_at = {NOW} + %s, labels = (labels::jsonb - %s)::text"  # noqa: S608
                " WHERE scope = %s AND id = %s RETURNING 1",
                (lifetime_seconds, gc_labels.EXPIRE, self._scope, lease_id),
            ).fetchone()
            if row is None:
                raise rows.no_lease(lease_id)

    def add_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Add content to a lease, before looking whether it is present."""
        with self._database.writing() as db:
            self._check_lease(db, lease_id)
            self._list(db, lease_id, digests)

    def content(self, lease_id: str) -> tuple[Digest, ...]:
        """The content that a lease lists."""
        with self._database.snapshot() as db:
            self._check_lease(db, lease_id, lock="")
            found = db.execute(
                "SELECT digest FROM lease_content WHERE scope = %s AND lease = %s ORDER BY digest",
                (self._scope, lease_id),
            )
            return tuple(Digest.parse(text) for (text,) in found.fetchall())

    def remove_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Remove content from a lease; what it doesn't list is ignored."""
        with self._database.writing() as db:
            self._check_lease(db, lease_id)
            db.execute(
                "DELETE FROM lease_content WHERE scope = %s AND lease = %s AND digest = ANY(%s)",
                (self._scope, lease_id, [str(digest) for digest in digests]),
            )

    def add_image(self, lease_id: str, name: str, handler: str) -> None:
        """Add the name of an image, which need not exist, to a lease; see the port."""
        with self._database.writing() as db:
            self._check_lease(db, lease_id)
            db.execute(
                "INSERT INTO lease_image VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (scope, lease, name) DO UPDATE SET handler = excluded.handler",
                (self._scope, lease_id, name, handler),
            )

    def remove_image(self, lease_id: str, name: str) -> None:
        """Remove the name of an image from a lease; what it doesn't list is ignored."""
        with self._database.writing() as db:
            self._check_lease(db, lease_id)
            key = (self._scope, lease_id, name)
            db.execute("DELETE FROM lease_image WHERE scope = %s AND lease = %s AND name = %s", key)

    def images(self, lease_id: str) -> tuple[str, ...]:
        """The names of images that a lease lists."""
        with self._database.snapshot() as db:
            self._check_lease(db, lease_id, lock="")
            query = "SELECT name FROM lease_image WHERE scope = %s AND lease = %s ORDER BY name"
            return tuple(name for (name,) in db.execute(query, (self._scope, lease_id)).fetchall())

    def leased_records(self) -> frozenset[str]:
        """What unexpired leases of ``HOME`` name, as ``reference@handler`` each."""
        with self._database.reading() as db:
            found = db.execute(
                "SELECT i.name, i.handler FROM lease_image i JOIN lease l ON l.scope = i.scope AND l.id = i.lease"  # noqa: S608
                f" WHERE i.scope = %s AND l.namespace = %s AND l.expires_at > {NOW}",
                (self._scope, HOME),
            )
            return rows.leased_records(found.fetchall())

    def delete(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Delete a lease; return whether it existed."""
        with self._database.writing() as db:
            return db.execute("DELETE FROM lease WHERE scope = %s AND id = %s", (self._scope, lease_id)).rowcount > 0

    def find(self, *, namespace: str | None = None) -> list[Lease]:
        """Every lease, or those of a namespace; expired ones too."""
        return self._found("TRUE") if namespace is None else self._found("namespace = %s", namespace)

    def get(self, lease_id: str) -> Lease | None:
        """One lease, also an expired one."""
        return next(iter(self._found("id = %s", lease_id)), None)

    def _found(self, condition: str, *values: str) -> list[Lease]:
        query = f"SELECT {rows.LEASE_COLUMNS} FROM lease WHERE scope = %s AND {condition} ORDER BY id"  # noqa: S608 - constants
        with self._database.reading() as db, self._database.naming_damage():
            return [rows.lease(row) for row in db.execute(query, (self._scope, *values)).fetchall()]

    def expire(self) -> int:
        """Delete leases of every scope that expired, with what they list, in batches."""
        count = 0
        while True:
            with self._database.writing() as db:
                gone = db.execute(
                    "DELETE FROM lease WHERE (scope, id) IN (SELECT scope, id FROM lease"  # noqa: S608 - constants
                    f" WHERE expires_at <= {NOW} ORDER BY scope, id LIMIT {_EXPIRY_BATCH} FOR UPDATE SKIP LOCKED)"
                ).rowcount
            count += gone
            if gone < _EXPIRY_BATCH:
                return count

    def _list(self, db: Connection, lease_id: str, digests: Collection[Digest]) -> None:
        if digests:
            db.execute(
                "INSERT INTO lease_content SELECT %s, %s, unnest(%s::text[]) ON CONFLICT DO NOTHING",
                (self._scope, lease_id, sorted({str(digest) for digest in digests})),
            )

    def _check_lease(self, db: Connection, lease_id: str, *, lock: str = "FOR KEY SHARE") -> None:
        """Refuse a lease that is gone; with the lock it stays while the transaction lasts."""
        query = f"SELECT 1 FROM lease WHERE scope = %s AND id = %s {lock}"  # noqa: S608 - constants
        if db.execute(query, (self._scope, lease_id)).fetchone() is None:
            raise rows.no_lease(lease_id)


def put_namespace(db: Connection, scope: str, name: str) -> None:
    """Create a namespace that doesn't exist."""
    db.execute("INSERT INTO namespace (scope, name) VALUES (%s, %s) ON CONFLICT DO NOTHING", (scope, name))
