"""Leases of a scope: containerd's, with its labels for expiry and flatness. Their ends are by the server's clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError, LeaseNotFoundError
from imagestore.metadata.namespace_api import HOME
from imagestore.metadata.postgres.database import NOW, PostgresDatabase
from imagestore.metadata.records import Lease
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import LeaseTerms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from imagestore.metadata.postgres.connection import Connection

_COLUMNS: Final = "id, created_at, expires_at, flat, labels, namespace"
#: Contents of expired leases that go in one batch.
_EXPIRY_BATCH: Final = 2048


class LeaseTables(PostgresDatabase):
    """Leases by id, and what they list."""

    def create_lease(
        self,
        lease_id: str,
        *,
        lifetime_seconds: float,
        labels: Mapping[str, str] | None = None,
        namespace: str = HOME,
        content: Collection[Digest] = (),
    ) -> Lease:
        """Make a lease."""
        if not lease_id:
            raise InvalidInputError("a lease needs an id")
        kept = gc_labels.checked(labels or {})
        terms = LeaseTerms.of(kept)
        # As in containerd a lease whose gc.expire can't be read stays until it is deleted.
        ends_at = terms.expires_at if gc_labels.EXPIRE in kept else None
        with self.writing() as db:
            if namespace != HOME:
                put_namespace(db, self._scope, namespace)
            values = (self._scope, lease_id, namespace, ends_at, lifetime_seconds, terms.is_flat, _text(kept))
            with db.pipeline():
                made = db.execute(
                    "INSERT INTO lease (scope, id, namespace, created_at, expires_at, flat, labels)"  # noqa: S608
                    f" VALUES (%s, %s, %s, {NOW}, coalesce(%s::double precision, {NOW} + %s), %s, %s)"
                    f" ON CONFLICT DO NOTHING RETURNING {_COLUMNS}",
                    values,
                )
                self._list(db, lease_id, content)
            row = made.fetchone()
            if row is None:
                name = Lease(lease_id, 0.0, 0.0, namespace=namespace).name
                raise AlreadyExistsError(f"lease {name!r} exists already")
        return _lease(row)

    def renew_lease(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Move a lease's end to now plus its lifetime."""
        with self.writing() as db:
            # A label that names an earlier end would say what is no longer true.
            row = db.execute(
                f"UPDATE lease SET expires_at = {NOW} + %s, labels = (labels::jsonb - %s)::text"  # noqa: S608
                " WHERE scope = %s AND id = %s RETURNING 1",
                (lifetime_seconds, gc_labels.EXPIRE, self._scope, lease_id),
            ).fetchone()
            if row is None:
                raise _no_lease(lease_id)

    def lease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Put digests under a lease, before their presence is looked at."""
        with self.writing() as db:
            self._check_lease(db, lease_id)
            self._list(db, lease_id, digests)

    def leased_content(self, lease_id: str) -> tuple[Digest, ...]:
        """What a lease lists."""
        with self._snapshot() as db:
            self._check_lease(db, lease_id, lock="")
            found = db.execute(
                "SELECT digest FROM lease_content WHERE scope = %s AND lease = %s ORDER BY digest",
                (self._scope, lease_id),
            )
            return tuple(Digest.parse(text) for (text,) in found.fetchall())

    def unlease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Take digests off a lease; those it doesn't list are no error."""
        with self.writing() as db:
            self._check_lease(db, lease_id)
            db.execute(
                "DELETE FROM lease_content WHERE scope = %s AND lease = %s AND digest = ANY(%s)",
                (self._scope, lease_id, [str(digest) for digest in digests]),
            )

    def lease_image(self, lease_id: str, name: str, handler: str) -> None:
        """Put the name of an image under a lease, which needs no image of that name."""
        with self.writing() as db:
            self._check_lease(db, lease_id)
            db.execute(
                "INSERT INTO lease_image VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (scope, lease, name) DO UPDATE SET handler = excluded.handler",
                (self._scope, lease_id, name, handler),
            )

    def unlease_image(self, lease_id: str, name: str) -> None:
        """Take the name of an image off a lease; one that it doesn't list is no error."""
        with self.writing() as db:
            self._check_lease(db, lease_id)
            key = (self._scope, lease_id, name)
            db.execute("DELETE FROM lease_image WHERE scope = %s AND lease = %s AND name = %s", key)

    def leased_images(self, lease_id: str) -> tuple[str, ...]:
        """The names of images that a lease lists."""
        with self._snapshot() as db:
            self._check_lease(db, lease_id, lock="")
            query = "SELECT name FROM lease_image WHERE scope = %s AND lease = %s ORDER BY name"
            return tuple(name for (name,) in db.execute(query, (self._scope, lease_id)).fetchall())

    def leased_records(self) -> frozenset[str]:
        """What unexpired leases of the scope's own namespace name, as ``reference@handler`` each."""
        with self.reading() as db:
            rows = db.execute(
                "SELECT i.name, i.handler FROM lease_image i JOIN lease l ON l.scope = i.scope AND l.id = i.lease"  # noqa: S608
                f" WHERE i.scope = %s AND l.namespace = %s AND l.expires_at > {NOW}",
                (self._scope, HOME),
            ).fetchall()
        # A name may have a handler behind it already.
        return frozenset(text for name, handler in rows for text in (name, f"{name}@{handler}"))

    def delete_lease(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Release a lease; say whether it was there."""
        with self.writing() as db:
            return db.execute("DELETE FROM lease WHERE scope = %s AND id = %s", (self._scope, lease_id)).rowcount > 0

    def leases(self, *, namespace: str | None = None) -> Iterator[Lease]:
        """Every lease, or those of a namespace; expired ones too."""
        if namespace is None:
            return iter(self._find_leases("TRUE"))
        return iter(self._find_leases("namespace = %s", namespace))

    def lease(self, lease_id: str) -> Lease | None:
        """One lease, also when it expired; None when there is none."""
        return next(iter(self._find_leases("id = %s", lease_id)), None)

    def _find_leases(self, condition: str, *values: str) -> list[Lease]:
        query = f"SELECT {_COLUMNS} FROM lease WHERE scope = %s AND {condition} ORDER BY id"  # noqa: S608 - constants
        with self.reading() as db, self._damage_named():
            return [_lease(row) for row in db.execute(query, (self._scope, *values)).fetchall()]

    def _expire_leases(self) -> int:
        """Delete leases of every scope that expired, with what they list, in batches."""
        count = 0
        while True:
            with self.writing() as db:
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
        """That it is there, and stays while the transaction lasts."""
        query = f"SELECT 1 FROM lease WHERE scope = %s AND id = %s {lock}"  # noqa: S608 - constants
        if db.execute(query, (self._scope, lease_id)).fetchone() is None:
            raise _no_lease(lease_id)


def put_namespace(db: Connection, scope: str, name: str) -> None:
    """Make a namespace where there is none."""
    db.execute("INSERT INTO namespace (scope, name) VALUES (%s, %s) ON CONFLICT DO NOTHING", (scope, name))


def _lease(row: Sequence[Any]) -> Lease:
    lease_id, created_at, expires_at, flat, labels, namespace = row
    return Lease(lease_id, created_at, expires_at, flat, json.loads(labels), namespace)


def _text(labels: Mapping[str, str]) -> str:
    return json.dumps(labels, sort_keys=True)


def _no_lease(lease_id: str) -> LeaseNotFoundError:
    return LeaseNotFoundError(f"lease {lease_id!r} does not exist or was released")
