"""What a mirror's catalogue has to do over every database, as tests; used as MetadataContract is.

The fixture ``rows`` gives an empty catalogue, and ``later`` opens the same rows as another replica would.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final

import pytest

from imagestore import Descriptor, Digest
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.catalogue_values import KnownContent, Reservation
from imagestore.oci.media_types import OCI_MANIFEST, OCTETS
from tests.contracts.catalogue_model import CatalogueModel

UPSTREAM: Final = "r.example"
OTHER: Final = "s.example"
NAME: Final = "r.example/app"
OTHER_NAME: Final = "r.example/other"
A, B, C, D = (Digest.of(name.encode()) for name in "abcd")
ALL: Final = (A, B, C, D)
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
#: Later than what was served, for those who spare nothing.
ALWAYS: Final = 1e12
Later = Callable[[], AbstractContextManager[Catalogue]]


def manifest(digest: Digest, size: int = 10) -> Descriptor:
    return Descriptor(OCI_MANIFEST, digest, size)


def layer(digest: Digest, size: int = 100) -> Descriptor:
    return Descriptor(LAYER, digest, size)


def reservation(digest: Digest, size: int, id_: str = "1", *, owner: str = "a", ends_at: float = 1000.0) -> Reservation:
    return Reservation(id_, owner, UPSTREAM, digest, size, ends_at)


def reserve(rows: Catalogue, wanted: Reservation, quota: int | None, *, not_since: float = ALWAYS) -> bool:
    return rows.try_to_reserve(wanted, quota_bytes=quota, not_since=not_since, now=100.0)


def make_room(rows: Catalogue, quota: int, *, not_since: float = ALWAYS) -> int:
    """Evict until the quota holds, or no way to it; how many documents."""
    count = 0
    while rows.evict_oldest(UPSTREAM, quota_bytes=quota, not_since=not_since):
        count += 1
    return count


def put_image(
    rows: Catalogue, target: Digest, *layers: Digest, name: str = NAME, tag: str = "", now: float = 1.0
) -> None:
    """A manifest of 10 bytes and its layers of 100 bytes, which are here."""
    parts = [layer(each) for each in layers]
    rows.put_document(UPSTREAM, name, manifest(target), parts, tag=tag, now=now)
    for part in parts:
        rows.put_blob(UPSTREAM, name, part, now=now)


def left(rows: Catalogue) -> set[Digest]:
    return {each.digest for each in rows.evicted(UPSTREAM)}


class CatalogueContract:
    """Make a class from it that has the fixtures ``rows`` and ``later``."""

    def test_another_replica_sees_all_of_it(self, rows: Catalogue, later: Later) -> None:
        put_image(rows, A, B, tag="1", now=5.5)
        with later() as again:
            found = again.tag(NAME, "1")
            assert found is not None
            assert (found.target, found.checked_at) == (manifest(A), 5.5)
            assert again.document(NAME, A) == manifest(A)
            assert again.known(UPSTREAM, NAME, B) == KnownContent(layer(B), is_confirmed=True, is_here=True)
            assert again.used_bytes() == {UPSTREAM: 110}
            assert again.contents(UPSTREAM) == {A, B}
            assert (again.tags(NAME), again.names(UPSTREAM)) == (("1",), (NAME,))
            again.drop_tag(NAME, "1")
        assert rows.tag(NAME, "1") is None
        assert rows.document(NAME, A) == manifest(A)

    def test_a_tag_moves_and_needs_its_document(self, rows: Catalogue) -> None:
        rows.put_document(UPSTREAM, NAME, manifest(A), [], tag="1", now=1.0)
        rows.put_document(UPSTREAM, NAME, manifest(B), [], tag="1", now=2.0)
        found = rows.tag(NAME, "1")
        assert found is not None
        assert (found.target.digest, found.checked_at) == (B, 2.0)
        assert rows.tag(NAME, "2") is None
        assert rows.tag("r.example/other", "1") is None

    def test_names_are_compared_and_ordered_by_bytes(self, rows: Catalogue) -> None:
        for tag in ("b", "B", "a-1", "a1", "A", "a_1", "é"):
            rows.put_document(UPSTREAM, NAME, manifest(A), [], tag=tag, now=1.0)
        assert rows.tags(NAME) == tuple(sorted(("b", "B", "a-1", "a1", "A", "a_1", "é"), key=str.encode))

    def test_that_a_document_names_content_is_no_proof(self, rows: Catalogue) -> None:
        rows.put_document(UPSTREAM, NAME, manifest(A), [layer(B)], now=1.0)
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B), is_confirmed=False, is_here=False)
        rows.confirm(UPSTREAM, NAME, layer(B), now=1.0)
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B), is_confirmed=True, is_here=False)
        assert rows.used_bytes() == {UPSTREAM: 10}
        assert rows.known(UPSTREAM, OTHER_NAME, B) is None

    def test_a_proof_is_one_repositorys(self, rows: Catalogue) -> None:
        put_image(rows, A, B, tag="1")
        rows.put_document(UPSTREAM, OTHER_NAME, manifest(C), [layer(B), manifest(A)], now=1.0)
        for digest, named in ((B, layer(B)), (A, manifest(A))):
            assert rows.known(UPSTREAM, OTHER_NAME, digest) == KnownContent(named, is_confirmed=False, is_here=True)
        rows.confirm(UPSTREAM, OTHER_NAME, layer(B), now=1.0)
        assert rows.known(UPSTREAM, OTHER_NAME, B) == KnownContent(layer(B), is_confirmed=True, is_here=True)
        assert rows.document(OTHER_NAME, B) is None

    def test_a_proof_holds_for_whatever_names_the_content_later(self, rows: Catalogue) -> None:
        rows.confirm(UPSTREAM, NAME, layer(B), now=1.0)
        rows.put_document(UPSTREAM, NAME, manifest(A), [layer(B)], now=1.0)
        rows.put_document(UPSTREAM, NAME, manifest(C), [manifest(A), layer(B), layer(D)], now=1.0)
        known = {each: rows.known(UPSTREAM, NAME, each) for each in (A, B, D)}
        assert [each is not None and each.is_confirmed for each in known.values()] == [True, True, False]
        # A manifest was seen, whatever its registry says later of a blob of this digest.
        rows.distrust(NAME, A)
        rows.distrust(NAME, B)
        known = {each: rows.known(UPSTREAM, NAME, each) for each in (A, B, D)}
        assert [each is not None and each.is_confirmed for each in known.values()] == [True, False, False]

    def test_a_proof_goes_with_what_names_the_content(self, rows: Catalogue) -> None:
        put_image(rows, A, B, tag="1")
        assert make_room(rows, 0) == 1
        rows.put_document(UPSTREAM, NAME, manifest(A), [layer(B)], now=2.0)
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B), is_confirmed=False, is_here=False)

    def test_the_size_of_what_is_here_counts(self, rows: Catalogue) -> None:
        put_image(rows, A, B)
        rows.put_document(UPSTREAM, NAME, manifest(C), [layer(B, 7)], now=2.0)
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B), is_confirmed=True, is_here=True)
        rows.confirm(UPSTREAM, NAME, layer(B, 7), now=2.0)
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B), is_confirmed=True, is_here=True)
        assert rows.used_bytes() == {UPSTREAM: 120}
        rows.forget_content(B, lambda: True)
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B, 7), is_confirmed=True, is_here=False)
        rows.put_blob(UPSTREAM, NAME, layer(B, 70), now=2.0)
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B, 70), is_confirmed=True, is_here=True)
        assert rows.used_bytes() == {UPSTREAM: 90}

    def test_a_blob_may_turn_out_to_be_a_manifest_and_never_the_other_way_round(self, rows: Catalogue) -> None:
        blob = Descriptor(OCTETS, A, 10)
        for document, known in ((blob, blob), (manifest(A), manifest(A)), (blob, manifest(A))):
            rows.put_document(UPSTREAM, NAME, document, [], now=1.0)
            assert rows.document(NAME, A) == known

    def test_what_nothing_names_is_a_document_of_its_own(self, rows: Catalogue) -> None:
        rows.put_blob(UPSTREAM, NAME, layer(B), now=1.0)
        assert rows.document(NAME, B) == Descriptor(OCTETS, B, 100)
        put_image(rows, A, C)
        assert rows.document(NAME, C) is None
        rows.distrust(NAME, B)
        rows.distrust(NAME, A)
        assert rows.document(NAME, B) is None
        assert rows.document(NAME, A) == manifest(A)
        assert left(rows) == set()
        rows.forget_unnamed(UPSTREAM)
        assert left(rows) == {B}
        assert rows.used_bytes() == {UPSTREAM: 110}

    def test_what_was_fetched_again_is_not_forgotten(self, rows: Catalogue, later: Later) -> None:
        put_image(rows, A, B)
        with later() as again:
            again.forget_content(B, lambda: False)
            assert again.used_bytes() == {UPSTREAM: 110}

            def is_gone() -> bool:
                rows.put_blob(UPSTREAM, NAME, layer(B), now=2.0)  # by another replica, after the look
                return True

            again.forget_content(B, is_gone)
            assert again.used_bytes() == {UPSTREAM: 110}
            again.forget_content(B, lambda: True)
        assert rows.used_bytes() == {UPSTREAM: 10}
        assert rows.marks(B) == {}
        assert rows.known(UPSTREAM, NAME, B) == KnownContent(layer(B), is_confirmed=True, is_here=False)

    def test_the_document_served_least_recently_goes_with_its_tags(self, rows: Catalogue) -> None:
        put_image(rows, A, B, tag="1", now=1.0)
        put_image(rows, C, D, tag="2", now=2.0)
        rows.note_served(NAME, B, now=3.0)
        assert make_room(rows, 220) == 0
        assert make_room(rows, 120) == 1
        assert (rows.tag(NAME, "2"), rows.tags(NAME)) == (None, ("1",))
        assert left(rows) == {C, D}
        assert rows.used_bytes() == {UPSTREAM: 110}
        assert rows.contents(UPSTREAM) == {A, B}

    def test_a_shared_blob_stays_while_one_of_its_documents_does(self, rows: Catalogue) -> None:
        put_image(rows, A, B, C, tag="1", now=1.0)
        put_image(rows, D, B, name=OTHER_NAME, tag="1", now=2.0)
        assert make_room(rows, 100, not_since=2.0) == 1
        assert left(rows) == {A, C}
        assert rows.used_bytes() == {UPSTREAM: 110}

    def test_reserving_evicts_nothing(self, rows: Catalogue) -> None:
        put_image(rows, A, B, tag="1", now=1.0)
        put_image(rows, C, D, tag="2", now=5.0)
        wanted = reservation(Digest.of(b"wanted"), 110)
        for quota, not_since, is_reserved in (
            # Larger than the quota; as large; with what was served lately, too large, and just not.
            (109, ALWAYS, False),
            (110, ALWAYS, True),
            (219, 5.0, False),
            (220, 5.0, True),
            (329, 0.0, False),
            (330, 0.0, True),
        ):
            assert reserve(rows, wanted, quota, not_since=not_since) is is_reserved
            rows.end_reservation(wanted.id)
            assert rows.used_bytes() == {UPSTREAM: 220}
            assert left(rows) == set()

    def test_what_two_spared_documents_share_is_counted_once(self, rows: Catalogue) -> None:
        put_image(rows, A, B, now=5.0)
        put_image(rows, C, B, name=OTHER_NAME, now=5.0)
        put_image(rows, D, now=1.0)
        wanted = reservation(Digest.of(b"wanted"), 100)
        assert not reserve(rows, wanted, 219, not_since=5.0)
        assert reserve(rows, wanted, 220, not_since=5.0)

    def test_what_is_on_its_way_stays_with_what_names_it(self, rows: Catalogue) -> None:
        rows.put_document(UPSTREAM, NAME, manifest(A), [layer(B)], now=1.0)
        assert reserve(rows, reservation(B, 100, "1"), 110)
        assert not reserve(rows, reservation(C, 1, "2"), 110)
        assert make_room(rows, 0) == 0
        assert rows.document(NAME, A) == manifest(A)
        # The wanted blob's own document doesn't make room for it.
        rows.end_reservation("1")
        assert not reserve(rows, reservation(B, 101, "3"), 110)
        assert reserve(rows, reservation(C, 105, "4"), 110)
        assert make_room(rows, 0) == 1
        assert left(rows) == {A, B}

    def test_several_fetches_of_one_blob_reserve_it_once(self, rows: Catalogue, later: Later) -> None:
        with later() as again:
            assert reserve(rows, reservation(A, 100, "1"), 150)
            assert reserve(again, reservation(A, 100, "2", owner="b"), 150)
            rows.end_reservation("1")
            assert not reserve(rows, reservation(B, 100, "3"), 150)
            # It is here now, and still reserved: once.
            again.put_blob(UPSTREAM, NAME, layer(A), now=1.0)
            assert reserve(rows, reservation(B, 50, "4"), 150)
            again.end_reservation("2")
            again.end_reservation("2")
            assert not reserve(again, reservation(C, 1, "5"), 150, not_since=0.0)

    def test_a_dead_replicas_reservations_are_over(self, rows: Catalogue) -> None:
        assert reserve(rows, reservation(A, 100, "1", owner="dead", ends_at=100.0), 100)
        assert reserve(rows, reservation(B, 100, "2", owner="alive"), 100)
        assert not reserve(rows, reservation(C, 100, "3", owner="late", ends_at=101.0), 100)
        rows.end_reservations("dead")
        assert not reserve(rows, reservation(C, 100, "3"), 100)
        rows.end_reservations("alive")
        assert reserve(rows, reservation(C, 100, "3", owner="late", ends_at=101.0), 100)
        rows.renew_reservations("late", ends_at=300.0)
        late = rows.try_to_reserve(reservation(D, 1, "4", ends_at=900.0), quota_bytes=100, not_since=0.0, now=299.0)
        assert not late
        over = rows.try_to_reserve(reservation(D, 1, "4", ends_at=900.0), quota_bytes=100, not_since=0.0, now=300.0)
        assert over

    def test_without_quota_all_is_reserved(self, rows: Catalogue) -> None:
        assert reserve(rows, reservation(A, 1 << 50), None)
        rows.put_blob(UPSTREAM, NAME, layer(A, 1 << 50), now=1.0)
        assert rows.used_bytes() == {UPSTREAM: 1 << 50}

    def test_what_leaves_may_be_wanted_again(self, rows: Catalogue, later: Later) -> None:
        put_image(rows, A, B, tag="1")
        assert reserve(rows, reservation(C, 100, "1"), 100)
        assert make_room(rows, 0) == 1
        before = rows.evicted(UPSTREAM)
        assert {each.digest for each in before} == {A, B}
        assert rows.wanted(UPSTREAM, (A, B), now=100.0) == frozenset()
        with later() as again:
            put_image(again, A, D, tag="1", now=2.0)
            assert reserve(again, reservation(B, 100, "2"), None)
            assert rows.wanted(UPSTREAM, ALL, now=100.0) == {A, B, C, D}
            # One that is dead wants nothing.
            assert rows.wanted(UPSTREAM, ALL, now=1e9) == {A, D}
            assert rows.wanted(OTHER, ALL, now=100.0) == frozenset()
            # Evicted once more: a replica that lets go of the first eviction doesn't forget the second one.
            again.end_reservation("2")
            assert make_room(again, 0) == 1
        rows.forget_evicted(UPSTREAM, before)
        assert left(rows) == {A, D}
        rows.forget_evicted(UPSTREAM, rows.evicted(UPSTREAM))
        assert left(rows) == set()

    def test_upstreams_are_apart(self, rows: Catalogue) -> None:
        put_image(rows, A, B, tag="1")
        rows.put_document(OTHER, "s.example/app", manifest(A), [layer(B)], tag="1", now=1.0)
        assert rows.used_bytes() == {UPSTREAM: 110, OTHER: 10}
        known = KnownContent(layer(B), is_confirmed=False, is_here=False)
        assert rows.known(OTHER, "s.example/app", B) == known
        rows.put_blob(OTHER, "s.example/app", layer(B), now=1.0)
        assert set(rows.marks(B)) == {UPSTREAM, OTHER}
        assert make_room(rows, 0) == 1
        assert rows.used_bytes() == {OTHER: 110}
        rows.forget_upstream(OTHER)
        assert rows.used_bytes() == {}
        assert rows.contents(OTHER) == frozenset()
        assert (rows.tags("s.example/app"), rows.names(OTHER)) == ((), ())
        assert left(rows) == {A, B}

    def test_a_quota_holds_for_all_replicas_at_once(self, rows: Catalogue, later: Later) -> None:
        """Eight replicas reserve and put at the same time; never is more here and reserved than the quota."""
        with contextlib.ExitStack() as stack:
            replicas = [stack.enter_context(later()) for _ in range(8)]

            def fetch(number: int) -> list[bool]:
                mine, outcomes = replicas[number], []
                for turn in range(6):
                    blob = layer(Digest.of(f"{number} {turn}".encode()))
                    wanted = reservation(blob.digest, blob.size, f"{number} {turn}", owner=str(number))
                    outcomes.append(reserve(mine, wanted, 1000, not_since=0.0))
                    if outcomes[-1]:
                        mine.put_blob(UPSTREAM, NAME, blob, now=1.0)
                        mine.end_reservation(wanted.id)
                return outcomes

            with ThreadPoolExecutor(8) as threads:
                outcomes = [outcome for some in threads.map(fetch, range(8)) for outcome in some]
        assert outcomes.count(True) == 10
        assert rows.used_bytes() == {UPSTREAM: 1000}

    def test_replicas_that_evict_at_once_lose_nothing(self, rows: Catalogue, later: Later) -> None:
        """What was evicted is leaving, what wasn't is counted, and nothing is both or neither."""
        for number in range(20):
            put_image(rows, Digest.of(f"m{number}".encode()), Digest.of(f"l{number}".encode()), now=float(number))
        everything = rows.contents(UPSTREAM)
        with contextlib.ExitStack() as stack:
            replicas = [stack.enter_context(later()) for _ in range(4)]

            with ThreadPoolExecutor(4) as threads:
                assert sum(threads.map(lambda mine: make_room(mine, 1320), replicas)) == 8
        remaining = rows.contents(UPSTREAM)
        assert left(rows) | remaining == everything
        assert not left(rows) & remaining
        assert rows.used_bytes()[UPSTREAM] == 1320

    @pytest.mark.parametrize("seed", range(6))
    def test_random_steps_agree_with_a_model(self, rows: Catalogue, later: Later, seed: int) -> None:
        dice, model = random.Random(seed), CatalogueModel()
        with later() as other:
            for _ in range(120):
                step = model.step(dice)
                answers = [
                    getattr(each, step.method)(*step.values, **step.named)
                    for each in (model, dice.choice((rows, other)))
                ]
                assert answers[0] == answers[1], step
                model.compare(dice.choice((rows, other)))
