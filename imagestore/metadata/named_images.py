"""Images of containerd's clients, by namespace and name; their targets and what their labels name are roots."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.metadata import rows
from imagestore.metadata.leases import put_namespace
from imagestore.metadata.records import HOME, NamedImage
from imagestore.oci import digest as digests
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.metadata.sql import Statements
    from imagestore.metadata.tables import Tables

_IS_LEASED: Final = (
    "EXISTS (SELECT 1 FROM lease_image i JOIN lease n ON n.scope = i.scope AND n.id = i.lease"
    " WHERE i.scope = named_image.scope AND i.name = named_image.name AND n.namespace = named_image.namespace"
    " AND n.expires_at > :now{0})"
)
#: Whether a named image keeps content: it has not expired, or a lease that isn't flat names it.
IS_ALIVE: Final = f"(named_image.expires_at > :now OR {_IS_LEASED.format(' AND NOT n.flat')})"
_HAS_ENDED: Final = f"named_image.expires_at <= :now AND NOT {_IS_LEASED.format('')}"
_COLUMNS: Final = [*rows.NAMED_IMAGE_COLUMNS.split(", "), "expires_at"]
_PUT: Final = (
    f"INSERT INTO named_image (scope, {', '.join(_COLUMNS)})"
    f" VALUES (:scope, {', '.join(f':{name}' for name in _COLUMNS)})"
    " ON CONFLICT (scope, namespace, name) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[2:])
)
_PUT_ROOTS: Final = (
    "INSERT INTO named_image_root (scope, namespace, name, digest, by_label)"
    " SELECT :scope, :namespace, :name, value, {0} FROM EACH(:texts) t"
)
_FOUND: Final = (
    f"SELECT {rows.NAMED_IMAGE_COLUMNS}, (SELECT LIST(digest) FROM (SELECT digest FROM named_image_root r"
    " WHERE r.scope = i.scope AND r.namespace = i.namespace AND r.name = i.name AND r.digest <> i.digest"
    " AND NOT by_label ORDER BY r.digest) o) FROM named_image i WHERE scope = :scope AND namespace = :namespace"
)
_ONE: Final = "scope = :scope AND namespace = :namespace AND name = :name"


class NamedImages:
    """Images by namespace and name, as clients of containerd's services make them."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def put(self, image: NamedImage) -> NamedImage:
        """Insert or replace an image, with the caller's times; returns it as stored.

        Raises:
            InvalidInputError: a label is too long.
        """
        key = {"namespace": image.namespace, "name": image.name}
        values = dict(zip(_COLUMNS, rows.named_image_values(image), strict=True))
        roots = rows.named_image_roots(image)
        with self._tables.writing() as db:
            self._tables.note_change()
            with db.pipeline():
                put_namespace(db, image.namespace)
                db.execute(_PUT, **values)
                db.execute(f"DELETE FROM named_image_root WHERE {_ONE}", **key)
                for by_label, said in ((False, "FALSE"), (True, "TRUE")):
                    texts = [text for text, is_label in roots.items() if is_label is by_label]
                    db.execute(_PUT_ROOTS.format(said), texts=texts, **key)
            found = self.get(image.namespace, image.name)
        assert found is not None
        return found

    def get(self, namespace: str, name: str) -> NamedImage | None:
        """One image."""
        with self._tables.reading() as db, self._tables.naming_damage():
            row = db.row(f"{_FOUND} AND name = :name", namespace=namespace, name=name)
            return _image(row) if row else None

    def find(self, namespace: str) -> list[NamedImage]:
        """A namespace's images, ordered by name."""
        with self._tables.reading() as db, self._tables.naming_damage():
            return [_image(row) for row in db.rows(f"{_FOUND} ORDER BY name", namespace=namespace)]

    def remove(self, namespace: str, name: str) -> bool:
        """Remove an image; return whether it existed."""
        with self._tables.removing() as db:
            return self._delete(db, _ONE, namespace=namespace, name=name) > 0

    def drop_home(self, names: Sequence[str]) -> list[str]:
        """Remove images of ``HOME``; return the digests that they held, as texts.

        A record hides such an image, so no client could remove it; it is removed with the record.
        """
        given = "scope = :scope AND namespace = :home AND name IN (SELECT value FROM EACH(:texts) t)"
        with self._tables.removing() as db, self._tables.naming_damage():
            if not db.row("SELECT 1 FROM named_image WHERE scope = :scope AND namespace = :home LIMIT 1", home=HOME):
                return []
            values = {"home": HOME, "texts": list(names)}
            held = db.texts(f"SELECT DISTINCT digest FROM named_image_root WHERE {given}", **values)
            for text in held:
                digests.check(text)
            self._delete(db, given, **values)
        return held

    def kept_with(self, digest: Digest) -> tuple[Digest, ...]:
        """What the records and named images of ``HOME`` hold besides this digest, for a new name of it to keep too."""
        query = (
            "SELECT o.digest FROM image_root r JOIN image_root o USING (scope, reference, handler)"
            " WHERE scope = :scope AND r.digest = :digest AND NOT r.by_label AND NOT o.by_label UNION"
            " SELECT o.digest FROM named_image_root r JOIN named_image_root o USING (scope, namespace, name)"
            " WHERE scope = :scope AND r.digest = :digest AND namespace = :home AND NOT r.by_label AND NOT o.by_label"
        )
        with self._tables.reading() as db:
            found = db.texts(query, digest=str(digest), home=HOME)
        return tuple(Digest.parse(text) for text in sorted(found) if text != str(digest))

    def expire(self) -> int:
        """Remove images whose gc.expire label is past and that no lease names; return how many."""
        with self._tables.writing() as db:
            return self._delete(db, f"scope = :scope AND {_HAS_ENDED}")

    def _delete(self, db: Statements, condition: str, **values: object) -> int:
        count = db.run(f"DELETE FROM named_image WHERE {condition}", **values)
        if count:
            self._tables.note_change()
        return count


def _image(row: Sequence[Any]) -> NamedImage:
    return rows.named_image(row[:-1], json.loads(row[-1]))
