"""Image collection: detection, order, thresholds, ages, texts, handlers, plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.cancel import CancelToken
from imagestore.errors import ImageCollectionError, ImageServiceError, InvalidInputError, StoreCorruptError
from imagestore.image_service import ContainerImage, ImageSpec
from imagestore.node.events import NodeEvent, ObjectReference
from imagestore.node.features import FeatureGates
from imagestore.node.gc import CollectionPolicy, DiskUsage, ImageCollector
from imagestore.node.gc.detection import Detector, ImageKey, ImageUse
from imagestore.node.gc.disk import disk_of_images
from imagestore.node.gc.loop import CollectionLoop
from imagestore.node.gc.order import Spared, candidates, free_space, sort_key
from imagestore.node.gc.policy import size_text
from imagestore.node.gc.transition import GateChange, GateMarker, clean_up
from imagestore.node.golang import Duration
from imagestore.node.metrics import NodeMetrics
from imagestore.node.records.files import PullRecordFiles
from imagestore.node.records.manager import PullManager
from imagestore.node.records.model import PulledRecord
from imagestore.node.records.verification import CredentialVerification
from tests.support.image_services import FakeClock, FakeService, image

if TYPE_CHECKING:
    from pathlib import Path

OFF = FeatureGates()
ON = FeatureGates(runtime_class_in_image_cri=True)
NODE = ObjectReference("Node", "edge-1")


def seconds(number: float) -> Duration:
    return Duration.of_seconds(number)


@dataclass
class Bed:
    """A collector over a service in memory, on a disk of 1000 bytes."""

    gates: FeatureGates = OFF
    policy: CollectionPolicy = field(default_factory=lambda: CollectionPolicy(90, 80, Duration(0)))
    disk: DiskUsage = field(default_factory=lambda: DiskUsage(1000, 500))
    sandbox_image: str = ""
    records: PullManager | None = None
    service: FakeService = field(default_factory=FakeService)
    clock: FakeClock = field(default_factory=FakeClock)
    events: list[NodeEvent] = field(default_factory=list)
    metrics: NodeMetrics = field(default_factory=NodeMetrics)

    def __post_init__(self) -> None:
        self.collector = ImageCollector(
            self.service,
            self.policy,
            gates=self.gates,
            disk=lambda: self.disk,
            sandbox_image=self.sandbox_image,
            recorder=self.events.append,
            node=NODE,
            metrics=self.metrics,
            records=self.records,
            clock=self.clock,
        )

    def have(self, *ids: str, size: int = 100) -> None:
        self.service.images += [image(each, size) for each in ids]
        self.collector.detect()

    def use(self, *ids: str) -> None:
        """A look while containers use the images; then they end."""
        self.clock.pass_seconds(1)
        self.service.in_use = [ContainerImage(f"c-{each}", each) for each in ids]
        self.collector.detect()
        self.service.in_use = []
        self.clock.pass_seconds(1)

    def removed(self) -> list[str]:
        return [spec.image for spec in self.service.removed]

    def told(self) -> list[tuple[str, str, str]]:
        assert all(event.subject == NODE for event in self.events)
        return [(event.type, event.reason, event.message) for event in self.events]


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


def test_below_the_high_threshold_nothing_goes() -> None:
    bed = Bed()
    bed.have("a")
    report = bed.collector.collect()
    assert (bed.removed(), bed.told(), report.target_bytes) == ([], [], None)
    assert [(use.key.image_id, why) for use, why in report.spared] == [("a", Spared.UNTOUCHED)]


def test_the_longest_unused_go_first_until_enough_is_free() -> None:
    bed = Bed(disk=DiskUsage(1000, 50))
    bed.have("used-late", "used-early", "never")
    bed.use("used-early")
    bed.use("used-late")
    report = bed.collector.collect()
    assert bed.removed() == ["never", "used-early"]
    assert (report.freed_bytes, report.target_bytes, report.missing_bytes) == (200, 150, 0)
    assert 'kubelet_image_garbage_collected_total{reason="space"} 2' in bed.metrics.text()
    assert bed.collector.stats().removed_images == 2


def test_at_least_one_image_goes_at_the_threshold() -> None:
    bed = Bed(policy=CollectionPolicy(90, 90, Duration(0)), disk=DiskUsage(1000, 100))
    bed.have("a", "b")
    assert bed.collector.collect().target_bytes == 0
    assert bed.removed() == ["a"]


def test_the_first_detected_goes_first_among_equals_and_then_the_smaller_key() -> None:
    bed = Bed(disk=DiskUsage(1000, 50))
    bed.have("z")
    bed.clock.pass_seconds(1)
    bed.have("b", "a")
    bed.collector.delete_unused()
    assert bed.removed() == ["z", "a", "b"]


def test_images_in_use_and_pinned_ones_are_spared() -> None:
    bed = Bed(sandbox_image="registry.example/pause:1")
    bed.have("unused", "used")
    bed.service.images.append(image("pinned", pinned=True))
    pause = bed.service.pull(ImageSpec("registry.example/pause:1"))
    bed.service.in_use = [ContainerImage("c1", "used")]
    report = bed.collector.delete_unused()
    assert bed.removed() == ["unused"]
    assert {use.key.image_id: why for use, why in report.spared} == {
        "used": Spared.IN_USE,
        "pinned": Spared.PINNED,
        pause: Spared.SANDBOX,
    }


def test_images_mounted_as_volumes_are_in_use() -> None:
    bed = Bed(gates=ON)
    bed.service.images += [image("volume", handler="kata"), image("app", handler="kata")]
    bed.service.in_use = [ContainerImage("c1", "app", "kata", ("volume",))]
    bed.collector.delete_unused()
    assert bed.removed() == []


@pytest.mark.parametrize(("age", "goes"), [(119.999, False), (120, True), (121, True)])
def test_young_images_are_spared(age: float, goes: bool) -> None:
    bed = Bed(policy=CollectionPolicy(90, 80))
    bed.have("a")
    bed.clock.pass_seconds(age)
    bed.collector.delete_unused()
    assert bed.removed() == (["a"] if goes else [])


def test_a_failed_removal_doesnt_end_the_walk() -> None:
    bed = Bed(disk=DiskUsage(1000, 50))
    bed.have("a", "b", "c")
    bed.service.remove_errors["a"] = ImageServiceError("busy")
    with pytest.raises(ImageCollectionError) as caught:
        bed.collector.collect()
    assert bed.removed() == ["a", "b", "c"]
    assert (
        str(caught.value) == "wanted to free 150 bytes, but freed 200 bytes space with errors in image deletion: busy"
    )
    assert caught.value.freed_bytes == 200
    assert bed.told() == []


def test_errors_of_removals_are_joined() -> None:
    bed = Bed()
    bed.have("a", "b")
    bed.service.remove_errors |= {"a": ImageServiceError("busy a"), "b": ImageServiceError("busy b")}
    with pytest.raises(ImageCollectionError) as caught:
        bed.collector.delete_unused()
    assert str(caught.value) == (
        "wanted to free 9223372036854775807 bytes, but freed 0 bytes space"
        " with errors in image deletion: [busy a, busy b]"
    )


def test_too_little_space_is_an_event_and_an_error() -> None:
    gib = 2**30
    bed = Bed(disk=DiskUsage(10 * gib, gib // 2))
    bed.have("a", size=7)
    with pytest.raises(ImageCollectionError) as caught:
        bed.collector.collect()
    text = (
        "Insufficient free disk space on the node's image filesystem (95% of 10.0 GiB used). Failed to free sufficient"
        " space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used by active"
        " images, logs, volumes, or other data."
    )
    assert str(caught.value) == text
    assert bed.told() == [("Warning", "FreeDiskSpaceFailed", text)]


def test_a_disk_without_a_size_is_an_event_and_an_error() -> None:
    bed = Bed(disk=DiskUsage(0, 0))
    with pytest.raises(ImageCollectionError, match=r"^invalid capacity 0 on image filesystem$"):
        bed.collector.collect()
    assert bed.told() == [("Warning", "InvalidDiskCapacity", "invalid capacity 0 on image filesystem")]


def test_an_image_without_an_id_is_told_and_skipped() -> None:
    bed = Bed()
    bed.have("")
    bed.collector.delete_unused()
    assert bed.removed() == []
    assert [event[1] for event in bed.told()] == ["InvalidImageID"]


AGED = CollectionPolicy(90, 80, Duration(0), seconds(60))


def test_old_images_go_only_after_the_process_has_been_up_for_longer() -> None:
    bed = Bed(policy=AGED)
    bed.have("never")
    bed.clock.pass_seconds(60)
    bed.collector.collect()
    assert bed.removed() == []
    bed.clock.pass_seconds(0.001)
    bed.collector.collect()
    assert bed.removed() == ["never"]
    assert 'kubelet_image_garbage_collected_total{reason="age"} 1' in bed.metrics.text()


def test_the_maximum_age_is_strict() -> None:
    bed = Bed(policy=AGED)
    bed.have("a")
    bed.clock.pass_seconds(100)
    bed.use("a")
    bed.clock.pass_seconds(59)
    bed.collector.collect()
    assert bed.removed() == []
    bed.clock.now += 1
    bed.collector.collect()
    assert bed.removed() == ["a"]


def test_failures_by_age_end_the_round() -> None:
    bed = Bed(policy=AGED, disk=DiskUsage(0, 0))
    bed.have("a", "b")
    bed.clock.pass_seconds(61)
    bed.service.remove_errors["a"] = ImageServiceError("busy")
    with pytest.raises(ImageCollectionError) as caught:
        bed.collector.collect()
    text = "wanted to free images older than 1m0s, encountered errors in image deletion: busy"
    assert (str(caught.value), bed.removed()) == (text, ["a", "b"])


def test_what_went_by_age_isnt_freed_again_for_space() -> None:
    bed = Bed(policy=AGED, disk=DiskUsage(1000, 100))
    bed.have("old", "young")
    bed.clock.pass_seconds(100)
    bed.use("young")
    report = bed.collector.collect()
    assert [(each.image.key.image_id, each.reason) for each in report.removed] == [("old", "age"), ("young", "space")]


def test_a_service_that_cant_list_is_an_error() -> None:
    bed = Bed()
    bed.service.list_error = ImageServiceError("broken")
    with pytest.raises(ImageServiceError):
        bed.collector.collect()


def tuples(bed: Bed) -> None:
    bed.service.images += [image("a"), image("a", handler="kata"), image("a", handler="gvisor")]


def test_under_the_gate_records_are_kept_by_handler() -> None:
    bed = Bed(gates=ON)
    tuples(bed)
    bed.service.in_use = [ContainerImage("c1", "a", "kata")]
    bed.collector.delete_unused()
    assert [(spec.image, spec.runtime_handler) for spec in bed.service.removed] == [("a", ""), ("a", "gvisor")]


def test_without_the_gate_one_id_is_one_record() -> None:
    bed = Bed()
    tuples(bed)
    bed.service.images[-1] = image("a", 77, pinned=True)
    bed.collector.detect()
    assert [(str(use.key), use.size_bytes, use.is_pinned) for use in bed.collector.images()] == [("a", 77, True)]
    bed.service.images.append(image("a", 5, handler="late"))
    bed.collector.delete_unused()
    assert [(spec.image, spec.runtime_handler) for spec in bed.service.removed] == [("a", "")]


@pytest.mark.parametrize("handler", [None, ""])
def test_a_container_without_a_handler_uses_every_tuple(handler: str | None) -> None:
    bed = Bed(gates=ON)
    bed.service.images += [image("a", handler="kata"), image("a", handler="gvisor"), image("b", handler="kata")]
    bed.service.in_use = [ContainerImage("c1", "a", handler)]
    bed.collector.delete_unused()
    assert bed.removed() == ["b"]


def test_an_empty_handler_means_the_image_without_one_where_it_is_listed() -> None:
    bed = Bed(gates=ON)
    tuples(bed)
    bed.service.in_use = [ContainerImage("c1", "a", "")]
    bed.collector.delete_unused()
    assert sorted(spec.runtime_handler for spec in bed.service.removed) == ["gvisor", "kata"]


def test_images_are_counted_by_handler() -> None:
    bed = Bed(gates=ON)
    tuples(bed)
    bed.collector.detect()
    assert bed.collector.stats().by_handler == {"": 1, "gvisor": 1, "kata": 1}
    text = bed.metrics.text()
    assert 'kubelet_images_runtime_handler{runtime_handler="kata"} 1' in text
    assert 'runtime_handler=""' not in text


def test_a_dry_run_shows_what_a_round_does() -> None:
    bed = Bed(disk=DiskUsage(1000, 50))
    bed.have("a", "b", "c")
    plan = bed.collector.collect(dry_run=True)
    assert (bed.removed(), bed.told(), plan.is_dry_run) == ([], [], True)
    done = bed.collector.collect()
    assert [each.image.key for each in plan.removed] == [each.image.key for each in done.removed]
    assert plan.freed_bytes == done.freed_bytes == 200
    bed = Bed(disk=DiskUsage(1000, 0))
    bed.have("a")
    assert bed.collector.collect(dry_run=True).missing_bytes == 100


def test_gone_images_are_forgotten_and_new_ones_are_young_again() -> None:
    bed = Bed(policy=CollectionPolicy(90, 80, seconds(10)))
    bed.have("a")
    gone, bed.service.images = bed.service.images, []
    bed.collector.detect()
    assert bed.collector.images() == ()
    bed.clock.pass_seconds(20)
    bed.service.images = gone
    bed.collector.delete_unused()
    assert bed.removed() == []


def test_records_of_gone_images_are_pruned(tmp_path: Path) -> None:
    files = PullRecordFiles(tmp_path)
    for ref in ("used", "unused", "elsewhere"):
        files.write(PulledRecord(ref, 1, {}))
    bed = Bed(records=PullManager(files, CredentialVerification()))
    bed.have("used", "unused")
    bed.service.in_use = [ContainerImage("c1", "used")]
    bed.collector.collect(dry_run=True)
    assert len(files.records()[0]) == 3
    bed.collector.delete_unused()
    assert [record.image_ref for record in files.records()[0]] == ["used"]


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
    walk = free_space(may_go, target, minimum_age=Duration(age), now=now, remove=lambda use: "")
    gone = [each.image for each in walk.tried]
    assert gone == [use for use in may_go if use in gone]
    assert walk.freed_bytes == sum(use.size_bytes for use in gone)
    assert all(use.first_detected is None or now - use.first_detected >= age for use in gone)
    assert sum(use.size_bytes for use in gone[:-1]) < max(target, 1) or not gone
    if walk.freed_bytes < target:
        assert {why for _, why in walk.spared} <= {Spared.TOO_YOUNG}


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


def test_only_repeated_failures_of_rounds_are_events() -> None:
    bed = Bed(disk=DiskUsage(0, 0))
    told: list[NodeEvent] = []
    loop = CollectionLoop(bed.collector, recorder=told.append, node=NODE)
    assert [loop.round(), loop.round(), loop.round()] == [False, False, False]
    text = "invalid capacity 0 on image filesystem"
    assert told == [NodeEvent("Warning", "ImageGCFailed", text, NODE)] * 2
    bed.disk = DiskUsage(1000, 900)
    assert loop.round()
    bed.disk = DiskUsage(0, 0)
    assert not loop.round()
    assert len(told) == 2


@pytest.mark.parametrize(("policy", "rounds"), [(CollectionPolicy(100, 80), False), (CollectionPolicy(90, 80), True)])
def test_rounds_run_only_where_the_policy_can_remove(policy: CollectionPolicy, rounds: bool) -> None:
    bed = Bed(policy=policy, disk=DiskUsage(0, 0))
    token = CancelToken(0.05)
    CollectionLoop(bed.collector, recorder=bed.events.append, period=seconds(0.01)).run(token)
    assert bool(bed.events) is rounds


def test_the_disk_is_that_of_the_services_file_system() -> None:
    usage = disk_of_images(FakeService())
    assert 0 < usage.available_bytes <= usage.capacity_bytes


def test_a_change_of_the_gate_asks_for_a_clean_up(tmp_path: Path) -> None:
    marker = GateMarker(tmp_path / "state")
    assert marker.check(OFF) is None
    change = marker.check(ON)
    assert change == GateChange(before=False, now=True)
    assert len(change.steps) == 4
    assert change.steps[0].startswith("RuntimeClassInImageCriApi went from off to on: ")
    bed = Bed(gates=ON, policy=CollectionPolicy(90, 80, seconds(1000)))
    bed.have("used", "unused")
    bed.service.images.append(image("pinned", pinned=True))
    bed.service.in_use = [ContainerImage("c1", "used")]
    assert not clean_up(bed.collector, marker, ON, dry_run=True).report.failed
    assert bed.removed() == []
    first = clean_up(bed.collector, marker, ON)
    assert (bed.removed(), [use.key.image_id for use in first.left]) == (["unused"], ["used"])
    assert marker.check(ON) is not None
    bed.service.in_use = []
    bed.clock.pass_seconds(1)
    assert clean_up(bed.collector, marker, ON).left == ()
    assert marker.check(ON) is None
    assert marker.check(OFF) == GateChange(before=True, now=False)


def test_a_damaged_marker_is_told(tmp_path: Path) -> None:
    (tmp_path / "image-handler-gate.json").write_text("[]")
    with pytest.raises(StoreCorruptError):
        GateMarker(tmp_path).check(OFF)
