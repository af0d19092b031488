"""Blobs that containerd's content folder has too, by hard links: counted once, and no space that a removal frees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import EvictionPolicy, Image
from imagestore.content import Disk, local
from imagestore.store.maintenance.usage import content_use
from imagestore.testing import build_image, synthetic_layer
from tests.support.node import Node, node

LINKED, PLAIN = "registry.example/linked:1", "registry.example/plain:1"
LAYER_BYTES = 102_400
IMAGES = {
    name: build_image("linux/amd64", layers=[synthetic_layer(name, LAYER_BYTES)], seed=name) for name in (LINKED, PLAIN)
}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    """A store with two images; the layer of one, which was pulled first, has a second name."""
    with node(tmp_path / "store", IMAGES) as here:
        for name in (LINKED, PLAIN):
            here.store.pull(name, runtime_handler="kata")
        path = layer_path(here.store.get(LINKED, runtime_handler="kata"))
        os.link(path, tmp_path / path.name)
        yield here


def layer_path(image: Image) -> Path:
    (path,) = image.layer_paths
    return path


def layer_size(here: Node, name: str) -> int:
    (layer,) = here.store.get(name, runtime_handler="kata").layers
    return layer.size


def test_it_counts_once(here: Node) -> None:
    used = here.store.usage()
    assert used.content_bytes == sum(info.size for info in here.store.content.walk())
    assert used.linked_bytes == layer_size(here, LINKED)
    use = content_use(here.store.content)
    assert (use.size, use.inodes) == (used.content_bytes, used.blobs)


def test_a_collection_frees_only_files_with_one_name(here: Node) -> None:
    linked, before = layer_size(here, LINKED), here.store.usage().content_bytes
    for name in (LINKED, PLAIN):
        here.store.remove(name, runtime_handler="kata")
    planned, done = here.store.collect_garbage(dry_run=True), here.store.collect_garbage()
    assert (planned.digests, planned.bytes_freed) == (done.digests, done.bytes_freed)
    assert (len(done.digests), done.bytes_freed) == (6, before - linked)
    assert here.store.usage().blobs == 0


def test_a_removal_says_what_became_free(here: Node) -> None:
    linked, record = layer_size(here, LINKED), here.store.get(LINKED, runtime_handler="kata").record
    removal = here.store.remove(LINKED, runtime_handler="kata", collect=True)
    assert removal.bytes_freed == record.content_size - linked


def test_an_eviction_goes_on_until_enough_becomes_free(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unused image frees nearly nothing, since its layer stays in the other folder."""
    monkeypatch.setattr(local, "disk_of", lambda _: Disk(10 * LAYER_BYTES, LAYER_BYTES))
    policy = EvictionPolicy(high_percent=85, low_percent=84)
    planned, done = here.store.evict(policy, dry_run=True), here.store.evict(policy)
    assert [each.record.reference for each in done.evicted] == [LINKED, PLAIN]
    assert (planned.evicted, planned.bytes_freed) == (done.evicted, done.bytes_freed)
    assert LAYER_BYTES < done.bytes_freed < 2 * LAYER_BYTES


def test_a_file_that_lost_its_other_name_frees_its_bytes(here: Node, tmp_path: Path) -> None:
    (tmp_path / layer_path(here.store.get(LINKED, runtime_handler="kata")).name).unlink()
    assert here.store.usage().linked_bytes == 0
    record = here.store.get(LINKED, runtime_handler="kata").record
    assert here.store.remove(LINKED, runtime_handler="kata", collect=True).bytes_freed == record.content_size
