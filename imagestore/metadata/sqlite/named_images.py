"""Images by namespace and name, as clients of containerd's services make them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata.namespace_api import HOME, NamedImage
from imagestore.metadata.sqlite.database import Database
from imagestore.oci import digest as digests
from imagestore.oci import gc_labels
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms, LeaseTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

_IS_LEASED: Final = (
    "EXISTS (SELECT 1 FROM lease_image i JOIN lease l ON i.lease = l.id WHERE i.name = named_image.name"
    " AND l.namespace = named_image.namespace AND l.expires_at > :now{})"
)
#: Whether a named image keeps content: it has not expired, or a lease that isn't flat names it.
IS_ALIVE: Final = f"(named_image.expires_at > :now OR {_IS_LEASED.format(' AND NOT l.flat')})"
_HAS_ENDED: Final = f"named_image.expires_at <= :now AND NOT {_IS_LEASED.format('')}"
_COLUMNS: Final = "namespace, name, media_type, digest, size, annotations, labels, created_at, updated_at"
_FOUND: Final = (
    f"SELECT {_COLUMNS}, (SELECT json_group_array(digest) FROM named_image_root r WHERE r.namespace = i.namespace"  # noqa: S608 - constants
    " AND r.name = i.name AND r.digest <> i.digest AND NOT by_label) FROM named_image i"
)


class NamedImageTables(Database):
    """Named images; their targets and what their labels name are roots of their namespace."""

    def put_named_image(self, image: NamedImage) -> NamedImage:
        """Insert or replace an image; its times are the caller's.

        Returns:
            The image as stored.

        Raises:
            InvalidInputError: a label is too long.
        """
        labels = gc_labels.checked(image.labels)
        values = (
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
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (image.namespace,))
            db.execute(
                f"INSERT OR REPLACE INTO named_image ({_COLUMNS}, expires_at)"  # noqa: S608 - constants
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            key = (image.namespace, image.name)
            db.execute("DELETE FROM named_image_root WHERE namespace = ? AND name = ?", key)
            held = {str(digest): 1 for digest in ContentTerms.of(labels).references}
            # What is kept for another reason too stays when the label goes.
            held |= {str(digest): 0 for digest in (image.target.digest, *image.also_keeps)}
            db.executemany("INSERT INTO named_image_root VALUES (?, ?, ?, ?)", [(*key, *each) for each in held.items()])
            found = self.named_image(*key)
        assert found is not None
        return found

    def kept_with(self, digest: Digest) -> tuple[Digest, ...]:
        """What the store's records and named images hold besides this digest, so that a new name for it may too."""
        with self._snapshot() as db:
            found = db.execute(
                "SELECT o.digest FROM image_root r JOIN image_root o USING (reference, handler)"
                " WHERE r.digest = :digest AND NOT r.by_label AND NOT o.by_label UNION"
                " SELECT o.digest FROM named_image_root r JOIN named_image_root o USING (namespace, name)"
                " WHERE r.digest = :digest AND namespace = 'k8s.io' AND NOT r.by_label AND NOT o.by_label",
                {"digest": str(digest)},
            ).fetchall()
        return tuple(Digest.parse(text) for (text,) in sorted(found) if text != str(digest))

    def named_image(self, namespace: str, name: str) -> NamedImage | None:
        """One image, or None."""
        with self._reading() as db:
            row = db.execute(f"{_FOUND} WHERE namespace = ? AND name = ?", (namespace, name)).fetchone()
            with self._damage_named():
                return _image(row) if row else None

    def named_images(self, namespace: str) -> list[NamedImage]:
        """A namespace's images, ordered by name."""
        with self._reading() as db:
            rows = db.execute(f"{_FOUND} WHERE namespace = ? ORDER BY name", (namespace,)).fetchall()
            with self._damage_named():
                return [_image(row) for row in rows]

    def remove_named_image(self, namespace: str, name: str) -> bool:
        """Remove an image; say whether it was there."""
        with self._removing() as db:
            key = (namespace, name)
            return db.execute("DELETE FROM named_image WHERE namespace = ? AND name = ?", key).rowcount > 0

    def drop_home_images(self, names: Sequence[str]) -> list[str]:
        """Remove the clients' images by these names in the store's own namespace; return what they held, in text form.

        A record hides such an image, so no client could remove it; it goes with the record.
        """
        with self._removing() as db:
            if not db.execute("SELECT 1 FROM named_image WHERE namespace = ? LIMIT 1", (HOME,)).fetchone():
                return []
            listed = "namespace = ? AND name IN (SELECT value FROM json_each(?))"
            values = (HOME, json.dumps(list(names)))
            held = db.execute(f"SELECT DISTINCT digest FROM named_image_root WHERE {listed}", values).fetchall()  # noqa: S608 - a constant
            db.execute(f"DELETE FROM named_image WHERE {listed}", values)  # noqa: S608
            with self._damage_named():
                for (text,) in held:
                    digests.check(text)
        return [text for (text,) in held]

    def _expire_named_images(self) -> int:
        with self._writing() as db:
            return db.execute(f"DELETE FROM named_image WHERE {_HAS_ENDED}", {"now": self._clock()}).rowcount  # noqa: S608 - a constant


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
        tuple(Digest.parse(text) for text in json.loads(also_keeps)),
    )
