"""Image collection over a service: detection, order, thresholds, ages, handlers."""

from __future__ import annotations

import pytest

from imagestore.cri import ContainerImage, ImageSpec
from imagestore.errors import ImageCollectionError, ImageServiceError
from imagestore.node.eviction import CollectionPolicy, DiskUsage, Spared
from imagestore.util.durations import Duration
from tests.support.image_services import image
from tests.unit.node.image_gc_support import ON, Bed, seconds


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
    bed.have("", "used", "used too")
    bed.service.in_use = [ContainerImage("c", "used"), ContainerImage("d", "used too")]
    bed.collector.delete_unused()
    assert bed.removed() == []
    assert bed.collector.stats().in_use == 2
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
