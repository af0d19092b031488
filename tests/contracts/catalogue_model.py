"""A mirror's catalogue as dictionaries: slow, obvious, and what the catalogue over a database is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from imagestore import Descriptor, Digest
from imagestore.mirror.catalogue import KnownContent, Outcome, Reservation, ReserveResult
from imagestore.oci.media_types import OCI_MANIFEST, OCTETS

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from imagestore.mirror.catalogue import Catalogue

DIGESTS: Final = tuple(Digest.of(str(number).encode()) for number in range(8))
NAMES: Final = {"r.example": ("r.example/a", "r.example/b"), "s.example": ("s.example/a",)}
TAGS: Final = ("1", "2")
OWNERS: Final = ("a", "b")


@dataclass(frozen=True)
class Step:
    """A call of the catalogue and of the model."""

    method: str
    values: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)


@dataclass
class Document:
    upstream: str
    descriptor: Descriptor
    served_at: float
    parts: dict[Digest, Descriptor] = field(default_factory=dict)


@dataclass
class Blob:
    size: int
    is_here: bool


class CatalogueModel:
    """As Catalogue, for one thread."""

    def __init__(self) -> None:
        self.now = 0.0
        self.documents: dict[tuple[str, Digest], Document] = {}
        self.tags: dict[tuple[str, str], tuple[Digest, float]] = {}
        self.blobs: dict[tuple[str, Digest], Blob] = {}
        self.reservations: dict[str, Reservation] = {}
        self.left: set[tuple[str, Digest]] = set()

    def step(self, dice: random.Random) -> Step:
        """What is done next. Time goes on with each."""
        self.now += 1.0
        upstream = dice.choice(tuple(NAMES))
        name, digest = dice.choice(NAMES[upstream]), dice.choice(DIGESTS)
        media_type = dice.choice((OCI_MANIFEST, OCTETS))
        blob = Descriptor(media_type, digest, dice.choice((10, 20)))
        id_, owner = str(dice.randrange(10**9)), dice.choice(OWNERS)
        parts = [Descriptor(OCTETS, each, dice.choice((10, 20))) for each in dice.sample(DIGESTS, dice.randrange(4))]
        document = {"tag": dice.choice(("", *TAGS)), "is_here": dice.random() < 0.7, "now": self.now}
        wanted = Reservation(id_, owner, upstream, digest, blob.size, self.now + dice.choice((3.0, 30.0)))
        limits = {"quota_bytes": dice.choice((None, 30, 60, 90)), "not_since": self.now - dice.choice((0.0, 10.0))}
        some = (
            Step("put_document", (upstream, name, blob, parts if media_type == OCI_MANIFEST else []), document),
            Step("put_document", (upstream, name, blob, parts if media_type == OCI_MANIFEST else []), document),
            Step("put_blob", (upstream, name, blob), {"now": self.now}),
            Step("distrust", (name, digest)),
            Step("drop_tag", (name, dice.choice(TAGS))),
            Step("note_served", (name, digest), {"now": self.now}),
            Step("try_to_reserve", (wanted,), {**limits, "now": self.now}),
            Step("try_to_reserve", (wanted,), {**limits, "now": self.now}),
            Step("end_reservation", (dice.choice(tuple(self.reservations) or ("none",)),)),
            Step("renew_reservations", (owner,), {"ends_at": self.now + 5.0}),
            Step("end_reservations", (owner,)) if dice.random() < 0.1 else Step("forget_unnamed", (upstream,)),
            Step("forget_upstream", (upstream,))
            if dice.random() < 0.1
            else Step("drop_tag", (name, dice.choice(TAGS))),
        )
        return dice.choice(some)

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
        key = (name, document.digest)
        self._put(upstream, name, document, now)
        for part in parts:
            self.documents[key].parts.setdefault(part.digest, part)
        self._count(upstream, document, is_here=is_here)
        if tag:
            self.tags[name, tag] = (document.digest, now)

    def put_blob(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        self._count(upstream, blob, is_here=True)
        if not self._is_named(upstream, blob.digest):
            self._put(upstream, name, Descriptor(OCTETS, blob.digest, blob.size), now)

    def distrust(self, name: str, digest: Digest) -> None:
        found = self.documents.get((name, digest))
        if found is not None and found.descriptor.media_type == OCTETS:
            del self.documents[name, digest]

    def drop_tag(self, name: str, tag: str) -> None:
        self.tags.pop((name, tag), None)

    def note_served(self, name: str, digest: Digest, *, now: float) -> None:
        for (of, each), document in self.documents.items():
            if of == name and (each == digest or digest in document.parts):
                document.served_at = now

    def try_to_reserve(
        self, wanted: Reservation, *, quota_bytes: int | None, not_since: float, now: float
    ) -> ReserveResult:
        upstream = wanted.upstream
        self.reservations = {
            id_: each for id_, each in self.reservations.items() if each.upstream != upstream or each.ends_at > now
        }
        self.reservations[wanted.id] = wanted
        if self._fits(upstream, quota_bytes):
            return ReserveResult(Outcome.RESERVED, has_evicted=False)
        on_its_way = {each.digest for each in self.reservations.values() if each.upstream == upstream}
        candidates = [
            (document.served_at, *key)
            for key, document in self.documents.items()
            if document.upstream == upstream and document.served_at < not_since
            if not on_its_way & {key[1], *document.parts}
        ]
        if candidates:
            _, name, digest = min(candidates, key=lambda each: (each[0], each[1], str(each[2])))
            document = self.documents.pop((name, digest))
            self.tags = {key: each for key, each in self.tags.items() if (key[0], each[0]) != (name, digest)}
            self._leave(upstream, {digest, *document.parts})
            if self._fits(upstream, quota_bytes):
                return ReserveResult(Outcome.RESERVED, has_evicted=True)
        del self.reservations[wanted.id]
        return ReserveResult(Outcome.EVICTED if candidates else Outcome.REFUSED, bool(candidates))

    def renew_reservations(self, owner: str, *, ends_at: float) -> None:
        for id_, each in self.reservations.items():
            if each.owner == owner:
                self.reservations[id_] = Reservation(id_, owner, each.upstream, each.digest, each.size, ends_at)

    def end_reservation(self, id_: str) -> None:
        self.reservations.pop(id_, None)

    def end_reservations(self, owner: str) -> None:
        self.reservations = {id_: each for id_, each in self.reservations.items() if each.owner != owner}

    def forget_unnamed(self, upstream: str) -> None:
        self._leave(upstream, {digest for of, digest in self.blobs if of == upstream})

    def forget_upstream(self, upstream: str) -> None:
        names = {name for (name, _), document in self.documents.items() if document.upstream == upstream}
        self.tags = {key: each for key, each in self.tags.items() if key[0] not in names}
        self.documents = {key: each for key, each in self.documents.items() if each.upstream != upstream}
        self.blobs = {key: each for key, each in self.blobs.items() if key[0] != upstream}
        self.reservations = {id_: each for id_, each in self.reservations.items() if each.upstream != upstream}
        self.left = {key for key in self.left if key[0] != upstream}

    def compare(self, rows: Catalogue) -> None:
        """Ask for all that can be seen."""
        used = {upstream: 0 for upstream, _ in self.blobs}
        used |= {document.upstream: 0 for document in self.documents.values()}
        for (upstream, _), blob in self.blobs.items():
            used[upstream] += blob.size if blob.is_here else 0
        assert rows.used_bytes() == used
        for upstream, names in NAMES.items():
            assert {each.digest for each in rows.evicted(upstream)} == {
                digest for of, digest in self.left if of == upstream
            }
            wanted = {digest for digest in DIGESTS if self._is_wanted(upstream, digest)}
            assert rows.wanted(upstream, DIGESTS, now=self.now) == wanted
            assert rows.contents(upstream) == self._contents(upstream)
            known = {name for (name, _), document in self.documents.items() if document.upstream == upstream}
            assert rows.names(upstream) == tuple(sorted(known))
            for name in names:
                assert rows.tags(name) == tuple(sorted(tag for of, tag in self.tags if of == name))
                for digest in DIGESTS:
                    self._compare_one(rows, upstream, name, digest)
                for tag in TAGS:
                    found, led = rows.tag(name, tag), self.tags.get((name, tag))
                    document = None if led is None else self.documents.get((name, led[0]))
                    expected = None if led is None or document is None else (document.descriptor, led[1])
                    assert (None if found is None else (found.target, found.checked_at)) == expected

    def _compare_one(self, rows: Catalogue, upstream: str, name: str, digest: Digest) -> None:
        document, blob = self.documents.get((name, digest)), self.blobs.get((upstream, digest))
        assert rows.document(name, digest) == (document and document.descriptor)
        named = [each.parts[digest] for (of, _), each in self.documents.items() if of == name and digest in each.parts]
        named.sort(key=lambda each: (blob is None or not blob.is_here or each.size != blob.size, each.size))
        best = named[0] if named else document.descriptor if document is not None else None
        assert rows.known(upstream, name, digest) == (best and KnownContent(best, is_confirmed=blob is not None))
        is_counted = {of for (of, each), found in self.blobs.items() if each == digest and found.is_here}
        assert set(rows.marks(digest)) == is_counted

    def _put(self, upstream: str, name: str, document: Descriptor, now: float) -> None:
        before = self.documents.get((name, document.digest))
        if before is None:
            self.documents[name, document.digest] = Document(upstream, document, now)
            return
        media_type = before.descriptor.media_type if document.media_type == OCTETS else document.media_type
        before.descriptor = Descriptor(media_type, document.digest, document.size)
        before.served_at = now

    def _count(self, upstream: str, blob: Descriptor, *, is_here: bool) -> None:
        before = self.blobs.setdefault((upstream, blob.digest), Blob(blob.size, is_here))
        if is_here or not before.is_here:
            before.size = blob.size
        before.is_here |= is_here

    def _is_named(self, upstream: str, digest: Digest) -> bool:
        return any(
            document.upstream == upstream and digest in {own, *document.parts}
            for (_, own), document in self.documents.items()
        )

    def _is_wanted(self, upstream: str, digest: Digest) -> bool:
        return self._is_named(upstream, digest) or any(
            each.upstream == upstream and each.digest == digest and each.ends_at > self.now
            for each in self.reservations.values()
        )

    def _fits(self, upstream: str, quota: int | None) -> bool:
        sizes = {digest: blob.size for (of, digest), blob in self.blobs.items() if of == upstream and blob.is_here}
        for each in self.reservations.values():
            if each.upstream == upstream:
                sizes[each.digest] = max(each.size, sizes.get(each.digest, 0))
        return quota is None or sum(sizes.values()) <= quota

    def _leave(self, upstream: str, digests: set[Digest]) -> None:
        for digest in digests:
            if not self._is_named(upstream, digest):
                self.blobs.pop((upstream, digest), None)
                self.left.add((upstream, digest))

    def _contents(self, upstream: str) -> set[Digest]:
        found = {digest for of, digest in self.blobs if of == upstream}
        for (_, own), document in self.documents.items():
            if document.upstream == upstream:
                found |= {own, *document.parts}
        return found
