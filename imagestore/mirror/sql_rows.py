"""A mirror's rows in SQL, over a database that runs transactions.

In PostgreSQL these are meant for READ COMMITTED: once it holds the lock, a transaction sees what others have committed.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from imagestore.mirror import sql_statements as sql
from imagestore.mirror.catalogue_rows import CachedTag, KnownContent, Leaving, Outcome, Try
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import OCTETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from imagestore.mirror.catalogue_rows import Reservation

T = TypeVar("T")
#: Values of a statement by the names of its parameters.
Values = dict[str, object]

_MARK_BITS: Final = 62


class Transaction(Protocol):
    """Statements that count together, or not at all."""

    def rows(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        """Run a query."""

    def run(self, statement: str, values: Values) -> None:
        """Run a statement."""

    def run_many(self, statement: str, rows: Sequence[Values]) -> None:
        """Run a statement for each of some values; for none, nothing."""

    def tell(self) -> None:
        """Answers change by this: those that replicas remember count no more once it is committed.

        Where nothing is remembered, this is nothing.
        """

    def lock(self, upstream: str) -> None:
        """Wait for other replicas' transactions that hold this lock, and hold it until this one ends.

        Where a transaction that writes excludes all others anyway, this is nothing.
        """


class CatalogueDatabase(Protocol):
    """Runs transactions; thread-safe. Its tables are ``sql_statements.TABLES``.

    A transaction that the database ends for other ones (a deadlock) is run again, so what is run does nothing else.
    All raise StoreError where the database can't be asked.
    """

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run queries, in a transaction or each alone."""

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run a transaction, and commit it."""

    def close(self) -> None:
        """Let go of it."""


class SqlCatalogueRows:
    """CatalogueRows over a database.

    Args:
        database: runs the statements; closed with this.
    """

    def __init__(self, database: CatalogueDatabase) -> None:
        self._database = database

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def tag(self, name: str, tag: str) -> CachedTag | None:
        """Where a tag led, if its document is still known."""
        query = (
            "SELECT d.media_type, d.digest, d.size, t.checked_at FROM mirror_tag t"
            " JOIN mirror_document d ON d.name = t.name AND d.digest = t.digest WHERE t.name = :name AND t.tag = :tag"
        )
        found = self._query(query, name=name, tag=tag)
        return CachedTag(_descriptor(found[0]), found[0][3]) if found else None

    def document(self, name: str, digest: Digest) -> Descriptor | None:
        """A document of a repository."""
        query = "SELECT media_type, digest, size FROM mirror_document WHERE name = :name AND digest = :digest"
        found = self._query(query, name=name, digest=str(digest))
        return _descriptor(found[0]) if found else None

    def known(self, upstream: str, name: str, digest: Digest) -> KnownContent | None:
        """Anything that a repository is known to have."""
        found = self._query(sql.KNOWN, upstream=upstream, name=name, digest=str(digest))
        return KnownContent(_descriptor(found[0]), bool(found[0][3])) if found else None

    def put_document(
        self,
        upstream: str,
        name: str,
        document: Descriptor,
        parts: Sequence[Descriptor],
        *,
        tag: str,
        is_here: bool,
        now: float,
    ) -> None:
        """Note a document, what it names, and the tag that leads to it now."""
        digest = str(document.digest)

        def put(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _put_document(transaction, upstream, name, document, now)
            values = {"name": name, "parent": digest}
            transaction.run_many(sql.PUT_PART, [{**values, **_values(part)} for part in parts])
            _put_blob(transaction, upstream, document, is_here=is_here)
            if tag:
                transaction.run(sql.PUT_TAG, {"name": name, "tag": tag, "digest": digest, "now": now})

        self._database.write(put)

    def put_blob(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        """Note content that is here."""

        def put(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _put_blob(transaction, upstream, blob, is_here=True)
            if not transaction.rows(sql.NAMED, {"upstream": upstream, "digest": str(blob.digest)}):
                _put_document(transaction, upstream, name, Descriptor(OCTETS, blob.digest, blob.size), now)

        self._database.write(put)

    def marks(self, digest: Digest) -> dict[str, int]:
        """The marks of content that counts as here, by upstream."""
        query = "SELECT upstream, mark FROM mirror_blob WHERE digest = :digest AND is_here = 1"
        return dict(self._query(query, digest=str(digest)))

    def forget_content(self, digest: Digest, marks: Mapping[str, int]) -> None:
        """Content isn't here: it counts no more, where its mark is still that one."""
        statement = (
            "UPDATE mirror_blob SET is_here = 0 WHERE upstream = :upstream AND digest = :digest AND mark = :mark"
        )
        rows: list[Values] = [
            {"upstream": upstream, "digest": str(digest), "mark": mark} for upstream, mark in sorted(marks.items())
        ]

        def forget(transaction: Transaction) -> None:
            transaction.tell()
            transaction.run_many(statement, rows)

        if rows:
            self._database.write(forget)

    def distrust(self, name: str, digest: Digest) -> None:
        """Forget a document that is a blob of its own."""
        statement = "DELETE FROM mirror_document WHERE name = :name AND digest = :digest AND media_type = :octets"
        self._change(statement, name=name, digest=str(digest), octets=OCTETS)

    def drop_tag(self, name: str, tag: str) -> None:
        """Forget a tag."""
        self._change("DELETE FROM mirror_tag WHERE name = :name AND tag = :tag", name=name, tag=tag)

    def note_served(self, name: str, digest: Digest, *, now: float) -> None:
        """Note that a document, or what it names, is served now."""
        self._run(sql.NOTE_SERVED, name=name, digest=str(digest), now=now)

    def used_bytes(self) -> dict[str, int]:
        """What content that is here takes, by upstream."""
        return {upstream: int(size) for upstream, size in self._query(sql.USED)}

    def try_to_reserve(self, wanted: Reservation, *, quota_bytes: int | None, not_since: float, now: float) -> Try:
        """Reserve room, or evict one document."""
        upstream = wanted.upstream

        def is_within(transaction: Transaction) -> bool:
            if quota_bytes is None:
                return True
            ((taken,),) = transaction.rows(sql.TAKEN, {"upstream": upstream, "now": now})
            return int(taken) <= quota_bytes

        def reserve(transaction: Transaction) -> Try:
            transaction.lock(upstream)
            over = "DELETE FROM mirror_reservation WHERE upstream = :upstream AND ends_at <= :now"
            transaction.run(over, {"upstream": upstream, "now": now})
            # Noted before room is looked for, and so spared by the eviction.
            transaction.run(sql.RESERVE, {**dataclasses.asdict(wanted), "digest": str(wanted.digest)})
            if is_within(transaction):
                return Try(Outcome.RESERVED, has_evicted=False)
            has_evicted = _evict_oldest(transaction, upstream, not_since)
            if has_evicted:
                transaction.tell()
            if has_evicted and is_within(transaction):
                return Try(Outcome.RESERVED, has_evicted=True)
            transaction.run("DELETE FROM mirror_reservation WHERE id = :id", {"id": wanted.id})
            return Try(Outcome.EVICTED if has_evicted else Outcome.REFUSED, has_evicted)

        return self._database.write(reserve)

    def renew_reservations(self, owner: str, *, ends_at: float) -> None:
        """A replica lives."""
        self._run("UPDATE mirror_reservation SET ends_at = :ends_at WHERE owner = :owner", owner=owner, ends_at=ends_at)

    def end_reservation(self, id_: str) -> None:
        """A blob is here, or isn't coming."""
        self._run("DELETE FROM mirror_reservation WHERE id = :id", id=id_)

    def end_reservations(self, owner: str) -> None:
        """A replica fetches nothing."""
        self._run("DELETE FROM mirror_reservation WHERE owner = :owner", owner=owner)

    def leaving(self, upstream: str) -> tuple[Leaving, ...]:
        """Evicted content whose lease wasn't let go yet."""
        found = self._query(sql.LEAVING, upstream=upstream)
        return tuple(Leaving(Digest.parse(text), mark) for text, mark in found)

    def wanted(self, upstream: str, digests: Sequence[Digest], *, now: float) -> frozenset[Digest]:
        """Those of some digests that are named, or on their way."""

        def look(transaction: Transaction) -> frozenset[Digest]:
            values: Values = {"upstream": upstream, "now": now}
            return frozenset(each for each in digests if transaction.rows(sql.WANTED, {**values, "digest": str(each)}))

        return self._database.read(look)

    def forget_leaving(self, upstream: str, left: Sequence[Leaving]) -> None:
        """Its lease was let go."""
        statement = "DELETE FROM mirror_leaving WHERE upstream = :upstream AND digest = :digest AND mark = :mark"
        rows: list[Values] = [{"upstream": upstream, "digest": str(each.digest), "mark": each.mark} for each in left]
        if rows:
            self._database.write(lambda transaction: transaction.run_many(statement, rows))

    def forget_unnamed(self, upstream: str) -> None:
        """Forget content that no document names."""

        def forget(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _leave(transaction, upstream, [text for (text,) in transaction.rows(sql.UNNAMED, {"upstream": upstream})])

        self._database.write(forget)

    def forget_upstream(self, upstream: str) -> None:
        """Forget all that is here of an upstream."""

        def forget(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            for statement in sql.FORGET_UPSTREAM:
                transaction.run(statement, {"upstream": upstream})

        self._database.write(forget)

    def contents(self, upstream: str) -> frozenset[Digest]:
        """All that an upstream's lease has to hold."""
        return frozenset(Digest.parse(text) for (text,) in self._query(sql.CONTENTS, upstream=upstream))

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a repository, in order."""
        return tuple(
            tag for (tag,) in self._query("SELECT tag FROM mirror_tag WHERE name = :name ORDER BY tag", name=name)
        )

    def names(self, upstream: str) -> tuple[str, ...]:
        """The repositories of an upstream that have documents, in order."""
        query = "SELECT DISTINCT name FROM mirror_document WHERE upstream = :upstream ORDER BY name"
        return tuple(name for (name,) in self._query(query, upstream=upstream))

    def _query(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        return self._database.read(lambda transaction: transaction.rows(query, values))

    def _change(self, statement: str, **values: object) -> None:
        def change(transaction: Transaction) -> None:
            transaction.tell()
            transaction.run(statement, values)

        self._database.write(change)

    def _run(self, statement: str, **values: object) -> None:
        """For what no answer depends on that is remembered."""
        self._database.write(lambda transaction: transaction.run(statement, values))


def _put_document(transaction: Transaction, upstream: str, name: str, document: Descriptor, now: float) -> None:
    values = {"name": name, "upstream": upstream, "now": now, "octets": OCTETS, **_values(document)}
    transaction.run(sql.PUT_DOCUMENT, values)


def _put_blob(transaction: Transaction, upstream: str, blob: Descriptor, *, is_here: bool) -> None:
    values = {"upstream": upstream, "digest": str(blob.digest), "size": blob.size}
    transaction.run(sql.PUT_BLOB, {**values, "is_here": int(is_here), "mark": secrets.randbits(_MARK_BITS)})


def _evict_oldest(transaction: Transaction, upstream: str, not_since: float) -> bool:
    """Forget the document that wasn't served for the longest time; False where none may go."""
    oldest = transaction.rows(sql.OLDEST, {"upstream": upstream, "not_since": not_since})
    if not oldest:
        return False
    ((name, digest),) = oldest
    document: Values = {"name": name, "digest": digest}
    freed = [text for (text,) in transaction.rows(sql.ONLY_ITS, {"upstream": upstream, **document})]
    transaction.run("DELETE FROM mirror_tag WHERE name = :name AND digest = :digest", document)
    transaction.run("DELETE FROM mirror_document WHERE name = :name AND digest = :digest", document)
    _leave(transaction, upstream, freed)
    return True


def _leave(transaction: Transaction, upstream: str, texts: Sequence[str]) -> None:
    """Content that nothing of the upstream names any more counts no more; its lease is to be let go."""
    rows: list[Values] = [
        {"upstream": upstream, "digest": text, "mark": secrets.randbits(_MARK_BITS)} for text in texts
    ]
    transaction.run_many("DELETE FROM mirror_blob WHERE upstream = :upstream AND digest = :digest", rows)
    transaction.run_many(sql.LEAVE, rows)


def _values(descriptor: Descriptor) -> Values:
    return {"media_type": descriptor.media_type, "digest": str(descriptor.digest), "size": descriptor.size}


def _descriptor(row: Sequence[Any]) -> Descriptor:
    return Descriptor(row[0], Digest.parse(row[1]), row[2])
