"""Leases by id, and what they list: containerd's, with its labels for expiry and flatness."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError
from imagestore.metadata import rows
from imagestore.metadata.records import HOME, Lease
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import LeaseTerms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from imagestore.metadata.sql import Statements
    from imagestore.metadata.tables import Tables

#: The end of a lease that expired and is being deleted: an owner that comes back late must find it gone, not shortened.
_GONE: Final = float("-inf")
#: Contents of expired leases that are deleted in one batch: some milliseconds.
_EXPIRY_BATCH: Final = 512
#: Running work leases for a day. A lease with a longer lifetime outlives a damaged database.
LASTING_SECONDS: Final = 24 * 3600.0 + 60.0
_ONE: Final = "scope = :scope AND id = :lease"
_LISTED: Final = "scope = :scope AND lease = :lease"
_MAKE: Final = (
    "INSERT INTO lease (scope, id, namespace, created_at, expires_at, flat, labels)"
    " VALUES (:scope, :lease, :namespace, :now, coalesce(:ends_at, :now + :seconds), :flat, :labels)"
)
_GONE_CONTENT: Final = (
    "SELECT c.scope, c.lease, c.digest FROM lease l CROSS JOIN lease_content c"
    " WHERE c.scope = l.scope AND c.lease = l.id AND l.expires_at = :gone"
    f" LIMIT {_EXPIRY_BATCH} FOR UPDATE OF c SKIP LOCKED"
)


class Leases:
    """Leases by id.

    Methods that change or read what a lease lists raise LeaseNotFoundError when it is gone.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def create(
        self,
        lease_id: str,
        *,
        lifetime_seconds: float,
        labels: Mapping[str, str] | None = None,
        namespace: str = HOME,
        content: Collection[Digest] = (),
    ) -> Lease:
        """Create a lease.

        Args:
            lease_id: of other namespaces than ``HOME``: lease_key()'s.
            lifetime_seconds: from now; infinite for a lease that only its deletion ends.
            labels: gc.flat and gc.expire mean what they mean in containerd; gc.expire replaces the lifetime.
            namespace: the one it belongs to.
            content: what it lists from the start.

        Raises:
            AlreadyExistsError: the id is taken.
            InvalidInputError: the id is empty, or a label too long.
        """
        if not lease_id:
            raise InvalidInputError("a lease needs an id")
        kept = gc_labels.checked(labels or {})
        values = {
            "lease": lease_id,
            "namespace": namespace,
            "ends_at": rows.lease_end(kept),
            "seconds": lifetime_seconds,
            "flat": LeaseTerms.of(kept).is_flat,
            "labels": json.dumps(kept, sort_keys=True),
        }
        with self._tables.writing() as db:
            with db.pipeline():
                if namespace != HOME:
                    put_namespace(db, namespace)
                db.execute(f"DELETE FROM lease WHERE {_ONE} AND expires_at = :gone", lease=lease_id, gone=_GONE)
                made = db.execute(f"{_MAKE} ON CONFLICT DO NOTHING RETURNING {rows.LEASE_COLUMNS}", **values)
                _list(db, lease_id, content)
            found = made.fetchall()
            if not found:
                name = Lease(lease_id, 0.0, 0.0, namespace=namespace).name
                raise AlreadyExistsError(f"lease {name!r} exists already")
            lease = rows.lease(found[0])
            if _is_lasting(lease):
                self._tables.note_change()
        return lease

    def begin(self, lease_id: str, *, lifetime_seconds: float, content: Collection[Digest]) -> None:
        """Create a lease of running work in ``HOME``; it may be sent to the database together with what follows.

        Args:
            lease_id: which no other lease has or had.
            lifetime_seconds: a day at most.
            content: what it lists from the start.
        """
        values = {"namespace": HOME, "ends_at": None, "seconds": lifetime_seconds, "flat": False, "labels": "{}"}
        with self._tables.writing() as db:
            db.execute(_MAKE, lease=lease_id, **values)
            _list(db, lease_id, content)

    def end(self, lease_id: str) -> None:
        """Delete a lease that begin() made, if it is there; it may be sent together with the commit."""
        with self._tables.writing() as db:
            db.execute(f"DELETE FROM lease WHERE {_ONE}", lease=lease_id)

    def renew(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Set a lease's end to now plus its lifetime, and remove a gc.expire label."""
        with self._tables.writing() as db:
            before = _there(db, lease_id, " FOR UPDATE")
            # A label that names an earlier end would say what is no longer true.
            labels = {key: value for key, value in before.labels.items() if key != gc_labels.EXPIRE}
            row = db.row(
                f"UPDATE lease SET expires_at = :now + :seconds, labels = :labels WHERE {_ONE}"
                f" RETURNING {rows.LEASE_COLUMNS}",
                seconds=lifetime_seconds,
                labels=json.dumps(labels, sort_keys=True),
                lease=lease_id,
            )
            assert row is not None
            after = rows.lease(row)
            if _is_lasting(before) or _is_lasting(after):
                self._tables.note_change()

    def delete(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Delete a lease; return whether it existed.

        Args:
            lease_id: its id.
            is_of_work: finished work deletes its own lease; the ballast of a full disk is not released for that.
        """
        with self._tables.writing() if is_of_work else self._tables.removing() as db:
            row = db.row(f"DELETE FROM lease WHERE {_ONE} RETURNING {rows.LEASE_COLUMNS}", lease=lease_id)
            if row is not None and _is_lasting(rows.lease(row)):
                self._tables.note_change()
            return row is not None

    def get(self, lease_id: str) -> Lease | None:
        """One lease, also an expired one."""
        return next(iter(self._found("id = :lease", lease=lease_id)), None)

    def find(self, *, namespace: str | None = None) -> list[Lease]:
        """Every lease, or those of a namespace; expired ones too."""
        return self._found("TRUE") if namespace is None else self._found("namespace = :name", name=namespace)

    def _found(self, condition: str, **values: str) -> list[Lease]:
        with self._tables.reading() as db, self._tables.naming_damage():
            return _leases(db, condition, **values)

    def content(self, lease_id: str) -> tuple[Digest, ...]:
        """The content that a lease lists."""
        with self._tables.snapshot() as db:
            _there(db, lease_id)
            return _content(db, lease_id)

    def add_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Add content to a lease, before looking whether it is present."""
        with self._tables.writing() as db:
            lease = _there(db, lease_id, " FOR KEY SHARE")
            if _list(db, lease_id, digests) and _is_lasting(lease):
                self._tables.note_change()

    def remove_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Remove content from a lease; what it doesn't list is ignored."""
        with self._tables.removing() as db:
            lease = _there(db, lease_id, " FOR KEY SHARE")
            query = f"DELETE FROM lease_content WHERE {_LISTED} AND digest IN (SELECT value FROM EACH(:texts) t)"
            db.run(query, lease=lease_id, texts=[str(digest) for digest in digests])
            if _is_lasting(lease):
                self._tables.note_change()

    def images(self, lease_id: str) -> tuple[str, ...]:
        """The names of images that a lease lists."""
        with self._tables.snapshot() as db:
            _there(db, lease_id)
            return tuple(db.texts(f"SELECT name FROM lease_image WHERE {_LISTED} ORDER BY name", lease=lease_id))

    def add_image(self, lease_id: str, name: str, handler: str) -> None:
        """Add the name of an image, which need not exist, to a lease.

        As long as the lease lasts, neither gc.expire nor a policy removes the image. A removal does, as in containerd.

        Args:
            lease_id: its id.
            name: of an image in the lease's namespace.
            handler: in ``HOME``, the handler of the record that a name without a handler means.
        """
        with self._tables.writing() as db:
            _there(db, lease_id, " FOR KEY SHARE")
            db.run(
                "INSERT INTO lease_image (scope, lease, name, handler) VALUES (:scope, :lease, :name, :handler)"
                " ON CONFLICT (scope, lease, name) DO UPDATE SET handler = excluded.handler",
                lease=lease_id,
                name=name,
                handler=handler,
            )

    def remove_image(self, lease_id: str, name: str) -> None:
        """Remove the name of an image from a lease; what it doesn't list is ignored."""
        with self._tables.removing() as db:
            _there(db, lease_id, " FOR KEY SHARE")
            db.run(f"DELETE FROM lease_image WHERE {_LISTED} AND name = :name", lease=lease_id, name=name)

    def leased_records(self) -> frozenset[str]:
        """What unexpired leases of ``HOME`` name, as ``reference@handler`` each."""
        query = (
            "SELECT i.name, i.handler FROM lease_image i JOIN lease l ON l.scope = i.scope AND l.id = i.lease"
            " WHERE i.scope = :scope AND l.namespace = :home AND l.expires_at > :now"
        )
        with self._tables.reading() as db:
            return rows.leased_records(db.rows(query, home=HOME))

    def expire(self) -> int:
        """Delete expired leases of every scope: end them for good, then what they list in batches, then themselves."""
        some = "SELECT scope, id FROM lease WHERE {0} ORDER BY scope, id FOR UPDATE SKIP LOCKED"
        with self._tables.writing() as db:
            ended = some.format("expires_at <= :now")
            db.run(f"UPDATE lease SET expires_at = :gone WHERE (scope, id) IN ({ended})", gone=_GONE)
        while True:
            with self._tables.batch() as db:
                query = f"DELETE FROM lease_content WHERE (scope, lease, digest) IN ({_GONE_CONTENT})"
                if not db.run(query, gone=_GONE):
                    emptied = some.format("expires_at = :gone")
                    return db.run(f"DELETE FROM lease WHERE (scope, id) IN ({emptied})", gone=_GONE)


def put_namespace(db: Statements, name: str) -> None:
    """Create a namespace that doesn't exist."""
    db.execute("INSERT INTO namespace (scope, name) VALUES (:scope, :name) ON CONFLICT DO NOTHING", name=name)


def _is_lasting(lease: Lease) -> bool:
    return lease.expires_at - lease.created_at > LASTING_SECONDS


def _leases(db: Statements, condition: str, *, lock: str = "", **values: str) -> list[Lease]:
    query = f"SELECT {rows.LEASE_COLUMNS} FROM lease WHERE scope = :scope AND expires_at > :gone AND {condition}"
    return [rows.lease(row) for row in db.rows(f"{query} ORDER BY id{lock}", gone=_GONE, **values)]


def _there(db: Statements, lease_id: str, lock: str = "") -> Lease:
    """A lease; with a lock it stays while the transaction lasts.

    Raises:
        LeaseNotFoundError: it is gone.
    """
    for lease in _leases(db, "id = :lease", lock=lock, lease=lease_id):
        return lease
    raise rows.no_lease(lease_id)


def _content(db: Statements, lease_id: str) -> tuple[Digest, ...]:
    return tuple(
        map(Digest.parse, db.texts(f"SELECT digest FROM lease_content WHERE {_LISTED} ORDER BY digest", lease=lease_id))
    )


def _list(db: Statements, lease_id: str, digests: Collection[Digest]) -> bool:
    """Put digests under a lease; return whether any is new there, unless in a pipeline."""
    if not digests:
        return False
    made = db.execute(
        "INSERT INTO lease_content (scope, lease, digest) SELECT :scope, :lease, value FROM EACH(:texts) t WHERE TRUE"
        " ON CONFLICT DO NOTHING",
        lease=lease_id,
        texts=sorted({str(digest) for digest in digests}),
    )
    return made.rowcount > 0
