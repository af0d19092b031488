"""What keeps content: labels with containerd's meaning, leases of each form, pins, and the journal of records."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import gc_labels
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.errors import InvalidInputError, LeaseNotFoundError, StoreCorruptError, StoreFullError
from imagestore.gc import climb, mark
from imagestore.gc_labels import ContentTerms, LeaseTerms, moment
from imagestore.media_types import OCI_MANIFEST
from imagestore.metadata.api import Holder, HolderKind, ImageRecord
from imagestore.metadata.journal import RecordJournal
from imagestore.metadata.sqlite import SqliteMetadataStore
from imagestore.platforms.spec import Platform
from imagestore.upkeep.why import Chain, explain


def restorable(store: SqliteMetadataStore) -> tuple[list[list[ImageRecord]], int]:
    found = store.journaled()
    return found.candidates, found.unreadable


def digest(name: str) -> Digest:
    return Digest.of(name.encode())


A, B, C, D = (digest(name) for name in "abcd")


def kept(store: SqliteMetadataStore, names: Iterable[Digest] = (A, B, C, D)) -> set[Digest]:
    """What a collection would spare; the question that it asks again before it deletes must agree."""
    names = list(names)
    garbage = set(map(Digest.parse, store.garbage(map(str, names))))
    assert set(map(Digest.parse, store.unheld(list(map(str, names))))) == garbage & set(names)
    return set(names) - garbage


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqliteMetadataStore]:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db", clock=clock)) as store:
        yield store


def record(
    reference: str = "registry.example/a:1", root: Digest = A, labels: dict[str, str] | None = None
) -> ImageRecord:
    descriptor = Descriptor(OCI_MANIFEST, root, 10)
    platform = Platform("linux", "amd64")
    return ImageRecord(reference, "runc", descriptor, descriptor, C, platform, "linux/amd64", (root,), 3, labels or {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01t00:00:01.5z", 1.5),
        ("1970-01-01T02:00:00+02:00", 0.0),
        ("1970-01-01T00:00:00.000000001Z", 1e-9),
        ("", math.inf),
        ("tomorrow", math.inf),
        ("1970-01-01", math.inf),
        ("1970-13-01T00:00:00Z", math.inf),
        ("1970-01-01T25:00:00Z", math.inf),
        ("1970-01-01T00:00:00", math.inf),
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
        store.label_content(A, labels)
    with pytest.raises(InvalidInputError, match="4096"):
        store.create_lease("l", lifetime_seconds=1, labels=labels)


def test_a_root_label_keeps_content_and_what_its_reference_labels_name(store: SqliteMetadataStore) -> None:
    store.label_content(A, {gc_labels.ROOT: "now", f"{gc_labels.REFERENCE}.0": str(B), "free": "text", "empty": ""})
    store.put_edges({B: [C]})
    assert kept(store) == {A, B, C}
    assert [store.is_held(each) for each in (A, B, C, D)] == [True, True, True, False]
    assert store.content_labels(A).keys() == {gc_labels.ROOT, f"{gc_labels.REFERENCE}.0", "free"}
    assert (store.children_of([str(A)]), store.parents(B)) == ({str(A): [str(B)]}, (A,))
    store.label_content(A, {"free": "text"})
    assert kept(store) == set()
    assert store.parents(B) == ()
    store.forget_content([str(A)])
    assert store.content_labels(A) == {}


def test_a_flat_lease_keeps_what_it_lists_and_nothing_below(store: SqliteMetadataStore) -> None:
    store.put_edges({A: [B], B: [C]})
    store.create_lease("flat", lifetime_seconds=10, labels={gc_labels.FLAT: "yes"})
    store.lease_content("flat", [A, C])
    assert kept(store) == {A, C}
    assert [store.is_held(each) for each in (A, B, C)] == [True, False, True]


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
    assert store.create_lease("l", lifetime_seconds=10, labels=labels).expires_at == expires_at
    store.lease_content("l", [A])
    clock.now += 11
    assert kept(store) == ({A} if math.isinf(expires_at) else set())
    assert store.expire() == (0 if math.isinf(expires_at) else 1)


def test_a_clock_set_back_deletes_no_lease_early(store: SqliteMetadataStore, clock: Clock) -> None:
    store.create_lease("l", lifetime_seconds=10)
    store.lease_content("l", [A])
    clock.now -= 86400
    assert store.expire() == 0
    assert store.is_held(A)


def test_leases_list_and_release_single_contents(store: SqliteMetadataStore) -> None:
    store.create_lease("l", lifetime_seconds=10)
    store.lease_content("l", [B, A])
    store.unlease_content("l", [A, D])
    assert store.leased_content("l") == (B,)
    for ask in (lambda: store.leased_content("gone"), lambda: store.unlease_content("gone", [A])):
        with pytest.raises(LeaseNotFoundError):
            ask()
    with pytest.raises(InvalidInputError):
        store.create_lease("", lifetime_seconds=1)


def test_a_record_with_a_past_expiry_label_goes(store: SqliteMetadataStore, clock: Clock) -> None:
    store.put_image(record(labels={gc_labels.EXPIRE: "2023-11-14T22:13:30Z"}), {})
    store.put_image(record("registry.example/b:1", B, {"other": gc_labels.EXPIRE}), {})
    assert store.expire() == 0
    clock.now += 10
    assert store.expire() == 1
    assert [each.reference for each in store.find_images()] == ["registry.example/b:1"]


def test_pins_and_times_of_use_outlive_a_new_pull(store: SqliteMetadataStore, clock: Clock) -> None:
    store.put_image(record(), {})
    key = ("registry.example/a:1", "runc")
    assert [each.is_pinned for each in store.pin_images([key, ("none", "runc")], is_pinned=True)] == [True]
    clock.now += 100
    store.touch_image(*key)
    used = clock.now
    clock.now += 30
    store.touch_image(*key)
    stored = store.put_image(record(root=B), {})
    assert (stored.is_pinned, stored.used_at) == (True, used)
    store.touch_image("none", "runc")
    assert not store.pin_images([key], is_pinned=False)[0].is_pinned


def test_a_use_after_the_clock_was_set_back_is_noted(store: SqliteMetadataStore, clock: Clock) -> None:
    store.put_image(record(), {})
    clock.now -= 86400
    store.touch_image("registry.example/a:1", "runc")
    found = store.get_image("registry.example/a:1", "runc")
    assert found is not None
    assert found.used_at == clock.now


def test_why_names_each_root_with_a_shortest_chain(store: SqliteMetadataStore) -> None:
    store.put_image(record(root=A), {A: [B]})
    store.put_edges({B: [C], D: [C]})
    store.create_lease("flat", lifetime_seconds=10, labels={gc_labels.FLAT: "1"})
    store.lease_content("flat", [C, B])
    store.create_lease("old", lifetime_seconds=0)
    store.lease_content("old", [C])
    store.label_content(D, {gc_labels.ROOT: "1"})
    assert explain(store, C) == (
        Chain(Holder(HolderKind.FLAT_LEASE, "flat"), (C,)),
        Chain(Holder(HolderKind.LABEL, gc_labels.ROOT), (D, C)),
        Chain(Holder(HolderKind.IMAGE, "registry.example/a:1", "runc"), (A, B, C)),
    )
    assert explain(store, digest("nothing")) == ()


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
        store.put_edges({names[parent]: [names[child] for child in below] for parent, below in children.items()})
        store.create_lease("l", lifetime_seconds=100)
        store.lease_content("l", [names[number] for number in leased])
        store.create_lease("flat", lifetime_seconds=100, labels={gc_labels.FLAT: "1"})
        store.lease_content("flat", [names[number] for number in flat])
        for number in rooted:
            store.label_content(names[number], {gc_labels.ROOT: "1"})
    live = kept(store, names)
    assert live == {names[each] for each in mark(leased | rooted, lambda node: children.get(node, ())) | flat}
    found = [Digest.parse(text) for text in store.garbage(str(names[number]) for number in present)]
    starts = {names[number] for number, below in children.items() if below} | {names[number] for number in rooted}
    assert set(found) == ({names[number] for number in present} | starts) - live
    assert len(set(found)) == len(found)
    inner = [each in starts for each in found]
    assert inner == sorted(inner, reverse=True), "what points on comes first"
    assert {each for each in names if store.is_held(each)} == live
    assert {each for each in names if explain(store, each)} == live
    store.close()


def test_the_journal_has_the_last_word_about_each_record(tmp_path: Path, store: SqliteMetadataStore) -> None:
    first = store.put_image(record(), {})
    store.put_image(record("registry.example/b:1", B), {})
    store.remove_images([("registry.example/b:1", "runc")])
    (pinned,) = store.pin_images([(first.reference, first.handler)], is_pinned=True)
    assert restorable(store) == ([[pinned, first]], 0)
    assert (tmp_path / "records.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_cut_off_or_hostile_line_spoils_only_itself(tmp_path: Path, store: SqliteMetadataStore) -> None:
    journal = tmp_path / "records.jsonl"
    kept = store.put_image(record(), {})
    size = journal.stat().st_size
    store.put_image(record("registry.example/b:1", B), {})
    os.truncate(journal, size + 40)
    with open(journal, "ab") as file:
        file.write(b'\n{"put": [1]}\n{"number": 1, "put": [1]}\n[]\n\xff\n{"remove": "x"}\n' + b"[" * 100_000)
    after = store.put_image(record("registry.example/c:1", C), {})
    assert restorable(store) == ([[kept], [after]], 7)


def test_a_long_journal_is_shortened(tmp_path: Path, store: SqliteMetadataStore) -> None:
    journal = tmp_path / "records.jsonl"
    kept = store.put_image(record(), {})
    for _ in range(3):
        store.put_image(replace(record("registry.example/b:1", B), warnings=("x" * 400_000,)), {})
    store.remove_images([("registry.example/b:1", "runc")])
    store.tidy()
    assert journal.stat().st_size < 2000
    assert restorable(store) == ([[kept]], 0)
    assert sorted(path.name for path in tmp_path.glob("records*")) == ["records.jsonl"]


def undone(store: SqliteMetadataStore, record: ImageRecord) -> None:
    """Put a record in a transaction that isn't committed; its line is in the journal."""
    with contextlib.suppress(ZeroDivisionError), store.exclusive():
        store.put_image(record, {})
        raise ZeroDivisionError


def test_a_shortened_journal_still_tells_what_was_never_committed(tmp_path: Path, store: SqliteMetadataStore) -> None:
    kept, journal = store.put_image(record(), {}), RecordJournal(tmp_path / "records.jsonl")
    undone(store, replace(record(root=B), warnings=("x" * 1_100_000,)))
    store.tidy()
    assert journal.size() < 2000
    found = journal.read()
    assert (found.candidates, found.replaced) == ([[kept]], frozenset())
    undone(store, record(root=B))
    found = journal.read()
    assert [[each.roots for each in some] for some in found.candidates] == [[(B,), (A,)]]
    assert found.replaced == {A}
    after = store.put_image(record("registry.example/c:1", C), {})
    assert restorable(store) == ([[kept], [after]], 0)


def test_what_was_never_committed_stays_so_when_the_journal_is_exchanged(
    tmp_path: Path, store: SqliteMetadataStore
) -> None:
    kept = store.put_image(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    length = journal.size()
    with journal.prepared(1, [kept], [], []) as prepared:
        assert prepared is not None
        undone(store, record(root=B))
        assert journal.exchange(prepared, length)
    found = journal.read()
    assert found.candidates[0][0].roots == (B,)
    assert found.replaced == {A}
    store.remove_images([("registry.example/none:1", "runc")])
    assert journal.read().replaced == {A}, "a transaction that changed nothing tells nothing"
    after = store.put_image(record("registry.example/c:1", C), {})
    assert restorable(store) == ([[kept], [after]], 0)


def test_a_journal_that_is_full_uses_no_number_up(store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on in the same transaction still says first where the last one ended."""
    store.put_image(record(), {})
    undone(store, record(root=B))
    real, full = os.write, [True]

    def write(descriptor: int, data: bytes) -> int:
        if full:
            full.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with store.exclusive():
        with pytest.raises(StoreFullError):
            store.put_image(record("registry.example/b:1", B), {})
        store.put_image(record("registry.example/c:1", C), {})
    assert [each[0].roots for each in restorable(store)[0]] == [(A,), (C,)]


def test_what_is_journaled_while_a_new_journal_is_written_stays(tmp_path: Path, store: SqliteMetadataStore) -> None:
    """Both before and after the exchange there is an entry for each record, and for each removal."""
    kept = store.put_image(record(), {})
    gone = store.put_image(record("registry.example/b:1", B), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    length = journal.size()
    with journal.prepared(2, [kept, gone], [], []) as prepared:
        assert prepared is not None
        with journal.prepared(2, [kept, gone], [], []) as second:
            assert second is None, "another process is at it"
        late = store.put_image(record("registry.example/c:1", C), {})
        store.remove_images([(gone.reference, gone.handler)])
        assert journal.exchange(prepared, length)
        assert not journal.exchange(prepared, journal.size() + 1), "it isn't the journal that was read any more"
    assert restorable(store) == ([[kept], [late]], 0)
    assert sorted(path.name for path in tmp_path.glob("records*")) == ["records.jsonl"]


def test_a_journal_is_not_exchanged_under_somebody_who_appends(tmp_path: Path, store: SqliteMetadataStore) -> None:
    kept = store.put_image(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    with open(journal.path, "ab") as appending, journal.prepared(5, [], [], []) as prepared:
        fcntl.flock(appending, fcntl.LOCK_SH)
        assert prepared is not None
        assert not journal.exchange(prepared, journal.size())
    assert restorable(store) == ([[kept]], 0)


def test_a_removal_noted_late_cuts_only_what_was_before_it(tmp_path: Path, store: SqliteMetadataStore) -> None:
    """Another process may put the record again between a removal's commit and its line."""
    store.put_image(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    again = store.put_image(record(root=B), {})
    journal.remove(1, [(again.reference, again.handler)])
    assert restorable(store) == ([[again]], 0)
    journal.remove(2, [(again.reference, again.handler)])
    assert restorable(store) == ([], 0)


def test_a_removal_that_was_rolled_back_is_not_in_the_journal(store: SqliteMetadataStore) -> None:
    kept = store.put_image(record(), {})

    def fail_inside() -> None:
        with store.exclusive():
            store.remove_images([(kept.reference, kept.handler)])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    store.put_image(record("registry.example/b:1", B), {})
    assert [each[0].reference for each in restorable(store)[0]] == ["registry.example/a:1", "registry.example/b:1"]


def test_a_database_that_is_gone_is_not_replaced_by_an_empty_one(tmp_path: Path, store: SqliteMetadataStore) -> None:
    store.put_image(record(), {})
    store.close()
    for path in tmp_path.glob("metadata.db*"):
        path.unlink()
    with pytest.raises(StoreCorruptError, match="the database is gone") as caught:
        SqliteMetadataStore(tmp_path / "metadata.db")
    assert "check --rebuild" in caught.value.hint
    (tmp_path / "records.jsonl").unlink()
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as anew:
        assert anew.find_images() == []


def test_a_label_taken_away_without_a_commit_is_still_in_the_journal(store: SqliteMetadataStore) -> None:
    held = digest("held")
    store.label_content(held, {"containerd.io/gc.root": "a", "note": "1"})
    with contextlib.suppress(ZeroDivisionError), store.exclusive():
        store.label_content(held, {"note": "2"})
        raise ZeroDivisionError
    assert store.journaled().labels == {held: {"containerd.io/gc.root": "a", "note": "2"}}
    store.label_content(held, {"note": "3"})
    assert store.journaled().labels == {held: {"note": "3"}}
    store.label_content(held, {})
    assert store.journaled().labels == {}


def test_content_taken_off_a_lasting_lease_without_a_commit_is_still_in_the_journal(store: SqliteMetadataStore) -> None:
    lease = store.create_lease("lasting", lifetime_seconds=math.inf, namespace="k8s.io")
    store.lease_content("lasting", [digest("a"), digest("b")])
    with contextlib.suppress(ZeroDivisionError), store.exclusive():
        store.unlease_content("lasting", [digest("a")])
        raise ZeroDivisionError
    assert store.journaled().leases == [(lease, tuple(sorted([digest("a"), digest("b")])))]
    store.unlease_content("lasting", [digest("a")])
    assert store.journaled().leases == [(lease, (digest("b"),))]
    store.create_lease("of a pull", lifetime_seconds=24 * 3600.0)
    store.lease_content("of a pull", [digest("a")])
    store.delete_lease("lasting")
    assert store.journaled().leases == []
