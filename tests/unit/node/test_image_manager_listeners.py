"""What a pull leaves in the records when something goes wrong around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore.node.feature_gates import FeatureGates
from imagestore.node.image_manager import EnsureRequest, ImageManager, Pod
from imagestore.node.pull_record_files import PullRecordFiles
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.pull_verification import CredentialVerification
from tests.support.image_services import FakeService

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.node.kubelet_messages import NodeEvent


class Broken:
    """Hears of pulling times and has a bug."""

    def started(self, pod_uid: str) -> None:
        """Fine."""

    def finished(self, pod_uid: str) -> None:
        raise RuntimeError(f"a bug of {pod_uid}")


def test_what_came_in_is_recorded_whatever_a_listener_does(tmp_path: Path) -> None:
    heard: list[NodeEvent] = []
    manager = ImageManager(
        FakeService(),
        gates=FeatureGates(),
        records=PullManager(PullRecordFiles(tmp_path), CredentialVerification()),
        recorder=heard.append,
        pulling_times=Broken(),
    )
    with pytest.raises(RuntimeError, match="a bug of uid-1"):
        manager.ensure(EnsureRequest("registry.example/app:1", Pod("uid-1")))
    assert PullRecordFiles(tmp_path).counts() == (0, 1)
