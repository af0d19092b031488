"""Images of containerd's clients in PostgreSQL, by namespace and name, in a scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.metadata import rows
from imagestore.metadata.postgres.database import NOW
from imagestore.metadata.postgres.leases import put_namespace
from imagestore.metadata.records import HOME, NamedImage
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.metadata.postgres.database import PostgresDatabase

_IS_LEASED: Final = (
    "EXISTS (SELECT 1 FROM lease_image i JOIN lease n ON n.scope = i.scope AND n.id = i.lease"  # noqa: S608 - constants
    " WHERE i.scope = named_image.scope AND i.name = named_image.name AND n.namespace = named_image.namespace"
    f" AND n.expires_at > {NOW}{{}})"
)
#: Whether a named image keeps content: it has not expired, or a lease that isn't flat names it.
IS_ALIVE: Final = f"(named_image.expires_at > {NOW} OR {_IS_LEASED.format(' AND NOT n.flat')})"
_HAS_ENDED: Final = f"named_image.expires_at <= {NOW} AND NOT {_IS_LEASED.format('')}"
_FOUND: Final = (
    f"SELECT {rows.NAMED_IMAGE_COLUMNS}, ARRAY(SELECT r.digest FROM named_image_root r WHERE r.scope = i.scope"  # noqa: S608 - constants
    " AND r.namespace = i.namespace AND r.name = i.name AND r.digest <> i.digest AND NOT by_label ORDER BY r.digest)"
    " FROM named_image i WHERE scope = %s AND namespace = %s"
)
_REPLACED: Final = ", ".join(
    f"{name} = excluded.{name}" for name in (*rows.NAMED_IMAGE_COLUMNS.split(", ")[2:], "expires_at")
)


class PostgresNamedImages:
    """Named images; their targets and what their labels name are roots of their namespace."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._scope = database.scope

    def put(self, image: NamedImage) -> NamedImage:
        """Insert or replace an image, with the caller's times; returns it as stored."""
        values, held = rows.named_image_values(image), rows.named_image_roots(image)
        key = (self._scope, image.namespace, image.name)
        with self._database.writing() as db:
            put_namespace(db, self._scope, image.namespace)
            db.execute(
                f"INSERT INTO named_image (scope, {rows.NAMED_IMAGE_COLUMNS}, expires_at)"  # noqa: S608 - constants
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
                f" ON CONFLICT (scope, namespace, name) DO UPDATE SET {_REPLACED}",
                (self._scope, *values),
            )
            db.execute("DELETE FROM named_image_root WHERE (scope, namespace, name) = (%s, %s, %s)", key)
            db.execute(
                "INSERT INTO named_image_root SELECT %s, %s, %s, * FROM unnest(%s::text[], %s::boolean[])",
                (*key, list(held), list(held.values())),
            )
            found = self.get(image.namespace, image.name)
        assert found is not None
        return found

    def kept_with(self, digest: Digest) -> tuple[Digest, ...]:
        """What the records and named images of ``HOME`` hold besides this digest, for a new name of it to keep too."""
        query = (
            "SELECT o.digest FROM image_root r JOIN image_root o USING (scope, reference, handler)"
            " WHERE r.digest = %(digest)s AND scope = %(scope)s AND NOT r.by_label AND NOT o.by_label UNION"
            " SELECT o.digest FROM named_image_root r JOIN named_image_root o USING (scope, namespace, name)"
            " WHERE r.digest = %(digest)s AND scope = %(scope)s AND namespace = %(home)s"
            " AND NOT r.by_label AND NOT o.by_label"
        )
        with self._database.reading() as db:
            given = {"digest": str(digest), "scope": self._scope, "home": HOME}
            found = db.execute(query, given).fetchall()
        return tuple(Digest.parse(text) for (text,) in sorted(found) if text != str(digest))

    def get(self, namespace: str, name: str) -> NamedImage | None:
        """One image."""
        with self._database.reading() as db, self._database.naming_damage():
            row = db.execute(f"{_FOUND} AND name = %s", (self._scope, namespace, name)).fetchone()
            return rows.named_image(row[:-1], row[-1]) if row else None

    def find(self, namespace: str) -> list[NamedImage]:
        """A namespace's images, ordered by name."""
        with self._database.reading() as db, self._database.naming_damage():
            found = db.execute(f"{_FOUND} ORDER BY name", (self._scope, namespace)).fetchall()
            return [rows.named_image(row[:-1], row[-1]) for row in found]

    def remove(self, namespace: str, name: str) -> bool:
        """Remove an image; return whether it existed."""
        with self._database.writing() as db:
            key = (self._scope, namespace, name)
            statement = "DELETE FROM named_image WHERE scope = %s AND namespace = %s AND name = %s"
            return db.execute(statement, key).rowcount > 0

    def drop_home(self, names: Sequence[str]) -> list[str]:
        """Remove images of ``HOME``; return the digests that they held, as texts."""
        listed = "scope = %s AND namespace = %s AND name = ANY(%s)"
        values = (self._scope, HOME, list(names))
        with self._database.writing() as db:
            held = db.execute(f"SELECT DISTINCT digest FROM named_image_root WHERE {listed}", values).fetchall()  # noqa: S608
            if held:
                db.execute(f"DELETE FROM named_image WHERE {listed}", values)  # noqa: S608
        return [text for (text,) in held]

    def expire(self) -> int:
        """Remove images whose gc.expire label is past and that no lease names; return how many."""
        with self._database.writing() as db:
            return db.execute(f"DELETE FROM named_image WHERE scope = %s AND {_HAS_ENDED}", (self._scope,)).rowcount  # noqa: S608
