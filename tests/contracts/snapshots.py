"""What every target for layers has to do, as tests; used as ContentContract is.

The fixture ``target`` gives an empty target over the content of the fixture ``store``, and ``trees`` shows what a chain
has: its files with their contents, or None where a target can't show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagestore import Descriptor, Digest, Image, ImageStore
from imagestore.errors import ContentNotFoundError, ImageStoreError, IntegrityError
from imagestore.publish import SnapshotLayer, SnapshotTarget
from tests.unit.store.unpack.making import REFERENCE, entry, folder, made, stored

#: Lowest first.
LAYERS = (
    made(folder("etc"), entry("etc/a", data=b"1"), entry("etc/gone", data=b"1"), folder("var"), entry("var/x")),
    made(entry("etc/a", data=b"2"), entry("etc/.wh.gone"), entry("etc/new", data=b"2")),
    made(entry("top", data=b"3")),
)
TREES = (
    {"etc": "folder", "etc/a": "1", "etc/gone": "1", "var": "folder", "var/x": ""},
    {"etc": "folder", "etc/a": "2", "etc/new": "2", "var": "folder", "var/x": ""},
    {"etc": "folder", "etc/a": "2", "etc/new": "2", "top": "3", "var": "folder", "var/x": ""},
)
Trees = Callable[[SnapshotTarget, str], dict[str, str] | None]


@dataclass(frozen=True)
class Step:
    """A layer on top of others."""

    parent: str
    chain: str
    layer: SnapshotLayer

    def apply_to(self, target: SnapshotTarget) -> None:
        target.apply(self.parent, self.chain, self.layer)


def steps_of(image: Image) -> list[Step]:
    """The layers of an image, lowest first."""
    chains = [str(each) for each in image.config.chain_ids]
    layers = [SnapshotLayer(blob, diff_id) for blob, diff_id in zip(image.layers, image.config.diff_ids, strict=True)]
    return [Step(*each) for each in zip(["", *chains], chains, layers, strict=False)]


class SnapshotContract:
    """Make a class from it that has the fixtures ``target`` and ``trees``."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ImageStore]:
        with stored(tmp_path, *LAYERS) as store:
            yield store

    @pytest.fixture
    def steps(self, store: ImageStore) -> list[Step]:
        return steps_of(store.get(REFERENCE))

    def test_each_chain_has_its_layer_and_those_below(
        self, target: SnapshotTarget, steps: list[Step], trees: Trees
    ) -> None:
        for step, expected in zip(steps, TREES, strict=True):
            assert not target.has(step.chain)
            step.apply_to(target)
            assert target.has(step.chain)
            assert trees(target, step.chain) in (expected, None)
        for step, expected in zip(steps, TREES, strict=True):
            assert trees(target, step.chain) in (expected, None)

    def test_twice_is_once(self, target: SnapshotTarget, steps: list[Step], trees: Trees) -> None:
        for step in (*steps, *steps):
            step.apply_to(target)
        assert trees(target, steps[-1].chain) in (TREES[-1], None)

    def test_at_the_same_time_is_once(self, target: SnapshotTarget, steps: list[Step], trees: Trees) -> None:
        with ThreadPoolExecutor(4) as pool:
            for step in steps:
                for future in [pool.submit(step.apply_to, target) for _ in range(4)]:
                    future.result()
        assert trees(target, steps[-1].chain) in (TREES[-1], None)

    def test_a_layer_that_is_not_what_its_diff_id_says_leaves_nothing(
        self, target: SnapshotTarget, steps: list[Step], trees: Trees
    ) -> None:
        wrong = Digest.of(b"another tar")
        with pytest.raises(IntegrityError):
            target.apply("", str(wrong), SnapshotLayer(steps[0].layer.blob, wrong))
        assert not target.has(str(wrong))
        for step in steps:
            step.apply_to(target)
        assert trees(target, steps[-1].chain) in (TREES[-1], None)

    def test_a_layer_that_the_store_does_not_have_leaves_nothing(
        self, target: SnapshotTarget, steps: list[Step]
    ) -> None:
        absent = Digest.of(b"absent")
        layer = SnapshotLayer(Descriptor(steps[0].layer.blob.media_type, absent, 10), absent)
        with pytest.raises(ContentNotFoundError):
            target.apply("", str(absent), layer)
        assert not target.has(str(absent))

    def test_a_layer_on_a_chain_that_is_not_there_is_refused(self, target: SnapshotTarget, steps: list[Step]) -> None:
        with pytest.raises(ImageStoreError):
            steps[1].apply_to(target)
        assert not target.has(steps[1].chain)

    def test_a_damaged_blob_is_not_unpacked(self, target: SnapshotTarget, steps: list[Step], store: ImageStore) -> None:
        path = store.content.path(steps[0].layer.blob.digest)
        path.chmod(0o600)
        path.write_bytes(b"damaged")
        with pytest.raises(ImageStoreError):
            steps[0].apply_to(target)
        assert not target.has(steps[0].chain)

    def test_chains_are_removed_from_the_top_and_may_come_back(
        self, target: SnapshotTarget, steps: list[Step], trees: Trees
    ) -> None:
        for step in steps:
            step.apply_to(target)
        *_, below, top = steps
        target.remove(top.chain)
        assert (target.has(below.chain), target.has(top.chain)) == (True, False)
        target.remove(top.chain)
        assert trees(target, below.chain) in (TREES[-2], None)
        top.apply_to(target)
        assert trees(target, top.chain) in (TREES[-1], None)
        for step in reversed(steps):
            target.remove(step.chain)
            assert not target.has(step.chain)
