"""The index of the bucket: which object holds which content, uploads in progress, and objects to delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentUnavailableError
from imagestore.metadata.postgres.database import NOW, PostgresDatabase
from imagestore.metadata.records import ObjectRow
from imagestore.oci.digest import Digest, as_written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from imagestore.metadata.postgres.flights import Flights, OwnFlight

#: An upload that wasn't renewed for so long is given up; its owner renews it every minute.
UPLOAD_SECONDS: Final = 1800.0
_PAGE: Final = 5000
_COLUMNS: Final = "digest, size, object, stored_at"


class PostgresObjectIndex:
    """The content room's ``ObjectIndex`` in the tables of a shared store.

    Args:
        database: its transactions are joined.
        flights: single flight over all machines.
    """

    def __init__(self, database: PostgresDatabase, flights: Flights) -> None:
        self._database = database
        self._flights = flights

    def find(self, digest: Digest) -> ObjectRow | None:
        """Where content is, or None; see the port."""
        return self.find_all([digest]).get(digest)

    def find_all(self, digests: Collection[Digest]) -> dict[Digest, ObjectRow]:
        """As find() for several, in one statement."""
        with self._database.reading() as db:
            # In order, so that transactions don't deadlock.
            query = f"SELECT {_COLUMNS} FROM content WHERE digest = ANY(%s) ORDER BY digest FOR SHARE"
            rows = db.execute(query, ([str(digest) for digest in digests],)).fetchall()
        found = {text: (size, key, stored_at) for text, size, key, stored_at in rows}
        return {digest: ObjectRow(digest, *found[str(digest)]) for digest in digests if str(digest) in found}

    def names(self) -> Iterator[str]:
        """Every content's digest in text form, in no particular order."""
        return (str(each.digest) for each in self.walk())

    def walk(self) -> Iterator[ObjectRow]:
        """All content, read in pages."""
        last = ""
        while True:
            with self._database.reading() as db:
                query = f"SELECT {_COLUMNS} FROM content WHERE digest > %s ORDER BY digest LIMIT {_PAGE}"
                rows = db.execute(query, (last,)).fetchall()
            for text, size, key, stored_at in rows:
                yield ObjectRow(as_written(text), size, key, stored_at)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def begin_upload(self, key: str) -> None:
        """Note an object before its first byte is sent."""
        with self._database.writing() as db:
            query = f"INSERT INTO upload VALUES (%s, {NOW} + %s) ON CONFLICT DO NOTHING"
            db.execute(query, (key, UPLOAD_SECONDS))

    def renew_upload(self, key: str) -> None:
        """Extend an upload's time."""
        with self._database.writing() as db:
            query = f"UPDATE upload SET expires_at = {NOW} + %s WHERE object = %s"
            if not db.execute(query, (UPLOAD_SECONDS, key)).rowcount:
                raise self._given_up(key)

    def publish(self, digest: Digest, size: int, key: str) -> bool:
        """Make an uploaded object the content of a digest; see the port."""
        with self._database.writing() as db:
            if not db.execute("DELETE FROM upload WHERE object = %s", (key,)).rowcount:
                # Repeated after a commit whose answer was lost: done already.
                same = db.execute("SELECT 1 FROM content WHERE digest = %s AND object = %s", (str(digest), key))
                if same.fetchone() is None:
                    raise self._given_up(key)
                return True
            insert = f"INSERT INTO content VALUES (%s, %s, %s, {NOW}) ON CONFLICT DO NOTHING"
            is_ours = db.execute(insert, (str(digest), size, key)).rowcount > 0
            if not is_ours:
                db.execute("INSERT INTO doomed VALUES (%s) ON CONFLICT DO NOTHING", (key,))
            return is_ours

    def abandon_upload(self, key: str) -> None:
        """An upload failed, perhaps after it was given up: mark what exists of its object for deletion."""
        with self._database.writing() as db:
            # Waits for a publish() whose answer was lost; the next statement sees its result.
            db.execute("DELETE FROM upload WHERE object = %s", (key,))
            db.execute(
                "INSERT INTO doomed SELECT %(key)s WHERE NOT EXISTS (SELECT FROM content WHERE object = %(key)s)"
                " ON CONFLICT DO NOTHING",
                {"key": key},
            )

    def remove(self, texts: Sequence[str]) -> dict[str, int]:
        """Remove content; its objects may be deleted once that is committed."""
        with self._database.writing() as db:
            # What was absent when a sweep looked may have been published since, under a lease.
            texts = self._database.deletable(texts)
            rows = db.execute(
                "WITH gone AS (DELETE FROM content WHERE digest = ANY(%s) RETURNING digest, size, object),"
                " noted AS (INSERT INTO doomed SELECT object FROM gone ON CONFLICT DO NOTHING)"
                " SELECT digest, size FROM gone",
                (list(texts),),
            ).fetchall()
        return dict(rows)

    def remove_object(self, digest: Digest, key: str) -> bool:
        """As remove(), but only while this very object is the content."""
        with self._database.writing() as db:
            return (
                db.execute(
                    "WITH gone AS (DELETE FROM content WHERE digest = %s AND object = %s RETURNING object)"
                    " INSERT INTO doomed SELECT object FROM gone ON CONFLICT DO NOTHING",
                    (str(digest), key),
                ).rowcount
                > 0
            )

    def doomed(self, most: int) -> list[str]:
        """Keys of objects to delete; none inside a transaction, which may have added some and still fail."""
        if self._database.is_in_transaction:
            return []
        with self._database.reading() as db:
            return [key for (key,) in db.execute("SELECT object FROM doomed ORDER BY object LIMIT %s", (most,))]

    def forget_doomed(self, keys: Collection[str]) -> None:
        """These objects were deleted."""
        with self._database.writing() as db:
            db.execute("DELETE FROM doomed WHERE object = ANY(%s)", (list(keys),))

    def expire_uploads(self) -> int:
        """Give up uploads that weren't renewed in time."""
        with self._database.writing() as db:
            return db.execute(
                "WITH gone AS (DELETE FROM upload WHERE object IN (SELECT object FROM upload"
                f" WHERE expires_at <= {NOW} FOR UPDATE SKIP LOCKED) RETURNING object)"
                " INSERT INTO doomed SELECT object FROM gone ON CONFLICT DO NOTHING"
            ).rowcount

    def try_flight(self, digest: Digest) -> OwnFlight | None:
        """Be the only one of all machines that fetches a digest; None while another one does."""
        return self._flights.try_begin(str(digest))

    def _given_up(self, key: str) -> ContentUnavailableError:
        return ContentUnavailableError(
            f"{self._database.name}: the upload of {key} was given up, since nothing was heard of it for too long",
            hint="try again",
        )
