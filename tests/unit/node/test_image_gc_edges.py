"""Corners of image collection: what counts as in use, ages that can't be, markers that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore.cri.model import ContainerImage
from imagestore.errors import InvalidInputError, StoreCorruptError, StoreError
from imagestore.node.eviction import CollectionPolicy
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.gate_change import GateMarker
from imagestore.node.image_uses import CollectorState, Detector
from imagestore.util.durations import Duration
from tests.support.image_services import image

if TYPE_CHECKING:
    from pathlib import Path


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
