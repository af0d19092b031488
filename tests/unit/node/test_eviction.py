"""What image collection decides, without a service: policies, usage, texts, the walk, records of what is listed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.cri import ContainerImage
from imagestore.errors import InvalidInputError
from imagestore.node.eviction import (
    CollectionPolicy,
    CollectionReport,
    DiskUsage,
    Spared,
    candidates,
    free_space,
    size_text,
    sort_key,
)
from imagestore.node.image_uses import Detector, ImageKey, ImageUse
from imagestore.util.durations import Duration
from tests.support.image_services import image

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("high", "low", "text"),
    [
        (101, 80, "invalid HighThresholdPercent 101, must be in range [0-100]"),
        (-1, 80, "invalid HighThresholdPercent -1, must be in range [0-100]"),
        (85, 101, "invalid LowThresholdPercent 101, must be in range [0-100]"),
        (85, -1, "invalid LowThresholdPercent -1, must be in range [0-100]"),
        (1, 2, "LowThresholdPercent 2 can not be higher than HighThresholdPercent 1"),
        (101, 102, "invalid HighThresholdPercent 101, must be in range [0-100]"),
    ],
)
def test_policies_are_checked_in_the_kubelets_words(high: int, low: int, text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        CollectionPolicy(high, low)
    assert str(caught.value) == text


def test_equal_thresholds_are_a_policy() -> None:
    assert CollectionPolicy(0, 0).is_loop_needed
    assert CollectionPolicy(100, 100, maximum_age=Duration(1)).is_loop_needed
    assert not CollectionPolicy(100, 100).is_loop_needed


@pytest.mark.parametrize(
    ("available", "usage", "to_free"),
    [(500, 50, None), (110, 89, None), (101, 90, 99), (100, 90, 100), (50, 95, 150), (0, 100, 200), (2000, 0, None)],
)
def test_usage_is_rounded_up_and_freed_down_to_the_low_threshold(
    available: int, usage: int, to_free: int | None
) -> None:
    disk = DiskUsage(1000, available)
    assert (disk.usage_percent, CollectionPolicy(90, 80).bytes_to_free(disk)) == (usage, to_free)


@given(st.integers(200, 2**50), st.floats(0, 1), st.integers(0, 100), st.integers(0, 100))
def test_freeing_what_is_asked_reaches_the_low_threshold(capacity: int, share: float, one: int, other: int) -> None:
    policy = CollectionPolicy(max(one, other), min(one, other))
    disk = DiskUsage(capacity, int(capacity * share))
    to_free = policy.bytes_to_free(disk)
    if to_free is None:
        assert disk.usage_percent < policy.high_percent
        return
    after = DiskUsage(capacity, disk.available_bytes + to_free)
    assert after.usage_percent <= policy.low_percent + 1
    assert disk.usage_percent >= policy.high_percent


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (10 * 2**30, "10.0 GiB"),
        (2**40 - 1, "1024.0 GiB"),
        (2**60, "1.0 EiB"),
    ],
)
def test_sizes_are_shown_in_binary_units(size: int, text: str) -> None:
    assert size_text(size) == text


USES = st.builds(
    ImageUse,
    st.builds(ImageKey, st.sampled_from("abcd"), st.sampled_from(["", "kata"])),
    st.one_of(st.none(), st.integers(0, 50)),
    st.one_of(st.none(), st.integers(0, 50)),
    st.integers(0, 100),
    st.booleans(),
)


@given(st.lists(USES, max_size=12, unique_by=lambda use: use.key), st.integers(0, 300), st.integers(0, 60))
def test_a_walk_frees_in_order_and_no_more_than_needed(uses: list[ImageUse], target: int, age: int) -> None:
    now = 55
    may_go, spared = candidates(uses, frozenset(use.key for use in uses if use.key.image_id == "a"))
    assert len(may_go) + len(spared) == len(uses)
    assert not [use for use in may_go if use.is_pinned or use.key.image_id == "a"]
    for earlier, later in pairwise(may_go):
        assert sort_key(earlier) < sort_key(later)
        assert earlier.last_used is None or (later.last_used is not None and earlier.last_used <= later.last_used)
    walk = CollectionReport(False, target_bytes=target)
    free_space(may_go, walk, minimum_age=Duration(age), now=now, remove=lambda use: "")
    gone = [each.image for each in walk.removed]
    assert gone == [use for use in may_go if use in gone]
    assert walk.freed_bytes == sum(use.size_bytes for use in gone)
    assert all(use.first_detected is None or now - use.first_detected >= age for use in gone)
    assert sum(use.size_bytes for use in gone[:-1]) < max(target, 1) or not gone
    if walk.freed_bytes < target:
        assert {why for _, why in walk.spared} <= {Spared.TOO_YOUNG}


def test_freeing_exactly_what_is_asked_is_enough_and_every_image_left_has_its_reason() -> None:
    def use(name: str, *, last_used: int | None = None, first_detected: int | None = 0) -> ImageUse:
        return ImageUse(ImageKey(name), first_detected, last_used, 100, False)

    def free(target: int, remove: Callable[[ImageUse], str] = lambda _: "") -> CollectionReport:
        walk = CollectionReport(False, target_bytes=target)
        free_space(images, walk, minimum_age=Duration(20), now=60, remove=remove)
        return walk

    images = [use("never"), use("young", first_detected=50), use("early", last_used=9), use("now", last_used=60)]
    walk = free(200)
    assert [each.image.key.image_id for each in walk.removed] == ["never", "early"]
    assert [(image.key.image_id, why) for image, why in walk.spared] == [
        ("young", Spared.TOO_YOUNG),
        ("now", Spared.NOT_NEEDED),
    ]
    walk = free(201)
    assert walk.spared[-1] == (images[-1], Spared.USED_RECENTLY)
    walk = free(1, lambda one: "" if one.last_used else "busy")
    assert [each.image.key.image_id for each in (*walk.failed, *walk.removed)] == ["never", "early"]
    assert (walk.spared[0], walk.freed_bytes) == ((images[0], Spared.FAILED), 100)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "kata"])), max_size=6), st.booleans())
def test_every_listed_image_has_exactly_one_record(listed: list[tuple[str, str]], with_handlers: bool) -> None:
    detector = Detector(with_handlers=with_handlers)
    images = [image(image_id, handler=handler) for image_id, handler in listed]
    in_use = detector.update(images, [ContainerImage("c", "a")], detected_at=1, now=2)
    assert len(detector.records) == len(set(listed) if with_handlers else {image_id for image_id, _ in listed})
    for key, use in detector.records.items():
        assert (use.last_used == 2) is (key.image_id == "a")
        assert (key in in_use) is (key.image_id == "a")
    detector.update([], [], detected_at=3, now=3)
    assert detector.records == {}
