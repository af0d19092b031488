"""What every adapter of the metadata port has to do, as tests; used as ContentContract is.

The fixture ``metadata`` gives an empty store, and ``later`` opens the same records as another process would.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from imagestore import Descriptor, Digest, MetadataStore, Platform
from imagestore.errors import AlreadyExistsError, InvalidInputError, LeaseNotFoundError, NotFoundError
from imagestore.metadata.namespace_api import NamedImage
from imagestore.metadata.records import HolderKind, ImageRecord
from imagestore.oci.media_types import OCI_MANIFEST

A, B, C, D = (Digest.of(name.encode()) for name in "abcd")
ALL = (A, B, C, D)
NAME = "registry.example/app:1"
Later = Callable[[], AbstractContextManager[MetadataStore]]


def record(reference: str = NAME, handler: str = "runc", *, manifest: Digest = A, config: Digest = B) -> ImageRecord:
    """An image of one manifest with its config."""
    target = Descriptor(OCI_MANIFEST, manifest, 10)
    platform = Platform("linux", "amd64")
    return ImageRecord(reference, handler, target, target, config, platform, "linux/amd64", (manifest,), 20)


def kept(metadata: MetadataStore, digests: Collection[Digest] = ALL) -> set[Digest]:
    """What a collection would spare; the two questions that it asks have to agree."""
    texts = [str(digest) for digest in digests]
    garbage = set(metadata.garbage(texts))
    assert set(metadata.unheld(texts)) == garbage & set(texts)
    spared = {digest for digest in digests if str(digest) not in garbage}
    assert {digest for digest in digests if metadata.is_held(digest)} == spared
    return spared


class MetadataContract:
    """Make a class from it that has the fixtures ``metadata`` and ``later``."""

    def test_records_by_reference_and_handler(self, metadata: MetadataStore, later: Later) -> None:
        stored = metadata.put_image(record(), {A: [B]})
        assert 0 < stored.created_at <= stored.updated_at
        other = metadata.put_image(record(handler="kata", manifest=C, config=D), {C: [D]})
        assert metadata.get_image(NAME, "runc") == stored
        assert metadata.get_image(NAME, "kata") == other
        assert metadata.get_image(NAME, "none") is None
        keys = [(NAME, "runc"), (NAME, "none")]
        assert metadata.get_images(keys) == {(NAME, "runc"): stored}
        with later() as again:
            assert again.find_images() == [other, stored]

    def test_replacing_keeps_the_first_time(self, metadata: MetadataStore) -> None:
        first = metadata.put_image(record(), {})
        moved = metadata.put_image(record(manifest=C), {C: [B]})
        assert moved.created_at == first.created_at
        assert moved.updated_at >= first.updated_at
        assert metadata.find_by_root(A) == []
        assert metadata.find_by_root(C) == [moved]

    def test_finding(self, metadata: MetadataStore) -> None:
        stored = metadata.put_images(
            (record(f"registry.example/{name}:1", handler), {})
            for name in ("a", "b", "c")
            for handler in ("kata", "runc")
        )
        assert metadata.find_images() == list(stored)
        assert metadata.find_images(handler="kata") == [each for each in stored if each.handler == "kata"]
        assert metadata.find_images(reference="registry.example/b:1") == list(stored[2:4])
        assert metadata.find_images(image_id_prefix=str(B)[:20], limit=1) == [stored[0]]
        assert metadata.find_images(image_id_prefix=str(C)) == []
        assert metadata.find_images(after=("registry.example/a:1", "runc"), limit=2) == list(stored[2:4])
        listed = metadata.list_images(handler="runc")
        assert len(listed) == len(metadata.list_images(image_id=str(B), handler="runc"))

    def test_all_of_several_or_none(self, metadata: MetadataStore) -> None:
        def records() -> object:
            yield record(), {}
            raise ValueError("in the middle")

        with pytest.raises(ValueError, match="in the middle"):
            metadata.put_images(records())  # type: ignore[arg-type]  # a generator that fails
        assert metadata.find_images() == []

    def test_removing(self, metadata: MetadataStore) -> None:
        stored = metadata.put_image(record(), {A: [B]})
        metadata.put_image(record(handler="kata"), {})
        assert metadata.remove_images([(NAME, "runc"), (NAME, "none")]) == [stored]
        assert kept(metadata) == {A, B}
        assert metadata.drop_images([(NAME, "kata")]) == [str(A)]
        assert kept(metadata) == set()

    def test_pins_and_uses(self, metadata: MetadataStore) -> None:
        metadata.put_image(record(), {})
        (pinned,) = metadata.pin_images([(NAME, "runc"), (NAME, "none")], is_pinned=True)
        assert pinned.is_pinned
        metadata.touch_image(NAME, "runc")
        found = metadata.get_image(NAME, "runc")
        assert found is not None
        assert found.is_pinned
        labelled = metadata.put_image(replace(record(), labels={"a": "b"}), {})
        assert metadata.get_image(NAME, "runc") == labelled
        (unpinned,) = metadata.pin_images([(NAME, "runc")], is_pinned=False)
        assert not unpinned.is_pinned

    def test_edges_keep_what_they_lead_to(self, metadata: MetadataStore) -> None:
        metadata.put_image(record(), {A: [B]})
        metadata.put_edges({B: [C], C: [A]})
        assert kept(metadata) == {A, B, C}
        assert metadata.own_children(B) == (C,)
        assert metadata.parents(C) == (B,)
        assert metadata.children_of([str(A), str(D)]) == {str(A): [str(B)]}
        metadata.put_edges({B: []})
        assert kept(metadata) == {A, B}
        metadata.forget_content([str(C)])
        assert metadata.own_children(C) == ()

    def test_leases_keep_until_they_end(self, metadata: MetadataStore) -> None:
        metadata.put_edges({A: [B]})
        lease = metadata.create_lease("work", lifetime_seconds=3600, content=[A])
        assert kept(metadata) == {A, B}
        metadata.lease_content("work", [C, C])
        assert set(metadata.leased_content("work")) == {A, C}
        assert metadata.lease("work") == lease
        assert [each.id for each in metadata.leases()] == ["work"]
        metadata.unlease_content("work", [A, D])
        assert kept(metadata) == {C}
        metadata.renew_lease("work", lifetime_seconds=-1)
        assert kept(metadata) == set()
        metadata.expire()
        with pytest.raises(LeaseNotFoundError):
            metadata.lease_content("work", [A])
        assert not metadata.delete_lease("work")

    def test_leases_by_name(self, metadata: MetadataStore) -> None:
        metadata.create_lease("one", lifetime_seconds=math.inf)
        with pytest.raises(AlreadyExistsError):
            metadata.create_lease("one", lifetime_seconds=60)
        with pytest.raises(InvalidInputError):
            metadata.create_lease("", lifetime_seconds=60)
        for use in (
            lambda: metadata.renew_lease("none", lifetime_seconds=60),
            lambda: metadata.leased_content("none"),
            lambda: metadata.unlease_content("none", [A]),
        ):
            with pytest.raises(LeaseNotFoundError):
                use()
        assert metadata.delete_lease("one")
        assert metadata.lease("one") is None

    def test_a_flat_lease_keeps_what_it_lists(self, metadata: MetadataStore) -> None:
        metadata.put_edges({A: [B]})
        metadata.create_lease("flat", lifetime_seconds=60, labels={"containerd.io/gc.flat": "x"}, content=[A])
        assert kept(metadata) == {A}
        assert [(each.kind, each.name) for each in metadata.holders(A)] == [(HolderKind.FLAT_LEASE, "flat")]

    def test_labels_of_content(self, metadata: MetadataStore) -> None:
        metadata.label_content(A, {"containerd.io/gc.root": "x", "containerd.io/gc.ref.content.0": str(B), "own": "y"})
        assert kept(metadata) == {A, B}
        assert metadata.content_labels(A)["own"] == "y"
        assert metadata.is_kept_at_home(B)
        metadata.label_content(A, {})
        assert kept(metadata) == set()

    def test_what_fails_in_a_transaction_changes_nothing(self, metadata: MetadataStore, later: Later) -> None:
        with contextlib.suppress(ZeroDivisionError), metadata.exclusive():
            metadata.put_image(record(), {A: [B]})
            metadata.create_lease("l", lifetime_seconds=60, content=[C])
            raise ZeroDivisionError
        assert metadata.find_images() == []
        assert kept(metadata) == set()
        with later() as again:
            assert again.find_images() == []

    def test_another_process_sees_what_was_committed(self, metadata: MetadataStore, later: Later) -> None:
        with later() as again:
            before = again.generation()
            metadata.put_image(record(), {A: [B]})
            assert [each.reference for each in again.find_images()] == [NAME]
            assert kept(again) == {A, B}
            assert before is None or again.generation() != before
            assert not again.is_outdated()

    def test_namespaces(self, metadata: MetadataStore) -> None:
        assert list(metadata.namespaces()) == ["k8s.io"]
        metadata.create_namespace("moby", {"a": "b"})
        with pytest.raises(AlreadyExistsError):
            metadata.create_namespace("moby", {})
        image = NamedImage("moby", "x", Descriptor(OCI_MANIFEST, A, 10), created_at=1.0, updated_at=1.0)
        metadata.record_content("moby", A, 10)
        assert metadata.put_named_image(image) == image
        assert metadata.named_images("moby") == [image]
        assert metadata.named_image("k8s.io", "x") is None
        assert not metadata.remove_namespace("moby")
        assert metadata.foreign_content() == {A}
        assert not metadata.is_home(A)
        assert metadata.remove_named_image("moby", "x")
        assert not metadata.remove_named_image("moby", "x")
        assert metadata.forget_record("moby", A)
        assert metadata.remove_namespace("moby")
        with pytest.raises(NotFoundError):
            metadata.remove_namespace("moby")

    def test_what_owners_know(self, metadata: MetadataStore) -> None:
        assert metadata.record_content("proxy:one", A, 7)
        assert not metadata.record_content("proxy:one", A, 7)
        found = metadata.content_record("proxy:one", A)
        assert found is not None
        assert (found.digest, found.size) == (A, 7)
        metadata.label_record("proxy:one", A, {"x": "y"})
        assert [each.labels for each in metadata.content_records("proxy:one")] == [{"x": "y"}]
        assert kept(metadata, [A]) == {A}
        metadata.put_ingest("proxy:one", "r", expected=B, lease="")
        assert metadata.ingests("proxy:one") == {"r": (str(B), "")}
        metadata.forget_ingest("proxy:one", "r")
        assert metadata.ingests("proxy:one") == {}
        assert metadata.forget_record("proxy:one", A)
        assert metadata.content_record("proxy:one", A) is None
