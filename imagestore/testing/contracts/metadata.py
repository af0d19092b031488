"""The metadata port's contract: every adapter passes MetadataContract."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import pytest

from imagestore.errors import AlreadyExistsError, InvalidInputError, LeaseNotFoundError, NotFoundError
from imagestore.metadata import HolderKind, ImageRecord, ListedImage, MetadataStore, NamedImage
from imagestore.oci import Descriptor, Digest
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.platforms import Platform

A, B, C, D = (Digest.of(name.encode()) for name in "abcd")
ALL: Final = (A, B, C, D)
NAME: Final = "registry.example/app:1"
#: The type of the fixture ``later``.
Later = Callable[[], AbstractContextManager[MetadataStore]]


def record(reference: str = NAME, handler: str = "runc", *, manifest: Digest = A, config: Digest = B) -> ImageRecord:
    """An image of one manifest with its config."""
    target = Descriptor(OCI_MANIFEST, manifest, 10)
    platform = Platform("windows", "amd64", "", "10.0.17763.1", ("win32k",))
    return ImageRecord(
        reference,
        handler,
        target,
        target,
        config,
        platform,
        "windows(10.0.17763)/amd64",
        (manifest,),
        20,
        labels={"k": "v"},
        warnings=("odd",),
    )


def kept(metadata: MetadataStore, digests: Collection[Digest] = ALL) -> set[Digest]:
    """What a collection would spare; the two questions that it asks have to agree."""
    texts = [str(digest) for digest in digests]
    garbage = set(metadata.graph.garbage(texts))
    assert set(metadata.graph.unheld(texts)) == garbage & set(texts)
    spared = {digest for digest in digests if str(digest) not in garbage}
    assert {digest for digest in digests if metadata.graph.is_held(digest)} == spared
    return spared


class MetadataContract:
    """What every MetadataStore has to do.

    Make a class from it that has two fixtures: ``metadata`` gives an empty store, and ``later`` a function whose result
    opens the same records as another process would, as a context manager.
    """

    def test_the_store_has_an_id_that_stays(self, metadata: MetadataStore, later: Later) -> None:
        """The id is 32 hex digits, the same for every process."""
        assert re.fullmatch("[0-9a-f]{32}", metadata.store_id)
        metadata.images.put(record(), {})
        with later() as again:
            assert again.store_id == metadata.store_id

    def test_a_walk_finds_what_is_listed(self, metadata: MetadataStore) -> None:
        """In the same order, of one handler too, and behind a record."""
        names = [f"registry.example/{name}:1" for name in "abcde"]
        metadata.images.put_many((record(name, handler), {}) for name in names for handler in ("kata", "runc"))
        images = metadata.images
        assert [*images.walk()] == images.find()
        assert [*images.walk(handler="kata")] == images.find(handler="kata")
        assert [*images.walk(after=(names[2], "kata"))] == images.find(after=(names[2], "kata"))
        assert [*images.walk(handler="none")] == []

    def test_records_by_reference_and_handler(self, metadata: MetadataStore, later: Later) -> None:
        """A record is found by reference and runtime handler, whole and alone."""
        stored = metadata.images.put(record(), {A: [B]})
        assert 0 < stored.created_at <= stored.updated_at
        assert stored == replace(record(), created_at=stored.created_at, updated_at=stored.updated_at)
        other = metadata.images.put(record(handler="kata", manifest=C, config=D), {C: [D]})
        assert metadata.images.get(NAME, "runc") == stored
        assert metadata.images.get(NAME, "kata") == other
        assert metadata.images.get(NAME, "none") is None
        keys = [(NAME, "runc"), (NAME, "none")]
        assert metadata.images.get_many(keys) == {(NAME, "runc"): stored}
        with later() as again:
            assert again.images.find() == [other, stored]

    def test_replacing_keeps_the_first_time(self, metadata: MetadataStore) -> None:
        """A replaced record keeps the time of the first, and holds only what is new."""
        first = metadata.images.put(record(), {A: [B]})
        moved = metadata.images.put(record(manifest=C), {C: [B]})
        assert moved.created_at == first.created_at
        assert moved.updated_at >= first.updated_at
        assert metadata.images.find_by_root(A) == []
        assert metadata.images.find_by_root(C) == [moved]
        assert metadata.images.find() == [moved]
        assert kept(metadata) == {B, C}

    def test_finding(self, metadata: MetadataStore) -> None:
        """Records are found by their members, in order and in pages."""
        stored = metadata.images.put_many(
            (record(f"registry.example/{name}:1", handler), {})
            for name in ("a", "b", "c")
            for handler in ("kata", "runc")
        )
        assert metadata.images.find() == list(stored)
        assert metadata.images.find(handler="kata") == [each for each in stored if each.handler == "kata"]
        assert metadata.images.find(reference="registry.example/b:1") == list(stored[2:4])
        assert metadata.images.find(image_id_prefix=str(B)[:20], limit=1) == [stored[0]]
        assert metadata.images.find(image_id_prefix=str(C)) == []
        assert metadata.images.find(after=("registry.example/a:1", "runc"), limit=2) == list(stored[2:4])
        listed = metadata.images.find_listed(handler="runc")
        assert listed == [ListedImage.of(each) for each in stored if each.handler == "runc"]
        assert listed == metadata.images.find_listed(image_id=str(B), handler="runc")

    def test_all_of_several_or_none(self, metadata: MetadataStore) -> None:
        """put_many() stores all records or none."""

        def records() -> object:
            """One record, then a failure."""
            yield record(), {}
            raise ValueError("in the middle")

        with pytest.raises(ValueError, match="in the middle"):
            metadata.images.put_many(records())  # type: ignore[arg-type]  # a generator that fails
        assert metadata.images.find() == []

    def test_removing(self, metadata: MetadataStore) -> None:
        """Removed records are returned once, and keep nothing."""
        stored = metadata.images.put(record(), {A: [B]})
        metadata.images.put(record(handler="kata"), {})
        assert metadata.images.remove([(NAME, "runc"), (NAME, "none")]) == [stored]
        assert metadata.images.remove([(NAME, "runc")]) == []
        assert kept(metadata) == {A, B}
        assert metadata.images.drop([(NAME, "kata")]) == [str(A)]
        assert kept(metadata) == set()

    def test_pins_and_uses(self, metadata: MetadataStore) -> None:
        """A pin is kept until it is taken off, or the record is replaced."""
        metadata.images.put(record(), {})
        (pinned,) = metadata.images.pin([(NAME, "runc"), (NAME, "none")], is_pinned=True)
        assert pinned.is_pinned
        metadata.images.touch(NAME, "runc")
        found = metadata.images.get(NAME, "runc")
        assert found is not None
        assert found.is_pinned
        labelled = metadata.images.put(replace(record(), labels={"a": "b"}), {})
        assert metadata.images.get(NAME, "runc") == labelled
        (unpinned,) = metadata.images.pin([(NAME, "runc")], is_pinned=False)
        assert not unpinned.is_pinned

    def test_uses_of_several(self, metadata: MetadataStore) -> None:
        """touch_many() takes any keys."""
        for handler in ("kata", "runc"):
            metadata.images.put(record(handler=handler), {})
        metadata.images.touch_many([])
        metadata.images.touch_many([(NAME, "runc"), (NAME, "none"), (NAME, "runc")])
        used = {each.handler: each.used_at for each in metadata.images.find()}
        # They were put a moment ago, which is a use too.
        assert used == {"kata": 0, "runc": 0}

    def test_edges_keep_what_they_lead_to(self, metadata: MetadataStore) -> None:
        """What records reach along edges is kept."""
        metadata.images.put(record(), {A: [B]})
        metadata.graph.put_edges({B: [C], C: [A]})
        assert kept(metadata) == {A, B, C}
        assert metadata.graph.own_children(B) == (C,)
        assert metadata.graph.parents(C) == (B,)
        assert metadata.graph.children_of([str(A), str(D)]) == {str(A): [str(B)]}
        assert metadata.graph.edges_as_written() == {str(A): [str(B)], str(B): [str(C)], str(C): [str(A)]}
        metadata.graph.put_edges({B: []})
        assert kept(metadata) == {A, B}
        metadata.graph.forget_content([str(C)])
        assert metadata.graph.own_children(C) == ()

    def test_leases_keep_until_they_end(self, metadata: MetadataStore) -> None:
        """A lease keeps its content until it is released or expires."""
        metadata.graph.put_edges({A: [B]})
        lease = metadata.leases.create("work", lifetime_seconds=3600, content=[A])
        assert kept(metadata) == {A, B}
        metadata.leases.add_content("work", [C, C])
        assert set(metadata.leases.content("work")) == {A, C}
        assert metadata.leases.get("work") == lease
        assert [each.id for each in metadata.leases.find()] == ["work"]
        metadata.leases.remove_content("work", [A, D])
        assert kept(metadata) == {C}
        metadata.leases.renew("work", lifetime_seconds=-1)
        assert kept(metadata) == set()
        metadata.expire()
        with pytest.raises(LeaseNotFoundError):
            metadata.leases.add_content("work", [A])
        assert not metadata.leases.delete("work")

    def test_leases_by_name(self, metadata: MetadataStore) -> None:
        """A lease's name is unique; what isn't there is LeaseNotFoundError."""
        metadata.leases.create("one", lifetime_seconds=math.inf)
        with pytest.raises(AlreadyExistsError):
            metadata.leases.create("one", lifetime_seconds=60)
        with pytest.raises(InvalidInputError):
            metadata.leases.create("", lifetime_seconds=60)
        for use in (
            lambda: metadata.leases.renew("none", lifetime_seconds=60),
            lambda: metadata.leases.content("none"),
            lambda: metadata.leases.add_content("none", [A]),
            lambda: metadata.leases.remove_content("none", [A]),
        ):
            with pytest.raises(LeaseNotFoundError, match="'none'"):
                use()
        assert metadata.leases.delete("one")
        assert not metadata.leases.delete("one")
        assert metadata.leases.get("one") is None

    def test_a_flat_lease_keeps_what_it_lists(self, metadata: MetadataStore) -> None:
        """A flat lease keeps nothing below its content."""
        metadata.graph.put_edges({A: [B]})
        metadata.leases.create("flat", lifetime_seconds=60, labels={"containerd.io/gc.flat": "x"}, content=[A])
        assert kept(metadata) == {A}
        assert [(each.kind, each.name) for each in metadata.graph.holders(A)] == [(HolderKind.FLAT_LEASE, "flat")]

    def test_labels_of_content(self, metadata: MetadataStore) -> None:
        """The labels gc.root and gc.ref.content keep content as in containerd."""
        metadata.graph.label_content(
            A, {"containerd.io/gc.root": "x", "containerd.io/gc.ref.content.0": str(B), "own": "y"}
        )
        assert kept(metadata) == {A, B}
        assert metadata.graph.content_labels(A)["own"] == "y"
        assert metadata.graph.is_kept_at_home(B)
        metadata.graph.label_content(A, {})
        assert kept(metadata) == set()

    def test_what_fails_in_a_transaction_changes_nothing(self, metadata: MetadataStore, later: Later) -> None:
        """A failed transaction leaves no trace."""
        with contextlib.suppress(ZeroDivisionError), metadata.exclusive():
            metadata.images.put(record(), {A: [B]})
            metadata.leases.create("l", lifetime_seconds=60, content=[C])
            raise ZeroDivisionError
        assert metadata.images.find() == []
        assert kept(metadata) == set()
        with later() as again:
            assert again.images.find() == []

    def test_another_process_sees_what_was_committed(self, metadata: MetadataStore, later: Later) -> None:
        """A second opening sees what the first one committed."""
        with later() as again:
            before = again.generation()
            metadata.images.put(record(), {A: [B]})
            assert [each.reference for each in again.images.find()] == [NAME]
            assert kept(again) == {A, B}
            assert before is None or again.generation() != before
            assert not again.is_outdated()

    def test_changes_of_named_images_and_namespaces_are_counted(self, metadata: MetadataStore) -> None:
        """As those of records; what changes nothing isn't counted."""
        image = NamedImage("moby", "x", Descriptor(OCI_MANIFEST, A, 10), created_at=1.0, updated_at=1.0)
        ended = replace(image, name="y", labels={"containerd.io/gc.expire": "2001-01-01T00:00:00Z"})
        home = replace(image, namespace="k8s.io")
        changes = (
            lambda: metadata.namespaces.create("moby", {}),
            lambda: metadata.namespaces.label("moby", {"a": "b"}),
            lambda: metadata.named_images.put(image),
            lambda: metadata.named_images.remove("moby", "x"),
            lambda: metadata.named_images.put(ended),
            metadata.expire,
            lambda: metadata.namespaces.remove("moby"),
            lambda: metadata.named_images.put(home),
            lambda: metadata.named_images.drop_home(["x"]),
        )
        numbers = [metadata.generation()]
        for change in changes:
            change()
            numbers.append(metadata.generation())
        assert numbers[0] is None or len(set(numbers)) == len(changes) + 1
        metadata.named_images.remove("moby", "x")
        metadata.named_images.drop_home(["x"])
        metadata.expire()
        with pytest.raises(AlreadyExistsError):
            metadata.namespaces.create("k8s.io", {})
        assert metadata.generation() == numbers[-1]

    def test_namespaces(self, metadata: MetadataStore) -> None:
        """A namespace has images and content of its own, and goes only when it is empty."""
        assert list(metadata.namespaces.find()) == ["k8s.io"]
        metadata.namespaces.create("moby", {"a": "b"})
        with pytest.raises(AlreadyExistsError):
            metadata.namespaces.create("moby", {})
        image = NamedImage("moby", "x", Descriptor(OCI_MANIFEST, A, 10), created_at=1.0, updated_at=1.0)
        metadata.namespaces.record_content("moby", A, 10)
        assert metadata.named_images.put(image) == image
        assert metadata.named_images.find("moby") == [image]
        assert metadata.named_images.get("k8s.io", "x") is None
        assert not metadata.namespaces.remove("moby")
        assert metadata.namespaces.foreign_content() == {A}
        assert not metadata.namespaces.is_home(A)
        assert metadata.named_images.remove("moby", "x")
        assert not metadata.named_images.remove("moby", "x")
        assert metadata.namespaces.forget_record("moby", A)
        assert metadata.namespaces.remove("moby")
        with pytest.raises(NotFoundError):
            metadata.namespaces.remove("moby")

    def test_what_owners_know(self, metadata: MetadataStore) -> None:
        """An owner's content records and ingests are kept until it forgets them."""
        assert metadata.namespaces.record_content("proxy:one", A, 7)
        assert not metadata.namespaces.record_content("proxy:one", A, 7)
        found = metadata.namespaces.content_record("proxy:one", A)
        assert found is not None
        assert (found.digest, found.size) == (A, 7)
        metadata.namespaces.label_record("proxy:one", A, {"x": "y"})
        assert [each.labels for each in metadata.namespaces.content_records("proxy:one")] == [{"x": "y"}]
        assert kept(metadata, [A]) == {A}
        metadata.namespaces.put_ingest("proxy:one", "r", expected=B, lease="")
        assert metadata.namespaces.ingests("proxy:one") == {"r": (str(B), "")}
        metadata.namespaces.forget_ingest("proxy:one", "r")
        assert metadata.namespaces.ingests("proxy:one") == {}
        assert metadata.namespaces.forget_record("proxy:one", A)
        assert metadata.namespaces.content_record("proxy:one", A) is None
