"""Content records: who knows what, and what a collection drops."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore import Descriptor, Digest
from imagestore.errors import InvalidInputError
from imagestore.metadata.marking import mark
from imagestore.metadata.records import HOME, NamedImage, checked_namespace, lease_key
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.unit.metadata.keeping import Clock

A, B, C, D = (Digest.of(name) for name in (b"a", b"b", b"c", b"d"))


def kept(store: SqliteMetadataStore) -> set[Digest]:
    """Asked both ways: what isn't garbage, and what is held."""
    held = {digest for digest in (A, B, C, D) if store.graph.is_held(digest)}
    texts = [str(digest) for digest in (A, B, C, D)]
    assert set(store.graph.unheld(texts)) == set(texts) - set(map(str, held))
    assert set(texts) - set(store.graph.garbage(texts)) == set(map(str, held))
    return held


@pytest.mark.parametrize("name", ["a", "k8s.io", "A-1_b.c", "a" * 76])
def test_good_namespaces(name: str) -> None:
    assert checked_namespace(name) == name


@pytest.mark.parametrize("name", ["", ".", "a.", "a--b", "a b", "a/b", "ä", "a\n", "a" * 77, "proxy:a"])
def test_bad_namespaces(name: str) -> None:
    with pytest.raises(InvalidInputError, match="namespace"):
        checked_namespace(name)


def test_a_record_holds_the_blob_and_nothing_below_it(store: SqliteMetadataStore) -> None:
    store.graph.put_edges({A: [B]})
    assert store.namespaces.record_content("default", A, 1)
    assert not store.namespaces.record_content("default", A, 1)
    assert (store.graph.is_held(A), store.graph.is_held(B)) == (True, False)
    assert kept(store) == {A}
    assert store.namespaces.forget_record("default", A)
    assert not store.namespaces.forget_record("default", A)
    assert kept(store) == set()


def test_everything_is_the_stores_own_but_what_is_only_somebody_elses(store: SqliteMetadataStore) -> None:
    store.namespaces.record_content("default", A, 1)
    store.namespaces.record_content("default", B, 1)
    store.namespaces.record_content(HOME, B, 1)
    assert [store.namespaces.is_home(each) for each in (A, B, C)] == [False, True, True]
    assert store.namespaces.foreign_content() == {A}
    store.leases.create("l", lifetime_seconds=10)
    store.leases.add_content("l", [A])
    assert store.namespaces.foreign_content() == frozenset()


def test_an_ingests_day_ends_but_not_while_a_lease_holds_it(store: SqliteMetadataStore, clock: Clock) -> None:
    key = lease_key("default", "l")
    store.leases.create(key, lifetime_seconds=9e9, namespace="default")
    store.namespaces.put_ingest("default", "default/1/leased", expected=A, lease=key)
    store.namespaces.put_ingest("default", "default/1/alone", expected=B, lease="")
    store.namespaces.put_ingest("proxy:x", "proxy:x/r", expected=None, lease="")
    store.namespaces.record_content("default", A, 1)
    store.namespaces.record_content("default", B, 1)
    assert store.namespaces.sweep() == ()
    assert store.namespaces.kept_ingests() == {"default/1/leased", "default/1/alone", "proxy:x/r"}
    clock.now += 25 * 3600
    assert store.namespaces.kept_ingests() == {"default/1/leased", "proxy:x/r"}
    assert store.namespaces.sweep() == ("default/1/alone",)
    assert [record.digest for record in store.namespaces.content_records("default")] == [A]
    store.leases.delete(key)
    assert store.namespaces.sweep() == ("default/1/leased",)
    assert store.namespaces.content_records("default") == []
    assert store.namespaces.kept_ingests() == {"proxy:x/r"}
    assert store.namespaces.sweep() == ()


def test_writing_on_does_not_take_an_ingest_from_its_lease(store: SqliteMetadataStore, clock: Clock) -> None:
    key = lease_key("default", "l")
    store.leases.create(key, lifetime_seconds=9e9, namespace="default")
    store.namespaces.put_ingest("default", "r", expected=None, lease=key)
    store.namespaces.put_ingest("default", "r", expected=A, lease="")
    assert store.namespaces.ingests("default") == {"r": (str(A), key)}
    assert store.namespaces.lease_ingest("default", "r", "")
    clock.now += 25 * 3600
    assert store.namespaces.sweep() == ("r",)


def test_a_write_that_is_begun_again_has_a_day_again(store: SqliteMetadataStore, clock: Clock) -> None:
    store.namespaces.put_ingest("default", "r", expected=None, lease="")
    clock.now += 23 * 3600
    store.namespaces.put_ingest("default", "r", expected=A, lease="")
    clock.now += 23 * 3600
    assert store.namespaces.sweep() == ()
    clock.now += 2 * 3600
    assert store.namespaces.sweep() == ("r",)


def test_a_write_that_ends_is_forgotten_alone(store: SqliteMetadataStore) -> None:
    for owner, ref in (("default", "r"), ("default", "other"), ("another", "r")):
        store.namespaces.put_ingest(owner, ref, expected=None, lease="")
    store.namespaces.forget_ingest("default", "r")
    assert store.namespaces.ingests("default") == {"other": ("", "")}
    assert store.namespaces.ingests("another") == {"r": ("", "")}


def test_a_record_that_goes_takes_no_other_records_references_along(store: SqliteMetadataStore) -> None:
    for owner, parent, children in (("default", A, [B, B]), ("default", C, [D]), ("another", A, [B])):
        for digest in (parent, *children):
            store.namespaces.record_content(owner, digest, 1)
        labels = {f"containerd.io/gc.ref.content.{number}": str(child) for number, child in enumerate(children)}
        store.namespaces.label_record(owner, parent, labels)
        store.named_images.put(NamedImage(owner, str(parent), Descriptor("m", parent, 1)))
    assert store.namespaces.forget_record("default", A)
    store.namespaces.sweep()
    assert {record.digest for record in store.namespaces.content_records("default")} == {C, D}
    assert {record.digest for record in store.namespaces.content_records("another")} == {A, B}


def test_what_a_proxy_knows_or_writes_makes_no_namespace(store: SqliteMetadataStore) -> None:
    store.namespaces.record_content("proxy:x", A, 1)
    store.namespaces.put_ingest("proxy:x", "proxy:x/r", expected=None, lease="")
    assert list(store.namespaces.find()) == [HOME]
    store.namespaces.record_content("known", A, 1)
    store.namespaces.put_ingest("writes", "writes/r", expected=None, lease="")
    assert list(store.namespaces.find()) == [HOME, "known", "writes"]


def test_what_other_images_hold_goes_with_no_new_name(store: SqliteMetadataStore) -> None:
    store.named_images.put(NamedImage(HOME, "n", Descriptor("m", A, 1), also_keeps=(B,)))
    store.named_images.put(NamedImage(HOME, "other", Descriptor("m", C, 1)))
    store.named_images.put(NamedImage("default", "n", Descriptor("m", A, 1), also_keeps=(D,)))
    assert store.named_images.kept_with(A) == (B,)


@pytest.mark.parametrize("leases", [("", "l"), ("l", ""), ("", "added")])
def test_an_ingest_that_had_no_lease_at_some_time_lives_its_day_when_a_lease_ends(
    store: SqliteMetadataStore, clock: Clock, leases: tuple[str, str]
) -> None:
    """As in containerd; what was brought so far may be much."""
    store.leases.create("l", lifetime_seconds=9e9)
    for lease in leases:
        if lease == "added":
            assert store.namespaces.lease_ingest(HOME, "r", "l")
        else:
            store.namespaces.put_ingest(HOME, "r", expected=None, lease=lease)
    assert store.namespaces.ingests(HOME) == {"r": ("", "l")}
    store.leases.delete("l")
    assert store.namespaces.sweep() == ()
    assert store.namespaces.ingests(HOME) == {"r": ("", "")}
    clock.now += 25 * 3600
    assert store.namespaces.sweep() == ("r",)


def test_an_image_keeps_what_it_was_made_with_until_its_target_moves(store: SqliteMetadataStore) -> None:
    image = NamedImage(HOME, "n", Descriptor("m", A, 1), {"k": "v"}, {"l": "w"}, 1.0, 2.0, also_keeps=(B,))
    assert store.named_images.put(image) == image
    assert store.named_images.find(HOME) == [image]
    assert kept(store) == {A, B}
    assert set(store.named_images.kept_with(A)) == {B}
    store.named_images.put(NamedImage(HOME, "n", Descriptor("m", C, 1)))
    assert kept(store) == {C}
    assert store.named_images.remove(HOME, "n")
    assert not store.named_images.remove(HOME, "n")
    assert kept(store) == set()


@pytest.mark.parametrize("namespace", [HOME, "default"])
def test_an_image_keeps_what_its_labels_name_as_long_as_they_do(store: SqliteMetadataStore, namespace: str) -> None:
    for each in (A, B, C):
        store.namespaces.record_content(namespace, each, 1)
    image = NamedImage(namespace, "n", Descriptor("m", A, 1), labels={"containerd.io/gc.ref.content.x": str(B)})
    assert store.named_images.put(image).also_keeps == ()
    store.namespaces.sweep()
    assert kept(store) == {A, B}
    store.named_images.put(replace(image, labels={}))
    store.namespaces.sweep()
    assert kept(store) == {A}


def test_what_an_image_keeps_for_another_reason_too_stays_when_the_label_goes(store: SqliteMetadataStore) -> None:
    labels = {"containerd.io/gc.ref.content.a": str(A), "containerd.io/gc.ref.content.b": str(B)}
    image = NamedImage(HOME, "n", Descriptor("m", A, 1), labels=labels, also_keeps=(B,))
    stored = store.named_images.put(image)
    assert stored == image
    store.named_images.put(replace(stored, labels={}))
    assert kept(store) == {A, B}


def test_what_labels_name_is_among_what_a_hidden_image_held(store: SqliteMetadataStore) -> None:
    labels = {"containerd.io/gc.ref.content": str(B)}
    store.named_images.put(NamedImage(HOME, "n", Descriptor("m", A, 1), labels=labels))
    assert set(store.named_images.drop_home(["n"])) == {str(A), str(B)}
    assert store.graph.keeps_nothing()


def test_images_of_other_namespaces_keep_records_not_files(store: SqliteMetadataStore) -> None:
    store.named_images.put(NamedImage("default", "n", Descriptor("m", A, 1)))
    assert kept(store) == set()
    store.namespaces.record_content("default", A, 1)
    store.namespaces.record_content("default", B, 1)
    store.namespaces.sweep()
    assert kept(store) == {A}


def test_what_a_crash_left_of_a_namespace_in_use_is_no_damage(tmp_path: Path, store: SqliteMetadataStore) -> None:
    store.namespaces.record_content("default", A, 1)
    store.namespaces.label_record("default", A, {"containerd.io/gc.root": "x"})
    store.close()
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as again:
        (record,) = again.namespaces.content_records("default")
        assert (record.digest, dict(record.labels)) == (A, {"containerd.io/gc.root": "x"})
        assert again.damage() == ()


_DIGESTS = st.sampled_from((A, B, C, D))


@dataclass(frozen=True)
class World:
    """What one namespace has."""

    known: set[Digest]
    edges: set[tuple[Digest, Digest]]
    roots: set[Digest]
    images: set[Digest]
    leased: set[Digest]
    flat: set[Digest]

    def kept(self) -> set[Digest]:
        """What stays known; labels, and so edges and roots, are kept only on what is known."""
        edges: dict[Digest, list[Digest]] = {}
        for parent, child in self.edges:
            if parent in self.known:
                edges.setdefault(parent, []).append(child)
        roots = (self.roots & self.known) | self.images | self.leased
        return (mark(roots, lambda digest: edges.get(digest, [])) | self.flat) & self.known

    def build(self, store: SqliteMetadataStore, namespace: str) -> None:
        """Make it so."""
        for digest in self.known:
            store.namespaces.record_content(namespace, digest, 1)
            references = [child for parent, child in self.edges if parent == digest]
            labels = {f"containerd.io/gc.ref.content.{n}": str(child) for n, child in enumerate(references)}
            if digest in self.roots:
                labels["containerd.io/gc.root"] = "x"
            store.namespaces.label_record(namespace, digest, labels)
        for number, digest in enumerate(self.images):
            store.named_images.put(NamedImage(namespace, str(number), Descriptor("m", digest, 1)))
        for name, digests, labels in (("deep", self.leased, {}), ("flat", self.flat, {"containerd.io/gc.flat": "x"})):
            key = lease_key(namespace, name)
            store.leases.create(key, lifetime_seconds=60, labels=labels, namespace=namespace)
            store.leases.add_content(key, list(digests))


_WORLDS = st.builds(
    World,
    known=st.sets(_DIGESTS),
    edges=st.sets(st.tuples(_DIGESTS, _DIGESTS), max_size=6),
    roots=st.sets(_DIGESTS, max_size=1),
    images=st.sets(_DIGESTS, max_size=2),
    leased=st.sets(_DIGESTS, max_size=1),
    flat=st.sets(_DIGESTS, max_size=1),
)


@settings(max_examples=50)
@given(_WORLDS, _WORLDS)
def test_each_namespace_keeps_what_its_own_roots_reach(folder: Path, mine: World, other: World) -> None:
    path = folder / "metadata.db"
    path.unlink(missing_ok=True)
    store = SqliteMetadataStore(path)
    with store.exclusive():
        mine.build(store, "mine")
        other.build(store, "other")
        store.namespaces.sweep()
    found = [{record.digest for record in store.namespaces.content_records(name)} for name in ("mine", "other")]
    store.close()
    assert found == [mine.kept(), other.kept()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all examples, each with a database of its own."""
    return tmp_path_factory.mktemp("namespaces")


def test_a_sweep_asks_about_every_record_of_home_and_lets_others_in_between(
    store: SqliteMetadataStore, tmp_path: Path
) -> None:
    """In batches; another process writes between two of them, and what it leases then stays."""
    contents = [Digest.of(str(number).encode()) for number in range(300)]
    with store.exclusive():
        for digest in contents:
            store.namespaces.record_content(HOME, digest, 1)
    last = store.namespaces.content_records(HOME)[-1].digest
    other = SqliteMetadataStore(tmp_path / "metadata.db", clock=Clock())
    batches = 0
    give_way = store.database.give_way

    def between() -> None:
        nonlocal batches
        batches += 1
        if batches == 2:
            other.leases.create("late", lifetime_seconds=100)
            other.leases.add_content("late", [last])
        give_way()

    store.database.give_way = between  # type: ignore[method-assign]
    with contextlib.closing(other):
        store.namespaces.sweep()
    assert batches > 2
    assert [record.digest for record in store.namespaces.content_records(HOME)] == [last]
