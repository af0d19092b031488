"""Images by namespace and name, as clients of containerd's services make them, in a scope."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata.namespace_api import HOME, NamedImage
from imagestore.metadata.postgres.database import NOW, PostgresDatabase
from imagestore.metadata.postgres.leases import put_namespace
from imagestore.oci import gc_labels
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms, LeaseTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

_IS_LEASED: Final = (
    "EXISTS (SELECT 1 FROM lease_image i JOIN lease n ON n.scope = i.scope AND n.id = i.lease"  # noqa: S608 - constants
    " WHERE i.scope = named_image.scope AND i.name = named_image.name AND n.namespace = named_image.namespace"
    f" AND n.expires_at > {NOW}{{}})"
)
#: Whether a named image keeps content: it has not expired, or a lease that isn't flat names it.
IS_ALIVE: Final = f"(named_image.expires_at > {NOW} OR {_IS_LEASED.format(' AND NOT n.flat')})"
_HAS_ENDED: Final = f"named_image.expires_at <= {NOW} AND NOT {_IS_LEASED.format('')}"
_NAMES: Final = (
    "namespace",
    "name",
    "media_type",
    "digest",
    "size",
    "annotations",
    "labels",
    "created_at",
    "updated_at",
)
_COLUMNS: Final = ", ".join(_NAMES)
_FOUND: Final = (
    f"SELECT {_COLUMNS}, ARRAY(SELECT r.digest FROM named_image_root r WHERE r.scope = i.scope"  # noqa: S608 - constants
    " AND r.namespace = i.namespace AND r.name = i.name AND r.digest <> i.digest AND NOT by_label ORDER BY r.digest)"
    " FROM named_image i WHERE scope = %s AND namespace = %s"
)
_REPLACED: Final = ", ".join(f"{name} = excluded.{name}" for name in (*_NAMES[2:], "expires_at"))


class NamedImageTables(PostgresDatabase):
    """Named images; their targets and what their labels name are roots of their namespace."""

    def put_named_image(self, image: NamedImage) -> NamedImage:
        """Insert or replace an image; its times are the caller's."""
        labels = gc_labels.checked(image.labels)
        values = (
            self._scope,
            image.namespace,
            image.name,
            image.target.media_type,
            str(image.target.digest),
            image.target.size,
            json.dumps(dict(image.annotations), sort_keys=True),
            json.dumps(labels, sort_keys=True),
            image.created_at,
            image.updated_at,
            LeaseTerms.of(labels).expires_at,
        )
        held = {str(digest): True for digest in ContentTerms.of(labels).references}
        # What is kept for another reason too stays when the label goes.
        held |= {str(digest): False for digest in (image.target.digest, *image.also_keeps)}
        key = (self._scope, image.namespace, image.name)
        with self.writing() as db:
            put_namespace(db, self._scope, image.namespace)
            db.execute(
                f"INSERT INTO named_image (scope, {_COLUMNS}, expires_at)"  # noqa: S608 - constants
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
                f" ON CONFLICT (scope, namespace, name) DO UPDATE SET {_REPLACED}",
                values,
            )
            db.execute("DELETE FROM named_image_root WHERE (scope, namespace, name) = (%s, %s, %s)", key)
            db.execute(
                "INSERT INTO named_image_root SELECT %s, %s, %s, * FROM unnest(%s::text[], %s::boolean[])",
                (*key, list(held), list(held.values())),
            )
            found = self.named_image(image.namespace, image.name)
        assert found is not None
        return found

    def kept_with(self, digest: Digest) -> tuple[Digest, ...]:
        """What the scope's records and named images hold besides this digest, so that a new name for it may too."""
        query = (
            "SELECT o.digest FROM image_root r JOIN image_root o USING (scope, reference, handler)"
            " WHERE r.digest = %(digest)s AND scope = %(scope)s AND NOT r.by_label AND NOT o.by_label UNION"
            " SELECT o.digest FROM named_image_root r JOIN named_image_root o USING (scope, namespace, name)"
            " WHERE r.digest = %(digest)s AND scope = %(scope)s AND namespace = %(home)s"
            " AND NOT r.by_label AND NOT o.by_label"
        )
        with self.reading() as db:
            given = {"digest": str(digest), "scope": self._scope, "home": HOME}
            found = db.execute(query, given).fetchall()
        return tuple(Digest.parse(text) for (text,) in sorted(found) if text != str(digest))

    def named_image(self, namespace: str, name: str) -> NamedImage | None:
        """One image, or None."""
        with self.reading() as db, self._damage_named():
            row = db.execute(f"{_FOUND} AND name = %s", (self._scope, namespace, name)).fetchone()
            return _image(row) if row else None

    def named_images(self, namespace: str) -> list[NamedImage]:
        """A namespace's images, ordered by name."""
        with self.reading() as db, self._damage_named():
            rows = db.execute(f"{_FOUND} ORDER BY name", (self._scope, namespace)).fetchall()
            return [_image(row) for row in rows]

    def remove_named_image(self, namespace: str, name: str) -> bool:
        """Remove an image; say whether it was there."""
        with self.writing() as db:
            key = (self._scope, namespace, name)
            statement = "DELETE FROM named_image WHERE scope = %s AND namespace = %s AND name = %s"
            return db.execute(statement, key).rowcount > 0

    def drop_home_images(self, names: Sequence[str]) -> list[str]:
        """Remove the clients' images by these names in the store's own namespace; return what they held.

        A record hides such an image, so no client could remove it; it goes with the record.
        """
        listed = "scope = %s AND namespace = %s AND name = ANY(%s)"
        values = (self._scope, HOME, list(names))
        with self.writing() as db:
            held = db.execute(f"SELECT DISTINCT digest FROM named_image_root WHERE {listed}", values).fetchall()  # noqa: S608
            if held:
                db.execute(f"DELETE FROM named_image WHERE {listed}", values)  # noqa: S608
        return [text for (text,) in held]

    def _expire_named_images(self) -> int:
        with self.writing() as db:
            return db.execute(f"DELETE FROM named_image WHERE scope = %s AND {_HAS_ENDED}", (self._scope,)).rowcount  # noqa: S608


def _image(row: Sequence[Any]) -> NamedImage:
    namespace, name, media_type, digest, size, annotations, labels, created_at, updated_at, also_keeps = row
    return NamedImage(
        namespace,
        name,
        Descriptor(media_type, Digest.parse(digest), size),
        json.loads(annotations),
        json.loads(labels),
        created_at,
        updated_at,
        tuple(Digest.parse(text) for text in also_keeps),
    )
