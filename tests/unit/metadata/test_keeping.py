"""What keeps content: labels with containerd's meaning, leases of each form, pins, and why something is kept."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import Descriptor, Digest
from imagestore.errors import InvalidInputError, LeaseNotFoundError
from imagestore.metadata.marking import climb, mark
from imagestore.metadata.records import HOME, Holder, HolderKind, NamedImage
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci import gc_labels
from imagestore.oci.gc_labels import ContentTerms, LeaseTerms, moment
from imagestore.store.maintenance.why import Chain, explain
from tests.unit.metadata.keeping import A, B, C, Clock, D, digest, kept, record


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("1970-01-01t00:00:01.5Z", math.inf),
        ("1970-01-01T00:00:01.5z", math.inf),
        ("1970-01-01T02:00:00+02:00", 0.0),
        ("1970-01-01T00:00:00.000000001Z", 1e-9),
        ("", math.inf),
        ("tomorrow", math.inf),
        ("1970-01-01", math.inf),
        ("1970-13-01T00:00:00Z", math.inf),
        ("1970-01-01T25:00:00Z", math.inf),
        ("1970-01-01T00:00:00", math.inf),
        ("1970-01-01T00:00:01Z or later", math.inf),
        ("1970-01-01T00:00:01+00:00Z", math.inf),
        ("\u0661970-01-01T00:00:00Z", math.inf),
    ],
)
def test_moments_are_rfc_3339_or_never(text: str, seconds: float) -> None:
    assert moment(text) == seconds


@pytest.mark.parametrize(
    ("labels", "terms"),
    [
        ({}, ContentTerms(False, ())),
        ({"containerd.io/gc.root": "x"}, ContentTerms(True, ())),
        ({"containerd.io/gc.root.anything": "x"}, ContentTerms(True, ())),
        ({"containerd.io/gc.ref.content": str(A)}, ContentTerms(False, (A,))),
        ({"containerd.io/gc.ref.content.l.0": str(A), "containerd.io/gc.ref.content.l.1": str(B)}, (A, B)),
        ({"containerd.io/gc.ref.content/x": str(A)}, ContentTerms(False, (A,))),
        ({"containerd.io/gc.ref.contents": str(A)}, ContentTerms(False, ())),
        ({"containerd.io/gc.ref.content.m.0": "no digest"}, ContentTerms(False, ())),
        ({"containerd.io/gc.expire": "1970-01-01T00:00:00Z"}, ContentTerms(False, ())),
        ({"containerd.io/gc.ref.snapshot.overlayfs": "sha256:x"}, ContentTerms(False, ())),
    ],
)
def test_labels_on_content_mean_what_containerd_means(
    labels: dict[str, str], terms: ContentTerms | tuple[Digest, ...]
) -> None:
    expected = terms if isinstance(terms, ContentTerms) else ContentTerms(False, terms)
    assert ContentTerms.of(labels) == expected


def test_labels_on_leases_are_expiry_and_flatness() -> None:
    assert LeaseTerms.of({gc_labels.FLAT: "", gc_labels.EXPIRE: "soon"}) == LeaseTerms(math.inf, True)


@pytest.mark.parametrize("labels", [{"k" * 2000: "v" * 2097}, {"": "v"}])
def test_labels_are_bounded(store: SqliteMetadataStore, labels: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="4096"):
        store.graph.label_content(A, labels)
    with pytest.raises(InvalidInputError, match="4096"):
        store.leases.create("l", lifetime_seconds=1, labels=labels)


def test_a_root_label_keeps_content_and_what_its_reference_labels_name(store: SqliteMetadataStore) -> None:
    store.graph.label_content(
        A, {gc_labels.ROOT: "now", f"{gc_labels.REFERENCE}.0": str(B), "free": "text", "empty": ""}
    )
    store.graph.put_edges({B: [C]})
    assert kept(store) == {A, B, C}
    assert [store.graph.is_held(each) for each in (A, B, C, D)] == [True, True, True, False]
    assert store.graph.content_labels(A).keys() == {gc_labels.ROOT, f"{gc_labels.REFERENCE}.0", "free"}
    assert (store.graph.children_of([str(A)]), store.graph.parents(B)) == ({str(A): [str(B)]}, (A,))
    store.graph.label_content(A, {"free": "text"})
    assert kept(store) == set()
    assert store.graph.parents(B) == ()
    store.graph.forget_content([str(A)])
    assert store.graph.content_labels(A) == {}


@pytest.mark.parametrize(
    "keep",
    [
        lambda store: store.images.put(record(), {}),
        lambda store: store.graph.label_content(A, {gc_labels.ROOT: "now"}),
        lambda store: store.leases.create("l", lifetime_seconds=10, content=[A]),
        lambda store: store.named_images.put(NamedImage(HOME, "n", Descriptor("m", A, 1))),
        lambda store: store.namespaces.record_content("other", A, 1),
    ],
    ids=["record", "root label", "lease", "named image", "another namespace"],
)
def test_a_store_that_keeps_nothing_has_none_of_the_roots(
    store: SqliteMetadataStore, keep: Callable[[SqliteMetadataStore], object]
) -> None:
    store.graph.put_edges({A: [B]})
    store.graph.label_content(C, {"free": "text"})
    assert store.graph.keeps_nothing()
    keep(store)
    assert not store.graph.keeps_nothing()


def test_a_flat_lease_keeps_what_it_lists_and_nothing_below(store: SqliteMetadataStore) -> None:
    store.graph.put_edges({A: [B], B: [C]})
    store.leases.create("flat", lifetime_seconds=10, labels={gc_labels.FLAT: "yes"})
    store.leases.add_content("flat", [A, C])
    assert kept(store) == {A, C}
    assert [store.graph.is_held(each) for each in (A, B, C)] == [True, False, True]


@pytest.mark.parametrize(
    ("labels", "expires_at"),
    [
        ({}, Clock.now + 10),
        ({gc_labels.EXPIRE: "2023-11-14T22:13:21Z"}, Clock.now + 1),
        ({gc_labels.EXPIRE: "nonsense"}, math.inf),
    ],
)
def test_the_expiry_label_of_a_lease_goes_before_its_lifetime(
    store: SqliteMetadataStore, clock: Clock, labels: dict[str, str], expires_at: float
) -> None:
    assert store.leases.create("l", lifetime_seconds=10, labels=labels).expires_at == expires_at
    store.leases.add_content("l", [A])
    clock.now += 11
    assert kept(store) == ({A} if math.isinf(expires_at) else set())
    assert store.expire() == (0 if math.isinf(expires_at) else 1)


def test_a_clock_set_back_deletes_no_lease_early(store: SqliteMetadataStore, clock: Clock) -> None:
    store.leases.create("l", lifetime_seconds=10)
    store.leases.add_content("l", [A])
    clock.now -= 86400
    assert store.expire() == 0
    assert store.graph.is_held(A)


def test_leases_list_and_release_single_contents(store: SqliteMetadataStore) -> None:
    store.leases.create("l", lifetime_seconds=10)
    store.leases.add_content("l", [B, A])
    store.leases.remove_content("l", [A, D])
    assert store.leases.content("l") == (B,)
    for ask in (lambda: store.leases.content("gone"), lambda: store.leases.remove_content("gone", [A])):
        with pytest.raises(LeaseNotFoundError):
            ask()
    with pytest.raises(InvalidInputError):
        store.leases.create("", lifetime_seconds=1)


def test_a_record_with_a_past_expiry_label_goes(store: SqliteMetadataStore, clock: Clock) -> None:
    store.images.put(record(labels={gc_labels.EXPIRE: "2023-11-14T22:13:30Z"}), {})
    store.images.put(record("registry.example/b:1", B, {"other": gc_labels.EXPIRE}), {})
    assert store.expire() == 0
    clock.now += 10
    assert store.expire() == 1
    assert [each.reference for each in store.images.find()] == ["registry.example/b:1"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("registry.example/a:1", ["runc"]),
        ("registry.example/a:1@kata", ["kata"]),
        ("registry.example/other:1", []),
    ],
)
def test_a_leased_record_outlives_its_expiry_until_the_lease_ends(
    store: SqliteMetadataStore, clock: Clock, name: str, kept: list[str]
) -> None:
    for handler in ("runc", "kata"):
        expiring = record("registry.example/a:1", labels={gc_labels.EXPIRE: "2023-11-14T22:13:30Z"})
        store.images.put(replace(expiring, handler=handler), {})
    store.leases.create("l", lifetime_seconds=60)
    store.leases.add_image("l", name, "runc")
    store.leases.add_image("l", name, "runc")
    clock.now += 10
    assert store.expire() == 2 - len(kept)
    assert [each.handler for each in store.images.find()] == kept
    clock.now += 60
    store.expire()
    store.expire()
    assert store.images.find() == []
    with pytest.raises(LeaseNotFoundError):
        store.leases.images("l")


def test_a_missing_lease_takes_no_image(store: SqliteMetadataStore) -> None:
    with pytest.raises(LeaseNotFoundError):
        store.leases.add_image("gone", "a", "")
    with pytest.raises(LeaseNotFoundError):
        store.leases.remove_image("gone", "a")


def test_a_record_whose_expiry_was_put_off_meanwhile_stays(tmp_path: Path) -> None:
    past, later = "2023-11-14T22:13:10Z", "2023-11-14T22:14:00Z"
    meanwhile: list[Callable[[], object]] = []

    def clock() -> float:
        if meanwhile:
            meanwhile.pop()()
        return Clock.now

    path = tmp_path / "metadata.db"
    with (
        contextlib.closing(SqliteMetadataStore(path, clock=clock)) as store,
        contextlib.closing(SqliteMetadataStore(path, clock=Clock())) as other,
    ):
        for name in "ab":
            store.images.put(record(f"registry.example/{name}:1", labels={gc_labels.EXPIRE: past}), {})
        put_off = record(labels={gc_labels.EXPIRE: later})
        meanwhile.append(lambda: other.images.put(put_off, {}))
        assert store.expire() == 1
        assert [each.reference for each in store.images.find()] == ["registry.example/a:1"]


def test_pins_and_times_of_use_outlive_a_new_pull(store: SqliteMetadataStore, clock: Clock) -> None:
    store.images.put(record(), {})
    key = ("registry.example/a:1", "runc")
    assert [each.is_pinned for each in store.images.pin([key, ("none", "runc")], is_pinned=True)] == [True]
    clock.now += 100
    store.images.touch(*key)
    used = clock.now
    clock.now += 30
    store.images.touch(*key)
    stored = store.images.put(record(root=B), {})
    assert (stored.is_pinned, stored.used_at) == (True, used)
    store.images.touch("none", "runc")
    assert not store.images.pin([key], is_pinned=False)[0].is_pinned


def test_uses_of_several_images_are_noted_together_and_once_a_minute(store: SqliteMetadataStore, clock: Clock) -> None:
    names = [f"registry.example/{name}:1" for name in "abc"]
    for name in names:
        store.images.put(record(name), {})
    clock.now += 100
    store.images.touch(names[0], "runc")
    first = clock.now
    clock.now += 30
    store.images.touch_many([(name, "runc") for name in (*names[:2], "none", names[1])])
    assert [each.used_at for each in store.images.find()] == [first, clock.now, 0]


def test_a_use_after_the_clock_was_set_back_is_noted(store: SqliteMetadataStore, clock: Clock) -> None:
    store.images.put(record(), {})
    clock.now -= 86400
    store.images.touch("registry.example/a:1", "runc")
    found = store.images.get("registry.example/a:1", "runc")
    assert found is not None
    assert found.used_at == clock.now


def test_why_names_each_root_with_a_shortest_chain(store: SqliteMetadataStore) -> None:
    store.images.put(record(root=A), {A: [B]})
    store.graph.put_edges({B: [C], D: [C]})
    store.leases.create("flat", lifetime_seconds=10, labels={gc_labels.FLAT: "1"})
    store.leases.add_content("flat", [C, B])
    store.leases.create("old", lifetime_seconds=0)
    store.leases.add_content("old", [C])
    store.graph.label_content(D, {gc_labels.ROOT: "1"})
    assert explain(store, C) == (
        Chain(Holder(HolderKind.FLAT_LEASE, "flat"), (C,)),
        Chain(Holder(HolderKind.LABEL, gc_labels.ROOT), (D, C)),
        Chain(Holder(HolderKind.IMAGE, "registry.example/a:1", "runc"), (A, B, C)),
    )
    assert explain(store, digest("nothing")) == ()


NAMES_B = {f"{gc_labels.REFERENCE}.extra": str(B)}


def test_a_record_keeps_what_its_labels_name_as_long_as_they_do(store: SqliteMetadataStore) -> None:
    store.images.put(record(root=A, labels=NAMES_B), {A: [C], B: [D]})
    assert kept(store) == {A, B, C, D}
    assert explain(store, D) == (Chain(Holder(HolderKind.IMAGE, "registry.example/a:1", "runc"), (B, D)),)
    (found,) = store.images.find()
    assert (found.roots, found.held) == ((A,), (A, B))
    assert (store.images.find_by_root(B), store.named_images.kept_with(A), store.named_images.kept_with(B)) == (
        [],
        (),
        (),
    )
    store.images.put(record(root=A), {})
    assert kept(store) == {A, C}


def test_a_label_that_names_a_root_takes_nothing_away_when_it_goes(store: SqliteMetadataStore) -> None:
    store.images.put(record(root=B, labels=NAMES_B), {})
    assert [each.roots for each in store.images.find()] == [(B,)]
    store.images.put(record(root=B), {})
    assert kept(store) == {B}


def test_what_labels_named_is_among_what_removed_records_held(store: SqliteMetadataStore) -> None:
    stored = store.images.put(record(root=A, labels=NAMES_B), {})
    assert set(store.images.drop([(stored.reference, stored.handler)])) == {str(A), str(B)}
    assert store.graph.keeps_nothing()


GRAPH = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4), max_size=10)


@given(GRAPH, st.sets(st.integers(0, 9), max_size=3))
def test_climbing_finds_a_root_exactly_for_what_marking_reaches(
    children: dict[int, list[int]], roots: set[int]
) -> None:
    parents = {node: [each for each, below in children.items() if node in below] for node in range(10)}
    live = mark(roots, lambda node: children.get(node, ()))
    for node in range(10):
        chain = climb(node, parents.__getitem__, roots.__contains__)
        assert bool(chain) == (node in live)
        if chain:
            assert chain[0] in roots
            assert chain[-1] == node
            assert all(low in children[high] for high, low in itertools.pairwise(chain))


NODES = st.sets(st.integers(0, 9), max_size=3)


@given(GRAPH, NODES, NODES, NODES, NODES)
def test_both_questions_of_collection_agree(
    tmp_path_factory: pytest.TempPathFactory,
    children: dict[int, list[int]],
    leased: set[int],
    flat: set[int],
    rooted: set[int],
    present: set[int],
) -> None:
    store = SqliteMetadataStore(tmp_path_factory.mktemp("graph") / "metadata.db")
    names = [digest(str(number)) for number in range(10)]
    with store.exclusive():
        store.graph.put_edges({names[parent]: [names[child] for child in below] for parent, below in children.items()})
        store.leases.create("l", lifetime_seconds=100)
        store.leases.add_content("l", [names[number] for number in leased])
        store.leases.create("flat", lifetime_seconds=100, labels={gc_labels.FLAT: "1"})
        store.leases.add_content("flat", [names[number] for number in flat])
        for number in rooted:
            store.graph.label_content(names[number], {gc_labels.ROOT: "1"})
    live = kept(store, names)
    assert live == {names[each] for each in mark(leased | rooted, lambda node: children.get(node, ())) | flat}
    found = [Digest.parse(text) for text in store.graph.garbage(str(names[number]) for number in present)]
    starts = {names[number] for number, below in children.items() if below} | {names[number] for number in rooted}
    assert set(found) == ({names[number] for number in present} | starts) - live
    assert len(set(found)) == len(found)
    inner = [each in starts for each in found]
    assert inner == sorted(inner, reverse=True), "what points on comes first"
    assert {each for each in names if store.graph.is_held(each)} == live
    assert {each for each in names if explain(store, each)} == live
    store.close()


@pytest.mark.parametrize("key", ["", ".0", "/x", "xcontainerd.io/gc.ref.content", "containerd.io/gc.ref.contents"])
def test_other_labels_that_name_a_digest_are_no_references(key: str) -> None:
    assert gc_labels.ContentTerms.of({key: str(A)}).references == ()
