"""What a mirror has: tags, documents, the content they name, and bytes against quotas.

Each method is one transaction. Replicas that share the rows call them at the same time, so a step that decides by what
it reads takes the upstream's lock before it reads. In PostgreSQL the statements are meant for READ COMMITTED: once it
holds the lock, a transaction sees what others have committed.

Content is kept from collection by one lease for each upstream (see ``retention``). The order of steps keeps catalogue
and lease together without one lock for both: content is noted here first, leased then, and looked at after that.
"""

from __future__ import annotations

import dataclasses
import enum
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.mirror import catalogue_sql as sql
from imagestore.mirror.catalogue_database import RememberedAnswers
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import OCTETS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from imagestore.mirror.catalogue_database import CatalogueDatabase, Changes, Transaction, Values

_MARK_BITS: Final = 62


@dataclass(frozen=True, slots=True)
class CachedTag:
    """Where a tag led when its upstream was last asked, ``checked_at`` seconds since 1970."""

    target: Descriptor
    checked_at: float


@dataclass(frozen=True, slots=True)
class KnownContent:
    """What is known of content of a repository.

    Attributes:
        descriptor: by the documents that name it.
        is_confirmed: its upstream is known to have it: it came from there, or the upstream said so. A document that
            names content is no proof: anyone can push one that names content of another upstream.
    """

    descriptor: Descriptor
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for a blob that the replica ``owner`` is fetching, until ``ends_at``; several for one blob count once."""

    id: str
    owner: str
    upstream: str
    digest: Digest
    size: int
    ends_at: float


class Outcome(enum.Enum):
    """What one attempt to reserve did."""

    RESERVED = "there is room, and it is reserved"
    EVICTED = "a document was evicted, and there isn't room yet"
    REFUSED = "there is no room, and nothing may be evicted"


@dataclass(frozen=True, slots=True)
class ReserveResult:
    """The outcome of an attempt to reserve, and whether it evicted content (see ``Catalogue.evicted``)."""

    outcome: Outcome
    has_evicted: bool


@dataclass(frozen=True, slots=True)
class EvictedContent:
    """Content that is still under the lease; ``mark`` tells this eviction from a later one of the same content."""

    digest: Digest
    mark: int


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
        """Anything that a repository is known to have: documents, and what they name.

        If documents disagree about a size, that of the content in the store counts.
        """
        found = self._remembered(sql.KNOWN, upstream=upstream, name=name, digest=str(digest))
        return KnownContent(_descriptor(found[0]), bool(found[0][3])) if found else None

    def put_document(
        self,
        upstream: str,
        name: str,
        document: Descriptor,
        parts: Sequence[Descriptor],
        *,
        tag: str = "",
        is_here: bool = True,
        checked_at: float | None = None,
        now: float,
    ) -> None:
        """Note a document, served now, what it names, and the tag that leads to it; an empty tag is none.

        A document first known as a blob may turn out to be a manifest, never the other way round. The size of content
        in the store stays, unless the new one is of content in the store, too. The registry said at ``checked_at``
        (None: now) where the tag leads.
        """
        digest = str(document.digest)

        def _put(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _put_document(transaction, upstream, name, document, now)
            values = {"name": name, "parent": digest}
            transaction.run_many(sql.PUT_PART, [{**values, **_values(part)} for part in parts])
            _put_blob(transaction, upstream, document, is_here=is_here)
            if tag:
                checked = now if checked_at is None else checked_at
                transaction.run(sql.PUT_TAG, {"name": name, "tag": tag, "digest": digest, "checked_at": checked})

        self._database.write(_put)

    def put_blob(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        """Note content in the store. Content that nothing of the upstream names becomes a document, to be evictable."""

        def _put(transaction: Transaction) -> None:
            transaction.lock(upstream)
            transaction.tell()
            _put_blob(transaction, upstream, blob, is_here=True)
            if not transaction.rows(sql.NAMED, {"upstream": upstream, "digest": str(blob.digest)}):
                _put_document(transaction, upstream, name, Descriptor(OCTETS, blob.digest, blob.size), now)

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
        """Forget a blob that is a document of its own, since the size that its upstream stated was wrong."""
        self._change(sql.DISTRUST, name=name, digest=str(digest), octets=OCTETS)

    def drop_tag(self, name: str, tag: str) -> None:
        """Forget a tag that its upstream doesn't have any more."""
        self._change(sql.DROP_TAG, name=name, tag=tag)

    def note_served(self, name: str, digest: Digest, *, now: float) -> None:
        """Note that a document, or content that it names, is served now; see ``try_to_reserve``."""
        self._run(sql.NOTE_SERVED, name=name, digest=str(digest), now=now)

    def used_bytes(self) -> dict[str, int]:
        """Size of the content in the store, by upstream; of every upstream with any row of content or documents."""
        return {upstream: int(size) for upstream, size in self._query(sql.USED)}

    def try_to_reserve(
        self, wanted: Reservation, *, quota_bytes: int | None, not_since: float, now: float
    ) -> ReserveResult:
        """Reserve room; if the quota has none, evict the one document that wasn't served for the longest time.

        Content in the store and reserved content count, each once. A document that is being fetched, or names content
        that is (the wanted blob included), isn't evicted, nor one that was served since ``not_since``. Its tags go with
        it. Content that no other document of the upstream names stops counting, and is listed by ``evicted``.
        """
        upstream = wanted.upstream

        def _is_within(transaction: Transaction) -> bool:
            if quota_bytes is None:
                return True
            ((taken,),) = transaction.rows(sql.TAKEN, {"upstream": upstream, "now": now})
            return int(taken) <= quota_bytes

        def _reserve(transaction: Transaction) -> ReserveResult:
            transaction.lock(upstream)
            transaction.run(sql.END_DEAD_RESERVATIONS, {"upstream": upstream, "now": now})
            # Before room is looked for, so that the eviction spares it.
            transaction.run(sql.RESERVE, {**dataclasses.asdict(wanted), "digest": str(wanted.digest)})
            if _is_within(transaction):
                return ReserveResult(Outcome.RESERVED, has_evicted=False)
            has_evicted = _evict_oldest(transaction, upstream, not_since)
            if has_evicted:
                transaction.tell()
            if has_evicted and _is_within(transaction):
                return ReserveResult(Outcome.RESERVED, has_evicted=True)
            transaction.run(sql.END_RESERVATION, {"id": wanted.id})
            return ReserveResult(Outcome.EVICTED if has_evicted else Outcome.REFUSED, has_evicted)

        return self._database.write(_reserve)

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
    values = {"name": name, "upstream": upstream, "now": now, "octets": OCTETS, **_values(document)}
    transaction.run(sql.PUT_DOCUMENT, values)


def _put_blob(transaction: Transaction, upstream: str, blob: Descriptor, *, is_here: bool) -> None:
    values = {"upstream": upstream, "digest": str(blob.digest), "size": blob.size}
    transaction.run(sql.PUT_BLOB, {**values, "is_here": int(is_here), "mark": secrets.randbits(_MARK_BITS)})


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
