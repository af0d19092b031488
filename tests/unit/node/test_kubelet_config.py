"""The image settings of a kubelet's configuration, and its feature gates."""

from __future__ import annotations

import pytest

from imagestore.cri import ImageSpec
from imagestore.errors import ConfigError
from imagestore.node.eviction import CollectionPolicy
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.node.puller import PullFailedError
from imagestore.util.durations import Duration
from imagestore.util.yaml_documents import parse_documents
from tests.support.image_services import FakeService


def test_the_kubelets_defaults() -> None:
    settings = KubeletImageSettings.parse({})
    assert settings == KubeletImageSettings()
    assert settings.faults() == ()
    assert settings.collection_policy() == CollectionPolicy(85, 80, Duration.of_seconds(120), Duration(0))
    assert (settings.serialize_image_pulls, settings.max_parallel_image_pulls) == (True, None)
    assert (settings.registry_pull_qps, settings.registry_burst) == (5, 10)
    assert settings.runtime_request_timeout == Duration.of_seconds(120)
    assert (
        settings.container_runtime_endpoint
        == settings.image_service_endpoint
        == "unix:///run/containerd/containerd.sock"
    )
    assert (settings.node_status_max_images, settings.gates.runtime_class_in_image_cri) == (50, False)
    assert settings.verification().policy == "NeverVerifyPreloadedImages"


def test_pulls_are_limited_as_configured() -> None:
    settings = KubeletImageSettings.parse({"registryPullQPS": 1, "registryBurst": 1, "serializeImagePulls": False})
    puller = settings.puller(FakeService())
    puller.pull(ImageSpec("registry.example/app:1"), ())
    with pytest.raises(PullFailedError, match="QPS"):
        puller.pull(ImageSpec("registry.example/app:1"), ())


@pytest.mark.parametrize(
    ("given", "attribute", "value"),
    [
        ({"imageMinimumGCAge": "0s"}, "image_minimum_gc_age", Duration.of_seconds(120)),
        ({"runtimeRequestTimeout": "0s"}, "runtime_request_timeout", Duration.of_seconds(120)),
        ({"registryBurst": 0}, "registry_burst", 10),
        ({"registryPullQPS": 0}, "registry_pull_qps", 0),
        ({"imageGCHighThresholdPercent": 0}, "image_gc_high_threshold_percent", 0),
        ({"maxParallelImagePulls": 2}, "serialize_image_pulls", False),
        ({"maxParallelImagePulls": 1}, "serialize_image_pulls", True),
        ({"serializeImagePulls": False}, "serialize_image_pulls", False),
        ({"containerRuntimeEndpoint": "unix:///x"}, "image_service_endpoint", "unix:///x"),
        ({"nodeStatusMaxImages": -1}, "node_status_max_images", -1),
        ({"featureGates": {"RuntimeClassInImageCriApi": True, "Other": False}}, "gates", FeatureGates(True)),
        ({"featureGates": {"AllAlpha": True}}, "gates", FeatureGates(True)),
        ({"featureGates": {"AllBeta": False}}, "gates", FeatureGates(False, False)),
        ({"featureGates": {"ImageMaximumGCAge": False}}, "gates", FeatureGates(False, True, False)),
    ],
)
def test_members_are_defaulted_as_by_the_kubelet(given: dict[str, object], attribute: str, value: object) -> None:
    assert getattr(KubeletImageSettings.parse(given), attribute) == value


HIGH = "imageGCHighThresholdPercent (--image-gc-high-threshold)"
LOW = "imageGCLowThresholdPercent (--image-gc-low-threshold)"
ALWAYS_VERIFY = {"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}
ALLOWLISTED = {"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages"}
NO_GATE = {"featureGates": {"KubeletEnsureSecretPulledImages": False}}
NO_ALLOWLIST = (
    "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not"
    ' "NeverVerifyAllowlistedImages"'
)
AGE_UNGATED = "ImageMaximumGCAge feature gate is required for Kubelet configuration option imageMaximumGCAge"
UNGATED = "must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({"imageGCHighThresholdPercent": 101}, [f"{HIGH} 101 must be between 0 and 100, inclusive"]),
        ({"imageGCLowThresholdPercent": -1}, [f"{LOW} -1 must be between 0 and 100, inclusive"]),
        (
            {"imageGCLowThresholdPercent": 85, "imageGCHighThresholdPercent": 85},
            [f"{LOW} 85 must be less than {HIGH} 85"],
        ),
        ({"imageMinimumGCAge": "-1s"}, ["imageMinimumGCAge -1s must not be negative"]),
        ({"imageMaximumGCAge": "-1ns"}, ["imageMaximumGCAge -1ns must not be negative"]),
        ({"imageMaximumGCAge": "2m"}, ["imageMaximumGCAge 2m0s must be greater than imageMinimumGCAge 2m0s"]),
        ({"imageMaximumGCAge": "1h", "featureGates": {"ImageMaximumGCAge": False}}, [AGE_UNGATED]),
        (
            {"imageMaximumGCAge": "-1ns", "imageMinimumGCAge": "-1s", "featureGates": {"ImageMaximumGCAge": False}},
            [
                AGE_UNGATED,
                "imageMinimumGCAge -1s must not be negative",
                "imageMaximumGCAge -1ns must not be negative",
            ],
        ),
        ({"nodeStatusMaxImages": -2}, ["nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater"]),
        ({"registryBurst": -1}, ["registryBurst (--registry-burst) -1 must not be a negative number"]),
        ({"registryPullQPS": -1}, ["registryPullQPS (--registry-qps) -1 must not be a negative number"]),
        ({"maxParallelImagePulls": 0}, ["maxParallelImagePulls 0 must be a positive number"]),
        (
            {"maxParallelImagePulls": 3, "serializeImagePulls": True},
            [
                (
                    "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls)"
                    " is set to false"
                )
            ],
        ),
        (
            {"imagePullCredentialsVerificationPolicy": "x"},
            [
                (
                    'option "x" specified for imagePullCredentialsVerificationPolicy. Valid options are "NeverVerify",'
                    ' "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages" or "AlwaysVerify"'
                )
            ],
        ),
        ({"preloadedImagesVerificationAllowlist": ["a.example/b"]}, [NO_ALLOWLIST]),
        ({**ALWAYS_VERIFY, "preloadedImagesVerificationAllowlist": ["a.example/b:1"]}, [NO_ALLOWLIST]),
        (
            {**ALLOWLISTED, "preloadedImagesVerificationAllowlist": ["a.example/b", "a.example/*", "*", "c:1"]},
            [
                (
                    "invalid image pattern in `preloadedImagesVerificationAllowlist`: not a valid wildcard pattern,"
                    " only patterns ending with '/*' are allowed: *"
                )
            ],
        ),
        (
            {**NO_GATE, **ALWAYS_VERIFY, "preloadedImagesVerificationAllowlist": ["*"]},
            [
                f"`imagePullCredentialsVerificationPolicy` {UNGATED}",
                f"`preloadedImagesVerificationAllowlist` {UNGATED}",
            ],
        ),
        (
            {"registryBurst": -1, "imageGCHighThresholdPercent": 101},
            [
                f"{HIGH} 101 must be between 0 and 100, inclusive",
                "registryBurst (--registry-burst) -1 must not be a negative number",
            ],
        ),
    ],
)
def test_values_are_checked_in_the_kubelets_words(given: dict[str, object], faults: list[str]) -> None:
    settings = KubeletImageSettings.parse(given)
    expected = [f"invalid configuration: {fault}" for fault in faults]
    assert list(settings.faults()) == expected
    with pytest.raises(ConfigError) as caught:
        settings.check()
    assert str(caught.value) == (expected[0] if len(expected) == 1 else f"[{', '.join(expected)}]")


def test_the_default_verification_follows_its_gate() -> None:
    settings = KubeletImageSettings.parse(NO_GATE)
    assert (settings.verification_policy, settings.faults()) == ("", ())
    assert settings.with_gates(FeatureGates()) == KubeletImageSettings()
    off = KubeletImageSettings().with_gates(settings.gates)
    assert (off, off.faults()) == (settings, ())
    explicit = KubeletImageSettings.parse(ALWAYS_VERIFY).with_gates(settings.gates)
    assert explicit.faults() == (f"invalid configuration: `imagePullCredentialsVerificationPolicy` {UNGATED}",)


@pytest.mark.parametrize(
    "given",
    [
        {"imageGCHighThresholdPercent": "85"},
        {"imageGCHighThresholdPercent": True},
        {"registryBurst": 2**31},
        {"imageMinimumGCAge": 120},
        {"imageMinimumGCAge": "2"},
        {"serializeImagePulls": "yes"},
        {"containerRuntimeEndpoint": 1},
        {"preloadedImagesVerificationAllowlist": "a"},
        {"featureGates": {"RuntimeClassInImageCriApi": "true"}},
        {"featureGates": []},
    ],
)
def test_members_of_the_wrong_type_are_errors(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        KubeletImageSettings.parse(given)


def test_the_kubelets_members_are_read_from_all_its_spellings() -> None:
    lines = ("serializeImagePulls: n", "registryPullQPS: 1_0", "registryBurst: 2e1")
    text = "\n".join((*lines, "featureGates: {RuntimeClassInImageCriApi: Y}"))
    settings = KubeletImageSettings.parse(parse_documents(text.encode(), "file")[0])
    assert (settings.serialize_image_pulls, settings.registry_pull_qps, settings.registry_burst) == (False, 10, 20)
    assert settings.gates.runtime_class_in_image_cri
