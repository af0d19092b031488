"""Images of containerd's clients in SQLite, by namespace and name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata import rows
from imagestore.metadata.records import HOME, NamedImage
from imagestore.metadata.sqlite.failures import naming_damage
from imagestore.oci import digest as digests
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.metadata.sqlite.database import Database

_IS_LEASED: Final = (
    "EXISTS (SELECT 1 FROM lease_image i JOIN lease l ON i.lease = l.id WHERE i.name = named_image.name"
    " AND l.namespace = named_image.namespace AND l.expires_at > :now{})"
)
#: Whether a named image keeps content: it has not expired, or a lease that isn't flat names it.
IS_ALIVE: Final = f"(named_image.expires_at > :now OR {_IS_LEASED.format(' AND NOT l.flat')})"
_HAS_ENDED: Final = f"named_image.expires_at <= :now AND NOT {_IS_LEASED.format('')}"
_FOUND: Final = (
    f"SELECT {rows.NAMED_IMAGE_COLUMNS}, (SELECT json_group_array(digest) FROM named_image_root r"  # noqa: S608 - constants
    " WHERE r.namespace = i.namespace AND r.name = i.name AND r.digest <> i.digest AND NOT by_label) FROM named_image i"
)


class SqliteNamedImages:
    """Named images; their targets and what their labels name are roots of their namespace."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, image: NamedImage) -> NamedImage:
        """Insert or replace an image, with the caller's times; returns it as stored."""
        values, key = rows.named_image_values(image), (image.namespace, image.name)
        with self._database.writing() as db:
            db.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (image.namespace,))
            db.execute(
                f"INSERT OR REPLACE INTO named_image ({rows.NAMED_IMAGE_COLUMNS}, expires_at)"  # noqa: S608 - constants
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            db.execute("DELETE FROM named_image_root WHERE namespace = ? AND name = ?", key)
            roots = [(*key, *each) for each in rows.named_image_roots(image).items()]
            db.executemany("INSERT INTO named_image_root VALUES (?, ?, ?, ?)", roots)
            found = self.get(*key)
        assert found is not None
        return found

    def kept_with(self, digest: Digest) -> tuple[Digest, ...]:
        """What the records and named images of ``HOME`` hold besides this digest, for a new name of it to keep too."""
        with self._database.snapshot() as db:
            found = db.execute(
                "SELECT o.digest FROM image_root r JOIN image_root o USING (reference, handler)"
                " WHERE r.digest = :digest AND NOT r.by_label AND NOT o.by_label UNION"
                " SELECT o.digest FROM named_image_root r JOIN named_image_root o USING (namespace, name)"
                " WHERE r.digest = :digest AND namespace = 'k8s.io' AND NOT r.by_label AND NOT o.by_label",
                {"digest": str(digest)},
            ).fetchall()
        return tuple(Digest.parse(text) for (text,) in sorted(found) if text != str(digest))

    def get(self, namespace: str, name: str) -> NamedImage | None:
        """One image."""
        with self._database.reading() as db:
            row = db.execute(f"{_FOUND} WHERE namespace = ? AND name = ?", (namespace, name)).fetchone()
            with naming_damage(self._database.path):
                return _image(row) if row else None

    def find(self, namespace: str) -> list[NamedImage]:
        """A namespace's images, ordered by name."""
        with self._database.reading() as db:
            found = db.execute(f"{_FOUND} WHERE namespace = ? ORDER BY name", (namespace,)).fetchall()
            with naming_damage(self._database.path):
                return [_image(row) for row in found]

    def remove(self, namespace: str, name: str) -> bool:
        """Remove an image; return whether it existed."""
        with self._database.removing() as db:
            key = (namespace, name)
            return db.execute("DELETE FROM named_image WHERE namespace = ? AND name = ?", key).rowcount > 0

    def drop_home(self, names: Sequence[str]) -> list[str]:
        """Remove images of ``HOME``; return the digests that they held, as texts."""
        with self._database.removing() as db:
            if not db.execute("SELECT 1 FROM named_image WHERE namespace = ? LIMIT 1", (HOME,)).fetchone():
                return []
            listed = "namespace = ? AND name IN (SELECT value FROM json_each(?))"
            values = (HOME, json.dumps(list(names)))
            held = db.execute(f"SELECT DISTINCT digest FROM named_image_root WHERE {listed}", values).fetchall()  # noqa: S608 - a constant
            db.execute(f"DELETE FROM named_image WHERE {listed}", values)  # noqa: S608
            with naming_damage(self._database.path):
                for (text,) in held:
                    digests.check(text)
        return [text for (text,) in held]

    def expire(self) -> int:
        """Remove images whose gc.expire label is past and that no lease names; return how many."""
        with self._database.writing() as db:
            return db.execute(f"DELETE FROM named_image WHERE {_HAS_ENDED}", {"now": self._database.clock()}).rowcount  # noqa: S608 - a constant


def _image(row: Sequence[Any]) -> NamedImage:
    return rows.named_image(row[:-1], json.loads(row[-1]))
