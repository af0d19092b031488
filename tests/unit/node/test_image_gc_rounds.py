"""Rounds of image collection: when they run, what is told, and what a change of the gate asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore import CancelToken
from imagestore.cri import ContainerImage
from imagestore.errors import InvalidInputError, StoreCorruptError, StoreError
from imagestore.node.eviction import CollectionPolicy, DiskUsage, Reason, disk_of_images
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.gate_change import GateChange, GateMarker, clean_up
from imagestore.node.image_gc import CollectionLoop
from imagestore.node.image_uses import CollectorState, Detector
from imagestore.node.kubelet_messages import NodeEvent
from imagestore.node.pull_record_files import PullRecordFiles
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.pull_records import PulledRecord
from imagestore.node.pull_verification import CredentialVerification
from imagestore.util.durations import Duration
from tests.support.image_services import FakeService, image
from tests.unit.node.image_gc_support import NODE, OFF, ON, Bed, seconds

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_plan_counts_what_goes_by_age_as_free() -> None:
    bed = Bed(disk=DiskUsage(1000, 50), policy=CollectionPolicy(90, 80, Duration(0), seconds(100)))
    bed.have("old")
    bed.clock.pass_seconds(200)
    bed.have("young")
    bed.use("young")
    plan = bed.collector.collect(dry_run=True)
    assert [(each.image.key.image_id, each.reason) for each in plan.removed] == [("old", Reason.AGE)]
    assert (plan.disk, plan.target_bytes) == (DiskUsage(1000, 150), None)
    bed.disk = DiskUsage(1000, 150)
    assert [each.image.key for each in bed.collector.collect().removed] == [each.image.key for each in plan.removed]


def counted(bed: Bed) -> dict[str, float]:
    return {
        sample.labels["runtime_handler"]: sample.value
        for family in bed.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kubelet_images_runtime_handler"
    }


def test_the_gauge_counts_other_handlers_images_as_they_are_after_a_round() -> None:
    bed = Bed(gates=ON, default_handler="runc", disk=DiskUsage(1000, 0))
    bed.service.images += [image("a", handler="runc"), image("b", handler="kata"), image("c", handler="kata")]
    bed.service.images += [image("d", 100), image("e", handler="gvisor")]
    bed.collector.detect()
    assert counted(bed) == {"gvisor": 1, "kata": 2}
    bed.collector.delete_unused(dry_run=True)
    assert counted(bed) == {"gvisor": 1, "kata": 2}
    bed.service.in_use = [ContainerImage("c1", "b", "kata")]
    bed.collector.delete_unused()
    assert counted(bed) == {"kata": 1}


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
    bed, told = Bed(policy=policy, disk=DiskUsage(0, 0)), list[NodeEvent]()
    token = CancelToken(60 if rounds else 0.05)

    def note(event: NodeEvent) -> None:
        told.append(event)
        token.cancel("told")

    CollectionLoop(bed.collector, recorder=note, period=seconds(0.01)).run(token)
    assert bool(told) is rounds


def test_the_disk_is_that_of_the_services_file_system() -> None:
    usage = disk_of_images(FakeService())
    assert 0 < usage.available_bytes <= usage.capacity_bytes


def test_a_change_of_the_gate_asks_for_a_clean_up(tmp_path: Path) -> None:
    marker = GateMarker(tmp_path / "state")
    assert marker.check(OFF) is None
    change = marker.check(ON)
    assert change == GateChange(is_on=True)
    assert len(change.steps()) == 4
    assert change.steps()[0].startswith("RuntimeClassInImageCriApi went from off to on: ")
    bed = Bed(gates=ON, policy=CollectionPolicy(90, 80, seconds(1000)))
    bed.have("used", "unused")
    bed.service.images.append(image("pinned", pinned=True))
    bed.service.in_use = [ContainerImage("c1", "used")]
    assert not clean_up(bed.collector, marker, ON, dry_run=True)[0].failed
    assert bed.removed() == []
    _, left = clean_up(bed.collector, marker, ON)
    assert (bed.removed(), [use.key.image_id for use in left]) == (["unused"], ["used"])
    assert marker.check(ON) is not None
    bed.service.in_use = []
    bed.clock.pass_seconds(1)
    assert clean_up(bed.collector, marker, ON)[1] == ()
    assert marker.check(ON) is None
    assert marker.check(OFF) == GateChange(is_on=False)


def test_a_damaged_marker_is_told(tmp_path: Path) -> None:
    (tmp_path / "image-handler-gate.json").write_text("[]")
    with pytest.raises(StoreCorruptError):
        GateMarker(tmp_path).check(OFF)


@pytest.mark.parametrize(
    ("handler", "used"),
    [
        ("kata", ["kata"]),
        ("unlisted", ["gvisor", "kata"]),
        ("", ["gvisor", "kata"]),
        (None, ["gvisor", "kata"]),
    ],
)
def test_a_container_without_a_listed_handler_uses_every_tuple(handler: str | None, used: list[str]) -> None:
    detector = Detector(with_handlers=True)
    images = [image("a", handler="kata"), image("a", handler="gvisor"), image("b", handler="unlisted")]
    in_use = detector.update(images, [ContainerImage("c1", "a", handler)], detected_at=1, now=2)
    assert sorted(key.runtime_handler for key in in_use) == used
    assert {key.image_id for key in in_use} == {"a"}


@pytest.mark.parametrize("ages", [(-1, 0), (0, -1)])
def test_no_image_is_older_than_a_negative_age(ages: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match="expected zero or more"):
        CollectionPolicy(90, 80, *(Duration(age) for age in ages))


def test_a_marker_of_great_depth_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "image-handler-gate.json").write_text("[" * 4000)
    with pytest.raises(StoreCorruptError):
        GateMarker(tmp_path).check(FeatureGates())


def test_a_state_that_cant_be_written_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "image-uses.json").mkdir()
    with pytest.raises(StoreError, match="can't write the uses of images"):
        CollectorState(0).save(tmp_path, ())
    assert [path.name for path in tmp_path.iterdir()] == ["image-uses.json"]
