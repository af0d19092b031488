"""Leases in the database: containerd's, with its labels for expiry and flatness."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError, LeaseNotFoundError
from imagestore.metadata.namespace_api import HOME
from imagestore.metadata.records import Lease
from imagestore.metadata.sqlite import journal_lines as lines
from imagestore.metadata.sqlite.database import Database
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import LeaseTerms

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping

#: When a lease ends that expired and is being deleted.
_GONE: Final = float("-inf")
#: Contents of expired leases that go in one batch: some milliseconds.
_EXPIRY_BATCH: Final = 512


#: Running work leases for a day; what lives longer was made to last, and outlives a damaged database.
LASTING_SECONDS: Final = 24 * 3600.0 + 60.0


class LeaseTables(Database):
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
        now = self._clock()
        # As in containerd a lease whose gc.expire can't be read stays until it is deleted.
        expires_at = terms.expires_at if gc_labels.EXPIRE in kept else now + lifetime_seconds
        lease = Lease(lease_id, now, expires_at, terms.is_flat, kept, namespace)
        with self._writing() as db:
            db.execute("DELETE FROM lease WHERE id = ? AND expires_at = ?", (lease_id, _GONE))
            if db.execute("SELECT 1 FROM lease WHERE id = ?", (lease_id,)).fetchone():
                raise AlreadyExistsError(f"lease {lease.name!r} exists already")
            if namespace != HOME:
                db.execute("INSERT OR IGNORE INTO namespace (name) VALUES (?)", (namespace,))
            values = (lease.id, now, expires_at, int(lease.is_flat), json.dumps(kept, sort_keys=True), namespace)
            columns = "id, created_at, expires_at, flat, labels, namespace"
            db.execute(f"INSERT INTO lease ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608 - constants
            _list(db, lease_id, content)
            self._note(lease_id)
        return lease

    def renew_lease(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Move a lease's end to now plus its lifetime."""
        with self._writing() as db:
            was_lasting = bool(self._lasting(lease_id))
            end = self._clock() + lifetime_seconds
            # A label that names an earlier end would say what is no longer true.
            query = "UPDATE lease SET expires_at = ?, labels = json_remove(labels, ?) WHERE id = ? AND expires_at > ?"
            if not db.execute(query, (end, f'$."{gc_labels.EXPIRE}"', lease_id, _GONE)).rowcount:
                raise _no_lease(lease_id)
            if was_lasting and not self._lasting(lease_id):
                self._note_end(lease_id)  # the journal isn't written when it goes
            self._note(lease_id)

    def lease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Put digests under a lease, before their presence is looked at."""
        with self._writing() as db:
            _check_lease(db, lease_id)
            if _list(db, lease_id, digests):
                for lease in self._lasting(lease_id):
                    self._journal.put_leased(self._number_change(), lease, digests)

    def leased_content(self, lease_id: str) -> tuple[Digest, ...]:
        """What a lease lists.

        Raises:
            LeaseNotFoundError: it is gone.
        """
        with self._snapshot() as db:
            _check_lease(db, lease_id)
            found = db.execute("SELECT digest FROM lease_content WHERE lease = ? ORDER BY digest", (lease_id,))
            return tuple(Digest.parse(text) for (text,) in found.fetchall())

    def unlease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Take digests off a lease; those it doesn't list are no error.

        Raises:
            LeaseNotFoundError: it is gone.
        """
        with self._removing() as db:
            _check_lease(db, lease_id)
            pairs = [(lease_id, str(digest)) for digest in digests]
            db.executemany("DELETE FROM lease_content WHERE lease = ? AND digest = ?", pairs)
            for lease in self._lasting(lease_id):
                number = self._number_change(
                    lambda number: [lines.unleased(number, lease_id, part) for part in lines.parts(digests)]
                )
                self._after_commit.append(functools.partial(self._journal.unlease, number, lease.id, tuple(digests)))

    def lease_image(self, lease_id: str, name: str, handler: str) -> None:
        """Put the name of an image under a lease, which needs no image of that name.

        As long as the lease lasts, neither gc.expire nor a policy takes the image. A removal does, as in containerd.

        Args:
            lease_id: which.
            name: of an image in the lease's namespace.
            handler: whose record a name without a handler means, in the store's own namespace.

        Raises:
            LeaseNotFoundError: it is gone.
        """
        with self._writing() as db:
            _check_lease(db, lease_id)
            db.execute("INSERT OR REPLACE INTO lease_image VALUES (?, ?, ?)", (lease_id, name, handler))

    def unlease_image(self, lease_id: str, name: str) -> None:
        """Take the name of an image off a lease; one that it doesn't list is no error.

        Raises:
            LeaseNotFoundError: it is gone.
        """
        with self._removing() as db:
            _check_lease(db, lease_id)
            db.execute("DELETE FROM lease_image WHERE lease = ? AND name = ?", (lease_id, name))

    def leased_images(self, lease_id: str) -> tuple[str, ...]:
        """The names of images that a lease lists.

        Raises:
            LeaseNotFoundError: it is gone.
        """
        with self._snapshot() as db:
            _check_lease(db, lease_id)
            found = db.execute("SELECT name FROM lease_image WHERE lease = ? ORDER BY name", (lease_id,))
            return tuple(name for (name,) in found.fetchall())

    def leased_records(self) -> frozenset[str]:
        """What unexpired leases of the store's own namespace name, as ``reference@handler`` each."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT name, lease_image.handler FROM lease_image JOIN lease ON lease = id"
                " WHERE namespace = ? AND expires_at > ?",
                (HOME, self._clock()),
            ).fetchall()
        # A name may have a handler behind it already.
        return frozenset(text for name, handler in rows for text in (name, f"{name}@{handler}"))

    def delete_lease(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Release a lease; say whether it was there."""
        with self._writing() if is_of_work else self._removing() as db:
            query = "DELETE FROM lease WHERE id = ? RETURNING expires_at - created_at"
            found = db.execute(query, (lease_id,)).fetchall()
            if found and found[0][0] > LASTING_SECONDS:
                self._note_end(lease_id)
            return bool(found)

    def leases(self, *, namespace: str | None = None) -> Iterator[Lease]:
        """Every lease, or those of a namespace; expired ones too."""
        if namespace is None:
            return iter(self._find_leases("expires_at > ?", _GONE))
        return iter(self._find_leases("expires_at > ? AND namespace = ?", _GONE, namespace))

    def lease(self, lease_id: str) -> Lease | None:
        """One lease, also when it expired; None when there is none."""
        return next(iter(self._find_leases("id = ? AND expires_at > ?", lease_id, _GONE)), None)

    def _find_leases(self, condition: str, *values: str | float) -> list[Lease]:
        with self._reading() as db, self._damage_named():
            return _selected(db, condition, *values)

    def _lasting_leases(self, db: sqlite3.Connection) -> Iterator[tuple[Lease, tuple[Digest, ...]]]:
        for lease in _selected(db, "expires_at - created_at > ?", LASTING_SECONDS):
            listed = db.execute("SELECT digest FROM lease_content WHERE lease = ? ORDER BY digest", (lease.id,))
            yield lease, tuple(Digest.parse(text) for (text,) in listed.fetchall())

    def _lasting(self, lease_id: str) -> list[Lease]:
        return self._find_leases("id = ? AND expires_at - created_at > ?", lease_id, LASTING_SECONDS)

    def _note(self, lease_id: str) -> None:
        """Write a lasting lease into the journal; those of running work die with a damaged database."""
        for lease in self._lasting(lease_id):
            self._journal.put_lease(self._number_change(), lease, self.leased_content(lease_id))

    def _note_end(self, lease_id: str) -> None:
        """Take a lease that is gone, or lasts no more, out of the journal."""
        number = self._number_change(lambda number: [lines.release(number, lease_id)])
        self._after_commit.append(functools.partial(self._journal.release, number, lease_id))

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


def _selected(db: sqlite3.Connection, condition: str, *values: str | float) -> list[Lease]:
    query = f"SELECT id, created_at, expires_at, flat, labels, namespace FROM lease WHERE {condition} ORDER BY id"  # noqa: S608
    return [
        Lease(lease_id, created_at, expires_at, bool(flat), json.loads(labels), namespace)
        for lease_id, created_at, expires_at, flat, labels, namespace in db.execute(query, values).fetchall()
    ]


def _list(db: sqlite3.Connection, lease_id: str, digests: Collection[Digest]) -> int:
    """Put digests under a lease; return how many are new there."""
    pairs = [(lease_id, str(digest)) for digest in digests]
    return db.executemany("INSERT OR IGNORE INTO lease_content VALUES (?, ?)", pairs).rowcount


def _check_lease(db: sqlite3.Connection, lease_id: str) -> None:
    if not db.execute("SELECT 1 FROM lease WHERE id = ? AND expires_at > ?", (lease_id, _GONE)).fetchone():
        raise _no_lease(lease_id)


def _no_lease(lease_id: str) -> LeaseNotFoundError:
    return LeaseNotFoundError(f"lease {lease_id!r} does not exist or was released")
