"""Damaged bytes on either side: refused, repaired where they can be, and nothing of them stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import Descriptor, ImageStore
from imagestore.publish import ContentWay, ImageState, Publisher
from imagestore.testing import build_image, layer
from imagestore.testing.builders.layers import Compression
from tests.support.fake_containerd import FakeContainerd
from tests.support.publishing import APP, OTHER, PublishingNode

LAYERS = [layer("below"), layer("plain", compression="none"), layer("above")]
IMAGE = build_image("linux/amd64", layers=LAYERS)
ORPHAN = "sha256:" + "0" * 64


@pytest.fixture(params=["linked", "copied", "sent"])
def publisher(here: PublishingNode, request: pytest.FixtureRequest) -> Publisher:
    here.node.registry.library.add(APP, IMAGE)
    here.fake.rules.is_sharing = request.param != "sent"
    return here.publisher(content="copy" if request.param == "copied" else "auto")


def spoil(path: Path, data: bytes | None = None) -> None:
    """Change a byte in the middle, or all of it."""
    found = path.read_bytes()
    middle = len(found) // 2
    spoiled = found[:middle] + bytes([found[middle] ^ 1]) + found[middle + 1 :] if data is None else data
    path.unlink()
    path.write_bytes(spoiled)


def spoil_ours(store: ImageStore, blob: Descriptor, data: bytes | None = None) -> None:
    spoil(store.content.path(blob.digest), data)


@pytest.mark.parametrize("nth", range(3))
def test_a_damaged_layer_of_the_store_is_fetched_again(here: PublishingNode, publisher: Publisher, nth: int) -> None:
    with publisher:
        here.pull()
        spoil_ours(here.store, IMAGE.layers[nth])
        assert publisher.reconcile().failed == {}
    assert here.unmet() == []


@pytest.mark.parametrize("data", [b"", b"no archive at all"], ids=["empty", "short"])
def test_a_layer_of_another_size_is_fetched_again(here: PublishingNode, publisher: Publisher, data: bytes) -> None:
    with publisher:
        here.pull()
        spoil_ours(here.store, IMAGE.layers[1], data)
        assert publisher.reconcile().failed == {}
    assert here.unmet() == []


@pytest.mark.parametrize("nth", range(3))
def test_a_missing_layer_of_the_store_is_fetched_again(here: PublishingNode, publisher: Publisher, nth: int) -> None:
    with publisher:
        here.pull()
        here.store.content.path(IMAGE.layers[nth].digest).unlink()
        assert publisher.reconcile().failed == {}
    assert here.unmet() == []


def test_a_damaged_layer_that_can_not_be_fetched(here: PublishingNode, publisher: Publisher) -> None:
    with publisher:
        image_id = here.pull()
        spoil_ours(here.store, IMAGE.layers[1])
        blobs = here.node.registry.library.open("registry.example", "app").blobs
        body = blobs.pop(IMAGE.layers[1].digest)
        assert publisher.reconcile().failed.keys() == {image_id}
        assert publisher.states.entry(image_id).state is ImageState.FAILED
        assert publisher.states.entry(image_id).next_try is not None
        assert nothing_is_left(here.fake)
        # When the registry has it again, the next try repairs it.
        blobs[IMAGE.layers[1].digest] = body
        assert publisher.reconcile().published == (image_id,)
    assert here.unmet() == []


def nothing_is_left(fake: FakeContainerd) -> bool:
    """No record, lease, snapshot, write or file."""
    return not (fake.images() or fake.leases() or fake.snapshots() or fake.here.ingests or fake.blobs() or fake.files())


def test_a_config_whose_diff_ids_are_wrong(here: PublishingNode, publisher: Publisher) -> None:
    """Whatever is published is what the config says: containerd is not asked to believe it."""
    wrong = [str(each.diff_id) for each in (LAYERS[2], LAYERS[1], LAYERS[0])]
    liar = build_image("linux/amd64", layers=LAYERS, config={"rootfs": {"type": "layers", "diff_ids": wrong}})
    here.node.registry.library.add(OTHER, liar)
    with publisher:
        image_id = here.pull(OTHER)
        report = publisher.reconcile()
        assert "expected diff id" in report.failed[image_id]
        assert nothing_is_left(here.fake)


@pytest.mark.parametrize("document", ["config", "manifest"])
def test_a_damaged_document_of_the_store_is_fetched_again(
    here: PublishingNode, publisher: Publisher, document: str
) -> None:
    with publisher:
        here.pull()
        manifest = IMAGE.manifests[0]
        spoil_ours(here.store, manifest.config if document == "config" else manifest.descriptor)
        assert publisher.reconcile().failed == {}
    assert here.unmet() == []


# In containerd.


@pytest.mark.parametrize("nth", range(3))
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_damaged_layer_that_lay_there_is_replaced(here: PublishingNode, nth: int, is_recorded: bool) -> None:
    here.node.registry.library.add(APP, IMAGE)
    here.pull()
    fake, digest = here.fake, str(IMAGE.layers[nth].digest)
    if is_recorded:
        fake.pull(OTHER, IMAGE)
    else:
        path = fake.state.path(digest)
        path.parent.mkdir(parents=True)
        path.write_bytes(here.store.content.path(IMAGE.layers[nth].digest).read_bytes())
    spoil(fake.state.path(digest))
    here.reconcile()
    assert here.unmet() == []
    fake.collect()
    if is_recorded:
        assert fake.state.read("k8s.io", digest) == here.store.content.path(IMAGE.layers[nth].digest).read_bytes()
    else:
        assert digest not in fake.files()


def test_a_damaged_layer_that_can_not_be_replaced(here: PublishingNode) -> None:
    """Sent bytes don't count where a record is; somebody has to remove it."""
    here.node.registry.library.add(APP, IMAGE)
    image_id = here.pull()
    here.fake.rules.is_sharing = False
    here.fake.pull(OTHER, IMAGE)
    spoil(here.fake.state.path(str(IMAGE.layers[1].digest)))
    with here.publisher() as publisher:
        assert "expected diff id" in publisher.reconcile().failed[image_id]
        assert here.fake.leases() == set()
        assert here.fake.images().keys() == {OTHER, image_id}  # the plugin's own
        here.fake.remove_image(OTHER)
        here.fake.remove_image(image_id)
        assert publisher.reconcile().published == (image_id,)
    assert here.unmet() == []


def test_ways_of_a_repaired_image(here: PublishingNode) -> None:
    here.node.registry.library.add(APP, IMAGE)
    image_id = here.pull()
    spoil_ours(here.store, IMAGE.layers[2])
    with here.publisher() as publisher:
        publisher.reconcile()
        assert publisher.states.entry(image_id).ways is not None
        assert ContentWay.LINKED in (publisher.states.entry(image_id).ways or {})


def test_the_store_is_repaired_too(here: PublishingNode) -> None:
    here.node.registry.library.add(APP, IMAGE)
    here.pull()
    spoil_ours(here.store, IMAGE.layers[0])
    here.reconcile()
    assert not here.store.check().damaged


COMPRESSIONS: list[Compression] = ["none", "gzip"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_link_does_not_outlive_its_publish(here: PublishingNode, compression: Compression) -> None:
    """Damage of the store's file afterwards doesn't reach containerd, nor the other way round."""
    image = build_image("linux/amd64", layers=[layer("one", compression=compression)])
    here.node.registry.library.add(APP, image)
    here.pull()
    here.reconcile()
    assert here.store.content.path(image.layers[0].digest).stat().st_nlink == 1
