"""What a mirror has: tags, documents, the content they name, and bytes against quotas.

Each method is one transaction. Replicas that share the rows call them at the same time, so a step that decides by what
it reads takes the upstream's lock before it reads. In PostgreSQL the statements are meant for READ COMMITTED: once it
holds the lock, a transaction sees what others have committed.

Content is kept from collection by one lease for each upstream (see ``retention``). The order of steps keeps catalogue
and lease together without one lock for both: content is noted here first, leased then, and looked at after that.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, Final

from imagestore.mirror import catalogue_sql as sql
from imagestore.mirror.catalogue_database import RememberedAnswers
from imagestore.mirror.catalogue_values import CachedTag, EvictedContent, KnownContent
from imagestore.oci import Descriptor, Digest, media_types

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from imagestore.mirror.catalogue_database import CatalogueDatabase, Changes, Transaction, Values
    from imagestore.mirror.catalogue_values import Reservation

_MARK_BITS: Final = 62


class Catalogue:
    """The rows of one mirror, shared by all its replicas; thread-safe.

    Repository names include the upstream: ``docker.io/library/python``. Times are seconds since 1970. Every method
    raises StoreError if the database can't be read or changed.

    Args:
        database: runs the transactions; closed with this.
        changes: of the rows by any replica. With it, answers that every request needs are remembered until a change.
    """

    def __init__(self, database: CatalogueDatabase, changes: Changes | None = None) -> None:
        self._database = database
        self._answers = RememberedAnswers(changes)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def tag(self, name: str, tag: str) -> CachedTag | None:
        """Where a tag led, if its document is still known."""
        found = self._remembered(sql.TAG, name=name, tag=tag)
        return CachedTag(_descriptor(found[0]), found[0][3]) if found else None

    def document(self, name: str, digest: Digest, *, is_fresh: bool = False) -> Descriptor | None:
        """An index or manifest of a repository, or a blob that was asked for alone; ``is_fresh`` reads the rows."""
        found = (self._query if is_fresh else self._remembered)(sql.DOCUMENT, name=name, digest=str(digest))
        return _descriptor(found[0]) if found else None

    def known(self, upstream: str, name: str, digest: Digest) -> KnownContent | None:
        """Anything that documents of a repository are or name, and blobs that were asked for alone."""
        found = self._remembered(sql.KNOWN, upstream=upstream, name=name, digest=str(digest))
        return KnownContent(_descriptor(found[0]), bool(found[0][3]), bool(found[0][4])) if found else None

    def put_document(
        self,
        upstream: str,
        name: str,
        document: Descriptor,
        parts: Sequence[Descriptor],
        *,
        tag: str = "",
        checked_at: float | None = None,
        now: float,
    ) -> None:
        """Note a document that its registry served, and that is going to be in the store.

        A document first known as a blob may turn out to be a manifest, never the other way round.

        Args:
            upstream: of the repository.
            name: of the repository.
            document: which.
            parts: what it names.
            tag: leads to it; empty for none.
            checked_at: when the registry said so; None for now.
            now: when it is served.
        """
        digest = str(document.digest)

        def _put(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _put_document(transaction, upstream, name, document, now)
            values: Values = {"name": name, "parent": digest}
            transaction.run_many(sql.PUT_PART, [{**values, **_values(part)} for part in parts])
            transaction.run(sql.CONFIRM_PARTS, values)
            transaction.run(sql.CONFIRM, {"name": name, "digest": digest})
            _put_blob(transaction, upstream, document)
            if tag:
                values = {"name": name, "tag": tag, "digest": digest}
                transaction.run(sql.PUT_TAG, {**values, "checked_at": now if checked_at is None else checked_at})

        self._database.write(_put)

    def confirm(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        """Note that a repository's registry has content.

        Content that nothing of the repository names becomes a document, to be evictable.
        """

        def _confirm(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _confirm_blob(transaction, upstream, name, blob, now)

        self._database.write(_confirm)

    def put_blob(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        """Note verified content in the store that a repository's registry has; see ``confirm``."""

        def _put(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _put_blob(transaction, upstream, blob)
            _confirm_blob(transaction, upstream, name, blob, now)

        self._database.write(_put)

    def marks(self, digest: Digest) -> dict[str, int]:
        """For each upstream whose content counts as in the store: a number that changes each time it is put."""
        return dict(self._query(sql.MARKS, digest=str(digest)))

    def forget_content(self, digest: Digest, is_gone: Callable[[], bool]) -> None:
        """Stop counting content against quotas if ``is_gone``, a look at the store, confirms that it isn't there.

        Content that is put after that look counts.
        """
        marks = self.marks(digest)
        if not marks or not is_gone():
            return
        rows: list[Values] = [
            {"upstream": upstream, "digest": str(digest), "mark": mark} for upstream, mark in sorted(marks.items())
        ]

        def _forget(transaction: Transaction) -> None:
            transaction.tell()
            transaction.run_many(sql.FORGET_CONTENT, rows)

        self._database.write(_forget)

    def distrust(self, name: str, digest: Digest) -> None:
        """Forget that a repository's registry has a blob, since what it stated or sent was wrong."""

        def _distrust(transaction: Transaction) -> None:
            transaction.tell()
            values: Values = {"name": name, "digest": str(digest)}
            transaction.run(sql.DISTRUST, {**values, "octets": media_types.OCTETS})
            transaction.run(sql.DISTRUST_PARTS, values)

        self._database.write(_distrust)

    def drop_tag(self, name: str, tag: str) -> None:
        """Forget a tag that its upstream doesn't have any more."""
        self._change(sql.DROP_TAG, name=name, tag=tag)

    def note_served(self, name: str, digest: Digest, *, now: float) -> None:
        """Note that a document, or content that it names, is served now; see ``try_to_reserve``."""
        self._run(sql.NOTE_SERVED, name=name, digest=str(digest), now=now)

    def used_bytes(self) -> dict[str, int]:
        """Size of the content in the store, by upstream; of every upstream with any row of content or documents."""
        return {upstream: int(size) for upstream, size in self._query(sql.USED)}

    def try_to_reserve(self, wanted: Reservation, *, quota_bytes: int | None, not_since: float, now: float) -> bool:
        """Reserve room if the quota has it, or would have it after evictions; whether it was reserved.

        Content in the store and reserved content count, each once. Nothing is evicted: see ``evict_oldest``.
        """
        values: Values = {"upstream": wanted.upstream, "now": now}

        def _reserve(transaction: Transaction) -> bool:
            transaction.lock(wanted.upstream)
            transaction.run(sql.END_DEAD_RESERVATIONS, values)
            # Before room is looked for, since it spares what names it.
            transaction.run(sql.RESERVE, {**dataclasses.asdict(wanted), "digest": str(wanted.digest)})
            if quota_bytes is None:
                return True
            left = quota_bytes - _total(transaction, sql.TO_COME, values)
            if _total(transaction, sql.USED_OF, {"upstream": wanted.upstream}) <= left:
                return True
            if _total(transaction, sql.KEPT, {"upstream": wanted.upstream, "not_since": not_since}) <= left:
                return True
            transaction.run(sql.END_RESERVATION, {"id": wanted.id})
            return False

        return self._database.write(_reserve)

    def evict_oldest(self, upstream: str, *, quota_bytes: int, not_since: float) -> bool:
        """Evict the document that wasn't served for the longest time, if the quota is exceeded; whether one was.

        A document that is being fetched, or names content that is, isn't evicted, nor one that was served since
        ``not_since``. Its tags go with it. Content that no other document of the upstream names stops counting, and is
        listed by ``evicted``.
        """

        def _look_and_evict(transaction: Transaction) -> bool:
            transaction.lock(upstream)
            if _total(transaction, sql.USED_OF, {"upstream": upstream}) <= quota_bytes:
                return False
            transaction.tell()
            return _evict_oldest(transaction, upstream, not_since)

        return self._database.write(_look_and_evict)

    def renew_reservations(self, owner: str, *, ends_at: float) -> None:
        """Set the end of all reservations of a replica."""
        self._run(sql.RENEW_RESERVATIONS, owner=owner, ends_at=ends_at)

    def end_reservation(self, id_: str) -> None:
        """End a reservation, if it hasn't ended yet."""
        self._run(sql.END_RESERVATION, id=id_)

    def end_reservations(self, owner: str) -> None:
        """End all reservations of a replica, which starts or stops and fetches nothing."""
        self._run(sql.END_RESERVATIONS, owner=owner)

    def evicted(self, upstream: str) -> tuple[EvictedContent, ...]:
        """Content that this replica or another one evicted, and that is still under the lease."""
        rows = self._query(sql.LEAVING, upstream=upstream)
        return tuple(EvictedContent(Digest.parse(text), mark) for text, mark in rows)

    def forget_evicted(self, upstream: str, released: Sequence[EvictedContent]) -> None:
        """Note that evicted content was taken from the lease; content that was evicted once more since then stays."""
        rows: list[Values] = [
            {"upstream": upstream, "digest": str(each.digest), "mark": each.mark} for each in released
        ]
        self._database.write(lambda transaction: transaction.run_many(sql.FORGET_LEAVING, rows))

    def wanted(self, upstream: str, digests: Collection[Digest], *, now: float) -> frozenset[Digest]:
        """Those of some digests that a document of the upstream is or names, or that a live reservation is for."""
        return self._database.read(lambda transaction: _wanted(transaction, upstream, digests, now))

    def evict_unwanted(self, upstream: str, digests: Collection[Digest], *, now: float) -> bool:
        """Evict those of some digests that ``wanted`` doesn't return; whether there were any."""

        def _look_and_evict(transaction: Transaction) -> bool:
            transaction.lock(upstream)
            unwanted = set(digests) - _wanted(transaction, upstream, digests, now)
            transaction.tell()
            _evict(transaction, upstream, [str(each) for each in unwanted])
            return bool(unwanted)

        return set(digests) != self.wanted(upstream, digests, now=now) and self._database.write(_look_and_evict)

    def forget_unnamed(self, upstream: str) -> None:
        """Evict content that no document names, as ``distrust`` leaves it."""

        def _forget(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _evict(transaction, upstream, [text for (text,) in transaction.rows(sql.UNNAMED, {"upstream": upstream})])

        self._database.write(_forget)

    def forget_upstream(self, upstream: str) -> None:
        """Forget all content of an upstream."""

        def _forget(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            for statement in sql.FORGET_UPSTREAM:
                transaction.run(statement, {"upstream": upstream})

        self._database.write(_forget)

    def contents(self, upstream: str) -> frozenset[Digest]:
        """All that an upstream's lease has to hold: content it is known to have, and content its documents name."""
        return frozenset(Digest.parse(text) for (text,) in self._query(sql.CONTENTS, upstream=upstream))

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a repository that were asked for, in byte order."""
        return tuple(tag for (tag,) in self._query(sql.TAGS, name=name))

    def names(self, upstream: str) -> tuple[str, ...]:
        """The repositories of an upstream that have documents, in byte order."""
        return tuple(name for (name,) in self._query(sql.NAMES, upstream=upstream))

    def _query(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        return self._database.read(lambda transaction: transaction.rows(query, values))

    def _remembered(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        return self._answers.get((query, *values.values()), lambda: self._query(query, **values))

    def _change(self, statement: str, **values: object) -> None:
        def _change(transaction: Transaction) -> None:
            transaction.tell()
            transaction.run(statement, values)

        self._database.write(_change)

    def _run(self, statement: str, **values: object) -> None:
        """Change rows on which no remembered answer depends."""
        self._database.write(lambda transaction: transaction.run(statement, values))


def _wanted(transaction: Transaction, upstream: str, digests: Collection[Digest], now: float) -> frozenset[Digest]:
    values: Values = {"upstream": upstream, "now": now}
    return frozenset(each for each in digests if transaction.rows(sql.WANTED, {**values, "digest": str(each)}))


def _put_document(transaction: Transaction, upstream: str, name: str, document: Descriptor, now: float) -> None:
    values = {"name": name, "upstream": upstream, "now": now, "octets": media_types.OCTETS, **_values(document)}
    transaction.run(sql.PUT_DOCUMENT, values)


def _put_blob(transaction: Transaction, upstream: str, blob: Descriptor) -> None:
    values = {"upstream": upstream, "digest": str(blob.digest), "size": blob.size}
    transaction.run(sql.PUT_BLOB, {**values, "mark": secrets.randbits(_MARK_BITS)})


def _confirm_blob(transaction: Transaction, upstream: str, name: str, blob: Descriptor, now: float) -> None:
    values: Values = {"name": name, "digest": str(blob.digest)}
    transaction.run(sql.CONFIRM, values)
    if not transaction.rows(sql.NAMED, values):
        _put_document(transaction, upstream, name, Descriptor(media_types.OCTETS, blob.digest, blob.size), now)


def _total(transaction: Transaction, statement: str, values: Values) -> int:
    ((total,),) = transaction.rows(statement, values)
    return int(total)


def _evict_oldest(transaction: Transaction, upstream: str, not_since: float) -> bool:
    """Forget the document that wasn't served for the longest time; False if none may go."""
    oldest = transaction.rows(sql.OLDEST, {"upstream": upstream, "not_since": not_since})
    if not oldest:
        return False
    ((name, digest),) = oldest
    document: Values = {"name": name, "digest": digest}
    freed = [text for (text,) in transaction.rows(sql.ONLY_ITS, {"upstream": upstream, **document})]
    transaction.run(sql.DROP_TAGS_OF_DOCUMENT, document)
    transaction.run(sql.DROP_DOCUMENT, document)
    _evict(transaction, upstream, freed)
    return True


def _evict(transaction: Transaction, upstream: str, texts: Sequence[str]) -> None:
    """Stop counting content that nothing of the upstream names any more, and note that its lease is to be released."""
    rows: list[Values] = [
        {"upstream": upstream, "digest": text, "mark": secrets.randbits(_MARK_BITS)} for text in texts
    ]
    transaction.run_many(sql.DROP_BLOB, rows)
    transaction.run_many(sql.LEAVE, rows)


def _values(descriptor: Descriptor) -> Values:
    return {"media_type": descriptor.media_type, "digest": str(descriptor.digest), "size": descriptor.size}


def _descriptor(row: Sequence[Any]) -> Descriptor:
    return Descriptor(row[0], Digest.parse(row[1]), row[2])
