"""EnsureImageExists with pull records: who may use what is there, and who must pull."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore import CancelToken
from imagestore.cri import SandboxMetadata
from imagestore.errors import ImageServiceError, OperationCancelledError
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.image_manager import EnsureRequest, ImageManager
from imagestore.node.image_names import PullPolicy
from imagestore.node.kubelet_messages import ErrorClass
from imagestore.node.pull_record_files import PullRecordFiles
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.pull_verification import CredentialVerification
from tests.support.image_services import FakeService, image
from tests.unit.node.image_manager_support import POD, PRESENT, TWO, Bed, recording, secret

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.node.kubelet_messages import NodeEvent


def test_a_token_ends_the_call(tmp_path: Path) -> None:
    records = PullManager(PullRecordFiles(tmp_path), CredentialVerification())
    bed = Bed(gates=FeatureGates(), records=records)
    token = CancelToken()

    def cancel() -> None:
        token.cancel("enough")
        raise ImageServiceError("cut off")

    bed.service.on_pull = cancel
    with pytest.raises(OperationCancelledError):
        bed.manager.ensure(EnsureRequest(PRESENT, POD), cancel=token)
    assert PullRecordFiles(tmp_path).counts() == (0, 0)


def test_a_pod_with_the_secret_may_use_what_it_pulled(tmp_path: Path) -> None:
    bed = recording(tmp_path)
    assert bed.ensure(secrets=(secret(TWO),)).was_pulled
    result = bed.ensure(secrets=(secret(TWO),))
    text = f'Container image "{PRESENT}" already present on machine and can be accessed by the pod'
    assert (result.was_pulled, result.message) == (False, text)
    assert bed.told() == [("Normal", "Pulled", text)]


def test_a_pod_without_the_secret_must_pull(tmp_path: Path) -> None:
    bed = recording(tmp_path)
    bed.ensure(secrets=(secret(TWO),))
    bed.service.pull_errors.append(ImageServiceError("denied"))
    assert bed.ensure().error is ErrorClass.PULL
    assert bed.counted()[-1] == ("ifnotpresent", "true", "true")


def test_never_doesnt_leak_that_an_image_is_present(tmp_path: Path) -> None:
    bed = recording(tmp_path)
    bed.ensure(secrets=(secret(TWO),))
    result = bed.ensure(policy=PullPolicy.NEVER)
    absent = Bed().ensure(policy=PullPolicy.NEVER)
    assert (result.error, result.message) == (absent.error, absent.message)
    assert ("never", "true", "true") in bed.counted()


def test_an_anonymous_pull_serves_every_pod(tmp_path: Path) -> None:
    bed = recording(tmp_path)
    bed.ensure()
    assert not bed.ensure().was_pulled
    assert not bed.ensure(secrets=(secret(TWO),)).was_pulled


def test_preloaded_images_need_no_verification_by_default(tmp_path: Path) -> None:
    for policy, was_pulled in (("", False), ("NeverVerify", False), ("AlwaysVerify", True)):
        bed = recording(tmp_path / (policy or "default"), policy)
        bed.service.images.append(image(PRESENT))
        assert bed.ensure().was_pulled is was_pulled


def test_intents_end_with_their_pulls(tmp_path: Path) -> None:
    bed = recording(tmp_path)
    seen: list[tuple[int, int]] = []
    bed.service.on_pull = lambda: seen.append(PullRecordFiles(tmp_path).counts())
    bed.service.pull_errors.append(ImageServiceError("broken"))
    bed.ensure()
    assert PullRecordFiles(tmp_path).counts() == (0, 0)
    assert bed.ensure().error is ErrorClass.BACK_OFF
    assert PullRecordFiles(tmp_path).counts() == (0, 0)
    bed.clock.pass_seconds(10)
    bed.ensure()
    assert seen == [(1, 0), (1, 0)]
    assert PullRecordFiles(tmp_path).counts() == (0, 1)


def test_an_intent_that_cant_be_written_ends_without_a_pull(tmp_path: Path) -> None:
    bed = recording(tmp_path)
    (tmp_path / "image_manager" / "pulling").rmdir()
    result = bed.ensure()
    assert result.error is None
    assert result.message.startswith(
        f'Failed to record image pull intent for container image "{PRESENT}": failed to record image pull intent: '
    )
    assert result.message.endswith(result.reason)
    assert bed.service.pulled == []


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
        manager.ensure(EnsureRequest("registry.example/app:1", SandboxMetadata(uid="uid-1")))
    assert PullRecordFiles(tmp_path).counts() == (0, 1)
