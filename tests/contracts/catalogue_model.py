"""A mirror's catalogue as dictionaries: slow, obvious, and what the catalogue over a database is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from imagestore import Descriptor, Digest
from imagestore.mirror.catalogue_values import KnownContent, Reservation
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


class CatalogueModel:
    """As Catalogue, for one thread."""

    def __init__(self) -> None:
        self.now = 0.0
        self.documents: dict[tuple[str, Digest], Document] = {}
        self.tags: dict[tuple[str, str], tuple[Digest, float]] = {}
        #: Content in the store: its size, by upstream and digest.
        self.blobs: dict[tuple[str, Digest], int] = {}
        #: What registries are known to have, by repository and digest.
        self.confirmed: set[tuple[str, Digest]] = set()
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
        document = {"tag": dice.choice(("", *TAGS)), "checked_at": self.now - 0.5, "now": self.now}
        wanted = Reservation(id_, owner, upstream, digest, blob.size, self.now + dice.choice((3.0, 30.0)))
        limits = {"quota_bytes": dice.choice((None, 30, 60, 90)), "not_since": self.now - dice.choice((0.0, 10.0))}
        some = (
            Step("put_document", (upstream, name, blob, parts if media_type == OCI_MANIFEST else []), document),
            Step("put_document", (upstream, name, blob, parts if media_type == OCI_MANIFEST else []), document),
            Step("put_blob", (upstream, name, blob), {"now": self.now}),
            Step("confirm", (upstream, name, blob), {"now": self.now}),
            Step("distrust", (name, digest)),
            Step("drop_tag", (name, dice.choice(TAGS))),
            Step("note_served", (name, digest), {"now": self.now}),
            Step("try_to_reserve", (wanted,), {**limits, "now": self.now}),
            Step("evict_oldest", (upstream,), {**limits, "quota_bytes": dice.choice((0, 30, 60))}),
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
        checked_at: float,
        now: float,
    ) -> None:
        key = (name, document.digest)
        self._put(upstream, name, document, now)
        for part in parts:
            self.documents[key].parts.setdefault(part.digest, part)
        self.confirmed.add(key)
        self.blobs[upstream, document.digest] = document.size
        if tag:
            self.tags[name, tag] = (document.digest, checked_at)

    def confirm(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        if not self._is_named_in(name, blob.digest):
            self._put(upstream, name, Descriptor(OCTETS, blob.digest, blob.size), now)
        self.confirmed.add((name, blob.digest))

    def put_blob(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        self.blobs[upstream, blob.digest] = blob.size
        self.confirm(upstream, name, blob, now=now)

    def distrust(self, name: str, digest: Digest) -> None:
        found = self.documents.get((name, digest))
        if found is not None and found.descriptor.media_type == OCTETS:
            del self.documents[name, digest]
        if (name, digest) not in self.documents:
            self.confirmed.discard((name, digest))
        self._forget_unnamed_proofs()

    def drop_tag(self, name: str, tag: str) -> None:
        self.tags.pop((name, tag), None)

    def note_served(self, name: str, digest: Digest, *, now: float) -> None:
        for (of, each), document in self.documents.items():
            if of == name and (each == digest or digest in document.parts):
                document.served_at = now

    def try_to_reserve(self, wanted: Reservation, *, quota_bytes: int | None, not_since: float, now: float) -> bool:
        upstream = wanted.upstream
        self.reservations = {
            id_: each for id_, each in self.reservations.items() if each.upstream != upstream or each.ends_at > now
        }
        self.reservations[wanted.id] = wanted
        going = {(name, digest) for _, name, digest in self._candidates(upstream, not_since)}
        kept = {
            each
            for key, document in self.documents.items()
            if document.upstream == upstream and key not in going
            for each in (key[1], *document.parts)
        }
        sizes = {digest: size for (of, digest), size in self.blobs.items() if of == upstream}
        # Content that no document names is counted as long as it is here, and nothing is going to evict it.
        reserved = [each for each in self.reservations.values() if each.upstream == upstream]
        if quota_bytes is None or any(
            _sum({digest: sizes[digest] for digest in some & sizes.keys()}, reserved) <= quota_bytes
            for some in (set(sizes), kept)
        ):
            return True
        del self.reservations[wanted.id]
        return False

    def evict_oldest(self, upstream: str, *, quota_bytes: int, not_since: float) -> bool:
        candidates = self._candidates(upstream, not_since)
        if sum(size for (of, _), size in self.blobs.items() if of == upstream) <= quota_bytes or not candidates:
            return False
        _, name, digest = min(candidates, key=lambda each: (each[0], each[1], str(each[2])))
        document = self.documents.pop((name, digest))
        self.tags = {key: each for key, each in self.tags.items() if (key[0], each[0]) != (name, digest)}
        self._leave(upstream, {digest, *document.parts})
        return True

    def _candidates(self, upstream: str, not_since: float) -> list[tuple[float, str, Digest]]:
        """Documents that may be evicted."""
        on_its_way = {each.digest for each in self.reservations.values() if each.upstream == upstream}
        return [
            (document.served_at, *key)
            for key, document in self.documents.items()
            if document.upstream == upstream and document.served_at < not_since
            if not on_its_way & {key[1], *document.parts}
        ]

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
        self._forget_unnamed_proofs()
        self.reservations = {id_: each for id_, each in self.reservations.items() if each.upstream != upstream}
        self.left = {key for key in self.left if key[0] != upstream}

    def compare(self, rows: Catalogue) -> None:
        """Ask for all that can be seen."""
        used = {upstream: 0 for upstream, _ in self.blobs}
        used |= {document.upstream: 0 for document in self.documents.values()}
        for (upstream, _), size in self.blobs.items():
            used[upstream] += size
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
        document, size = self.documents.get((name, digest)), self.blobs.get((upstream, digest))
        assert rows.document(name, digest) == (document and document.descriptor)
        named = [each.parts[digest] for (of, _), each in self.documents.items() if of == name and digest in each.parts]
        named.sort(key=lambda each: each.size)
        best = named[0] if named else document.descriptor if document is not None else None
        known = None
        if best is not None:
            right = Descriptor(best.media_type, digest, best.size if size is None else size)
            known = KnownContent(right, (name, digest) in self.confirmed, size is not None)
        assert rows.known(upstream, name, digest) == known
        assert set(rows.marks(digest)) == {of for of, each in self.blobs if each == digest}

    def _put(self, upstream: str, name: str, document: Descriptor, now: float) -> None:
        before = self.documents.get((name, document.digest))
        if before is None:
            self.documents[name, document.digest] = Document(upstream, document, now)
            return
        media_type = before.descriptor.media_type if document.media_type == OCTETS else document.media_type
        before.descriptor = Descriptor(media_type, document.digest, document.size)
        before.served_at = now

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

    def _leave(self, upstream: str, digests: set[Digest]) -> None:
        for digest in digests:
            if not self._is_named(upstream, digest):
                self.blobs.pop((upstream, digest), None)
                self.left.add((upstream, digest))
        self._forget_unnamed_proofs()

    def _forget_unnamed_proofs(self) -> None:
        self.confirmed = {key for key in self.confirmed if self._is_named_in(*key)}

    def _is_named_in(self, name: str, digest: Digest) -> bool:
        return any(of == name and digest in {own, *each.parts} for (of, own), each in self.documents.items())

    def _contents(self, upstream: str) -> set[Digest]:
        found = {digest for of, digest in self.blobs if of == upstream}
        for (_, own), document in self.documents.items():
            if document.upstream == upstream:
                found |= {own, *document.parts}
        return found


def _sum(sizes: dict[Digest, int], reserved: list[Reservation]) -> int:
    """Content and reservations, each once."""
    for each in reserved:
        sizes[each.digest] = max(each.size, sizes.get(each.digest, 0))
    return sum(sizes.values())
