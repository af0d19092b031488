"""EnsureImageExists: every step with its result, events, calls and metrics."""

from __future__ import annotations

import logging

import pytest

from imagestore.cri import ImageSpec, SandboxMetadata
from imagestore.errors import (
    ConfigError,
    ImageDeniedError,
    ImageServiceError,
    ImageStoreError,
    RegistryUnavailableError,
)
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.image_manager import EnsureRequest, ImageManager
from imagestore.node.image_names import PullPolicy
from imagestore.node.kubelet_messages import ErrorClass, NodeEvent, start_failure
from tests.support.image_services import FakeService
from tests.unit.node.image_manager_support import HANDLERS, OFF, POD, PRESENT, SUBJECT, TWO, Bed, present, secret


def test_a_bad_name_ends_at_once() -> None:
    bed = Bed()
    result = bed.ensure("user/Upper")
    text = (
        'Failed to apply default image tag "user/Upper": couldn\'t parse image name "user/Upper":'
        " invalid reference format: repository name (user/Upper) must be lowercase"
    )
    assert (result.error, result.message, result.image_ref) == (ErrorClass.INVALID_IMAGE_NAME, text, "")
    assert bed.told() == [("Warning", "InspectFailed", text)]
    assert (bed.service.asked, bed.service.pulled) == ([], [])
    assert bed.counted() == [("ifnotpresent", "unknown", "unknown")]


@pytest.mark.parametrize("policy", [PullPolicy.IF_NOT_PRESENT, PullPolicy.NEVER])
def test_a_present_image_is_used(policy: PullPolicy) -> None:
    bed = Bed(service=present())
    result = bed.ensure(policy=policy)
    text = f'Container image "{PRESENT}" already present on machine'
    assert (result.image_ref, result.message, result.reason, result.was_pulled) == (PRESENT, text, "", False)
    assert bed.told() == [("Normal", "Pulled", text)]
    assert bed.service.pulled == []
    assert bed.times == ["finished uid-1"]
    assert bed.counted() == [(policy.lower(), "true", "false")]


def test_always_doesnt_ask_for_presence() -> None:
    bed = Bed(service=present())
    result = bed.ensure(policy=PullPolicy.ALWAYS)
    assert result.image_ref == f"id-of-{PRESENT}"
    assert len(bed.service.asked) == 1, "for the size only"
    assert bed.counted() == [("always", "unknown", "true")]


def test_never_with_an_absent_image_is_an_error() -> None:
    bed = Bed()
    result = bed.ensure(policy=PullPolicy.NEVER)
    text = f'Container image "{PRESENT}" is not present with pull policy of Never'
    assert (result.error, result.message) == (ErrorClass.NEVER_PULL, text)
    assert bed.told() == [("Warning", "ErrImageNeverPull", text)]
    assert bed.counted() == [("never", "false", "unknown")]
    assert start_failure(result, SUBJECT) == NodeEvent("Warning", "Failed", "Error: ErrImageNeverPull", SUBJECT)


def test_a_failed_inspection_is_told_with_the_images_name() -> None:
    bed = Bed(service=FakeService(status_error=ImageServiceError("broken")))
    result = bed.ensure()
    text = f'Failed to inspect image "{PRESENT}": broken'
    assert (result.error, result.message) == (ErrorClass.IMAGE_INSPECT, text)
    assert bed.told() == [("Warning", "InspectFailed", text)]
    assert bed.counted() == [("ifnotpresent", "unknown", "unknown")]


def test_an_absent_image_is_pulled() -> None:
    bed = Bed()
    bed.service.on_pull = lambda: bed.clock.pass_seconds(1.2345)
    result = bed.ensure("app")
    assert (result.image_ref, result.message, result.was_pulled) == ("id-of-app:latest", "", True)
    assert bed.told() == [
        ("Normal", "Pulling", 'Pulling image "app"'),
        (
            "Normal",
            "Pulled",
            'Successfully pulled image "app" in 1.234s (1.234s including waiting). Image size: 1234 bytes.',
        ),
    ]
    assert bed.service.pulled == [(ImageSpec("app:latest", "", {"note": "x"}), None)]
    assert bed.service.pulled[0][0].annotations == {"note": "x"}
    sandbox = bed.service.sandboxes[0]
    assert sandbox is not None
    assert (sandbox.name, sandbox.namespace, sandbox.uid) == ("web", "default", "uid-1")
    assert bed.times == ["started uid-1", "finished uid-1"]
    assert bed.counted() == [("ifnotpresent", "false", "true")]
    assert 'kubelet_image_pull_duration_seconds_count{image_size_in_bytes="0-10MB"} 1' in bed.metrics.text()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ImageServiceError("rpc error: broken"), ErrorClass.PULL, "rpc error: broken"),
        (
            ImageServiceError("RegistryUnavailable: no route"),
            ErrorClass.REGISTRY_UNAVAILABLE,
            f"image pull failed for {PRESENT} because the registry is unavailable: no route",
        ),
        (
            ImageServiceError("RegistryUnavailable"),
            ErrorClass.REGISTRY_UNAVAILABLE,
            f"image pull failed for {PRESENT} because the registry is unavailable",
        ),
        (
            ImageServiceError("SignatureValidationFailed: no key"),
            ErrorClass.SIGNATURE_VALIDATION,
            f"image pull failed for {PRESENT} because the signature validation failed: no key",
        ),
        (ImageServiceError("x: RegistryUnavailable"), ErrorClass.PULL, "x: RegistryUnavailable"),
        (
            RegistryUnavailableError("registry.example: no answer", host="registry.example"),
            ErrorClass.REGISTRY_UNAVAILABLE,
            f"image pull failed for {PRESENT} because the registry is unavailable: registry.example: no answer",
        ),
        (
            ImageDeniedError(PRESENT, "cosign", "unsigned"),
            ErrorClass.SIGNATURE_VALIDATION,
            f"image pull failed for {PRESENT} because the signature validation failed: unsigned",
        ),
        # A CRI endpoint that says no more than the name of its error.
        (
            RegistryUnavailableError("RegistryUnavailable"),
            ErrorClass.REGISTRY_UNAVAILABLE,
            f"image pull failed for {PRESENT} because the registry is unavailable",
        ),
        (
            ImageDeniedError("PullImage", "unix:///run/cri.sock", "SignatureValidationFailed"),
            ErrorClass.SIGNATURE_VALIDATION,
            f"image pull failed for {PRESENT} because the signature validation failed",
        ),
    ],
)
def test_failed_pulls_have_their_class_and_text(error: ImageStoreError, kind: ErrorClass, message: str) -> None:
    bed = Bed(service=FakeService(pull_errors=[error]))
    result = bed.ensure()
    assert (result.error, result.message, result.reason) == (kind, message, kind.value)
    assert bed.told()[-1][:2] == ("Warning", "Failed")
    assert bed.told()[-1][2].startswith(f'Failed to pull image "{PRESENT}": ')
    assert bed.times == ["started uid-1"], "a failure leaves the pod's pulling open"
    bed.clock.pass_seconds(9)
    result = bed.ensure()
    text = f'Back-off pulling image "{PRESENT}"'
    assert (result.error, result.message) == (ErrorClass.BACK_OFF, f"{text}: {kind.value}: {message}")
    assert bed.told() == [("Normal", "BackOff", text)]
    assert len(bed.service.pulled) == 1
    bed.clock.pass_seconds(1)
    assert bed.ensure().was_pulled


def test_success_doesnt_reset_the_delay() -> None:
    failure = ImageServiceError("broken")
    bed = Bed(service=FakeService(pull_errors=[failure]))
    bed.ensure(policy=PullPolicy.ALWAYS)
    bed.clock.pass_seconds(10)
    assert bed.ensure(policy=PullPolicy.ALWAYS).was_pulled
    bed.service.pull_errors.append(failure)
    bed.ensure(policy=PullPolicy.ALWAYS)
    bed.clock.pass_seconds(19)
    assert bed.ensure(policy=PullPolicy.ALWAYS).error is ErrorClass.BACK_OFF


def test_back_off_is_kept_by_pod_and_image() -> None:
    bed = Bed(service=FakeService(pull_errors=[ImageServiceError("broken")]))
    bed.ensure()
    assert bed.ensure("registry.example/other:1").was_pulled
    other = EnsureRequest(PRESENT, SandboxMetadata(uid="uid-2"), PullPolicy.IF_NOT_PRESENT)
    assert bed.manager.ensure(other).was_pulled


def test_back_off_is_kept_by_handler_under_the_gate_only() -> None:
    for gates, expected in ((HANDLERS, None), (OFF, ErrorClass.BACK_OFF)):
        bed = Bed(gates=gates, service=FakeService(pull_errors=[ImageServiceError("broken")]))
        bed.ensure(handler="kata")
        assert bed.ensure(handler="gvisor").error is expected


def test_the_handler_is_sent_under_the_gate_only() -> None:
    for gates, sent in ((HANDLERS, "kata"), (OFF, "")):
        bed = Bed(gates=gates)
        bed.ensure(handler="kata")
        assert {spec.runtime_handler for spec in bed.service.asked} == {sent}
        assert [spec.runtime_handler for spec, _ in bed.service.pulled] == [sent]
        assert all(spec.annotations == {"note": "x"} for spec in bed.service.asked)


def test_presence_is_that_of_the_handler() -> None:
    bed = Bed(gates=HANDLERS, service=present())
    assert bed.ensure(handler="kata").was_pulled
    assert not bed.ensure(handler="kata").was_pulled
    assert not bed.ensure().was_pulled


def test_no_token_means_no_pull() -> None:
    bed = Bed(qps=1)
    result = bed.ensure()
    assert (result.error, result.message) == (ErrorClass.PULL, "pull QPS exceeded")
    assert bed.told()[-1] == ("Warning", "Failed", f'Failed to pull image "{PRESENT}": pull QPS exceeded')
    assert bed.service.pulled == []
    assert bed.ensure().error is ErrorClass.BACK_OFF


def test_a_size_that_cant_be_asked_for_is_zero() -> None:
    bed = Bed()

    def break_status() -> None:
        bed.service.status_error = ImageServiceError("broken")

    bed.service.on_pull = break_status
    result = bed.ensure(policy=PullPolicy.ALWAYS)
    assert result.was_pulled
    assert bed.told()[-1][2].endswith("Image size: 0 bytes.")


def test_events_without_an_object_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    with caplog.at_level(logging.INFO):
        bed.manager.ensure(EnsureRequest("app:1", POD, PullPolicy.NEVER))
    assert bed.events == []
    text = 'default/web/app:1 Container image "app:1" is not present with pull policy of Never'
    assert text in caplog.messages


def test_credentials_are_tried_in_turn() -> None:
    bed = Bed(service=FakeService(pull_errors=[ImageServiceError("denied")]))
    assert bed.ensure(secrets=(secret(TWO),)).was_pulled
    assert [auth.username for _, auth in bed.service.pulled if auth is not None] == ["a", "b"]


def test_errors_of_all_attempts_are_joined() -> None:
    denied: list[ImageStoreError] = [ImageServiceError("denied for a"), ImageServiceError("denied for b")]
    bed = Bed(service=FakeService(pull_errors=denied))
    result = bed.ensure(secrets=(secret(TWO),))
    assert (result.error, result.message) == (ErrorClass.PULL, "[denied for a, denied for b]")


def test_a_broken_secret_ends_without_a_pull() -> None:
    bed = Bed()
    result = bed.ensure(secrets=(secret("no json hunter2"),))
    assert result.error is None
    assert result.reason == result.message
    assert "secret default/pull" in result.message
    assert "hunter2" not in result.message
    assert bed.service.pulled == []
    assert bed.told() == []


def test_the_gate_for_secrets_needs_records() -> None:
    with pytest.raises(ConfigError):
        ImageManager(FakeService(), gates=FeatureGates())
