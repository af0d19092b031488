"""Eviction is a pure choice from what was measured."""

from __future__ import annotations

import pytest

from imagestore import Descriptor, Digest, EvictionPolicy, Platform
from imagestore.content import Disk
from imagestore.errors import InvalidInputError
from imagestore.metadata import ImageRecord
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.store.maintenance.eviction import choose
from imagestore.store.maintenance.usage import ImageUsage

NOW = 1000 * 86400.0
DISK = Disk(total_bytes=100, free_bytes=100)


def image(
    name: str, *, days: float = 0, handler: str = "runc", pinned: bool = False, used: float = 0, **blobs: int
) -> ImageUsage:
    """A record pulled ``days`` ago and used ``used`` days ago, with blobs by name and size."""
    digest = Digest.of(f"{name} {handler}".encode())
    descriptor = Descriptor(OCI_MANIFEST, digest, 1)
    record = ImageRecord(
        reference=f"registry.example/{name}",
        handler=handler,
        target=descriptor,
        manifest=descriptor,
        image_id=digest,
        platform=Platform("linux", "amd64"),
        wanted="linux/amd64",
        roots=(digest,),
        content_size=1,
        updated_at=NOW - days * 86400,
        is_pinned=pinned,
        used_at=NOW - used * 86400 if used else 0.0,
    )
    sizes = {Digest.of(each.encode()): size for each, size in blobs.items()}
    return ImageUsage(record, sizes, 0, sum(sizes.values()))


def chosen(images: list[ImageUsage], policy: EvictionPolicy, disk: Disk = DISK) -> list[str]:
    found = choose(images, disk, policy, now=NOW)
    return [f"{each.record.reference.removeprefix('registry.example/')} {each.record.handler}" for each in found]


def test_keep_last_spares_the_newest_of_each_repository_and_handler() -> None:
    images = [image(f"a:{number}", days=number) for number in range(4)]
    images += [image("a:9", days=9, handler="kata"), image("b:1", days=50)]
    assert chosen(images, EvictionPolicy(keep_last=2)) == ["a:3 runc", "a:2 runc"]
    assert len(chosen(images, EvictionPolicy(keep_last=0))) == 6


def test_pinned_images_are_spared_and_take_no_place() -> None:
    images = [image("a:1", days=1, pinned=True), image("a:2", days=2), image("a:3", days=3)]
    assert chosen(images, EvictionPolicy(keep_last=1)) == ["a:3 runc"]
    assert chosen(images, EvictionPolicy(unused_seconds=0)) == ["a:3 runc", "a:2 runc"]


def test_unused_means_neither_pulled_nor_used() -> None:
    images = [image("a:1", days=30), image("a:2", days=30, used=2), image("a:3", days=2)]
    assert chosen(images, EvictionPolicy(unused_seconds=7 * 86400)) == ["a:1 runc"]
    (eviction,) = choose(images, DISK, EvictionPolicy(unused_seconds=7 * 86400), now=NOW)
    assert eviction.reason == "unused for 30.0 days"


def test_keep_last_goes_before_unused() -> None:
    images = [image("a:1", days=30), image("a:2", days=31), image("b:1", days=40)]
    assert chosen(images, EvictionPolicy(keep_last=1, unused_seconds=86400)) == ["a:2 runc"]


def test_a_policy_of_one_handler_leaves_the_others_alone() -> None:
    images = [image("a:1", days=9), image("a:1", days=9, handler="kata")]
    assert chosen(images, EvictionPolicy(unused_seconds=0, handler="kata")) == ["a:1 kata"]


def test_below_the_high_mark_nothing_goes_and_above_it_down_to_the_low_one() -> None:
    images = [image("a:1", days=3, x=10), image("b:1", days=2, y=10), image("c:1", days=1, z=10)]
    marks = EvictionPolicy(high_percent=80, low_percent=65)
    assert chosen(images, marks, Disk(100, 20)) == []
    assert chosen(images, marks, Disk(100, 15)) == ["a:1 runc", "b:1 runc"]
    assert chosen(images, marks, Disk(100, 0)) == ["a:1 runc", "b:1 runc", "c:1 runc"]


def test_shared_bytes_count_as_freed_with_their_last_owner_only() -> None:
    images = [image("a:1", days=3, shared=20, x=1), image("b:1", days=2, shared=20), image("c:1", days=1, z=30)]
    assert chosen(images, EvictionPolicy(high_percent=80, low_percent=75), Disk(100, 5)) == ["a:1 runc", "b:1 runc"]


def test_what_goes_for_being_unused_counts_for_the_watermark() -> None:
    images = [image("a:1", days=9, x=20), image("b:1", days=2, y=20)]
    rules = EvictionPolicy(unused_seconds=5 * 86400, high_percent=80, low_percent=75)
    assert chosen(images, rules, Disk(100, 10)) == ["a:1 runc"]


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"handler": "runc"},
        {"keep_last": -1},
        {"unused_seconds": -1.0},
        {"high_percent": 80.0},
        {"low_percent": 80.0, "keep_last": 1},
        {"high_percent": 70.0, "low_percent": 80.0},
        {"high_percent": 101.0, "low_percent": 80.0},
        {"high_percent": float("nan"), "low_percent": float("nan")},
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match="eviction policy: expected"):
        EvictionPolicy(**rules)  # type: ignore[arg-type]
