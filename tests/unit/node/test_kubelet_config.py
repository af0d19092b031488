"""Kubelet configuration, endpoints, feature gates, RuntimeClasses, and the YAML they are read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import ConfigError, RuntimeClassNotFoundError
from imagestore.node.config_members import Endpoint, parse_endpoint
from imagestore.node.eviction import CollectionPolicy
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.node.runtime_class import (
    RuntimeClass,
    handler_of,
    image_handler,
    parse_runtime_class,
    parse_runtime_classes,
)
from imagestore.util.durations import Duration
from imagestore.util.yaml_documents import parse_documents, read_documents

if TYPE_CHECKING:
    from pathlib import Path


def test_the_kubelets_defaults() -> None:
    settings = KubeletImageSettings.parse({})
    assert settings == KubeletImageSettings()
    assert settings.faults() == ()
    assert settings.collection_policy() == CollectionPolicy(85, 80, Duration.of_seconds(120), Duration(0))
    assert settings.pull_slots().limit == 1
    assert (settings.registry_pull_qps, settings.registry_burst) == (5, 10)
    assert settings.runtime_request_timeout == Duration.of_seconds(120)
    assert (
        settings.container_runtime_endpoint
        == settings.image_service_endpoint
        == "unix:///run/containerd/containerd.sock"
    )
    assert (settings.node_status_max_images, settings.gates.runtime_class_in_image_cri) == (50, False)
    assert settings.verification().policy == "NeverVerifyPreloadedImages"


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


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:///run/x.sock", Endpoint("unix", "/run/x.sock")),
        ("/run/x.sock", Endpoint("unix", "/run/x.sock")),
        ("tcp://127.0.0.1:80", Endpoint("tcp", "127.0.0.1:80")),
        ("npipe://./pipe/x", Endpoint("npipe", "./pipe/x")),
        ("UNIX:///x", Endpoint("unix", "/x")),
    ],
)
def test_endpoints_are_read(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text", ["", " ", "unix:///a b", "http://x", "unix://", "unix://x", "run/x", "unix:///a\nb", "a"]
)
def test_bad_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_endpoint(text)


def test_only_unix_sockets_are_dialled() -> None:
    assert parse_endpoint("/x").socket_path() == "/x"
    for text in ("tcp://x:1", "npipe://./pipe/x", "unix:///" + "x" * 120):
        with pytest.raises(ConfigError):
            parse_endpoint(text).socket_path()


def test_runtime_classes_name_handlers() -> None:
    classes = [RuntimeClass("gold", "kata"), RuntimeClass("silver", "kata"), RuntimeClass("bare", "runc")]
    assert [handler_of(name, classes) for name in (None, "", "gold", "silver", "bare")] == [
        "",
        "",
        "kata",
        "kata",
        "runc",
    ]
    with pytest.raises(RuntimeClassNotFoundError) as caught:
        handler_of("lead", classes)
    assert str(caught.value) == 'runtimeclass.node.k8s.io "lead" not found'
    assert image_handler("lead", classes, FeatureGates()) == ""
    with pytest.raises(RuntimeClassNotFoundError):
        image_handler("lead", classes, FeatureGates(runtime_class_in_image_cri=True))


@pytest.mark.parametrize("handler", ["", "Kata", "kata_qemu", "-kata", "a" * 64, "kata\n"])
def test_handlers_of_classes_are_labels(handler: str) -> None:
    with pytest.raises(ConfigError):
        RuntimeClass("gold", handler)


def test_runtime_class_objects_are_read() -> None:
    text = b"kind: RuntimeClass\napiVersion: node.k8s.io/v1\nmetadata: {name: gold}\nhandler: kata\n"
    assert parse_runtime_class(parse_documents(text, "x")[0]) == RuntimeClass("gold", "kata")
    for value in (
        {"kind": "Pod"},
        {"kind": "RuntimeClass", "handler": "kata"},
        {"kind": "RuntimeClass", "metadata": {"name": "x"}},
    ):
        with pytest.raises(ConfigError):
            parse_runtime_class(value)


@pytest.mark.parametrize("kind", ["List", "RuntimeClassList"])
def test_lists_of_runtime_classes_are_read(kind: str) -> None:
    classes: list[object] = [
        {"kind": "RuntimeClass", "metadata": {"name": name}, "handler": name} for name in ("gold", "silver")
    ]
    found = parse_runtime_classes([{"kind": kind, "items": classes[:1]}, {"kind": kind, "items": []}])
    assert [*found, *parse_runtime_classes(classes[1:])] == [  # type: ignore[arg-type]
        RuntimeClass("gold", "gold"),
        RuntimeClass("silver", "silver"),
    ]
    for items in (None, "x", ["x"], [{"kind": "Pod"}]):
        with pytest.raises(ConfigError):
            parse_runtime_classes([{"kind": kind, "items": items}])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: -0x1F", {"a": -31}),
        ("a: 010", {"a": 8}),
        ("a: 0o10", {"a": 8}),
        ("a: 1.5e3", {"a": 1500.0}),
        ("a: yes\nb: Off\nc: 'yes'", {"a": True, "b": False, "c": "yes"}),
        ("a: y\nb: Y\nc: n\nd: N", {"a": True, "b": True, "c": False, "d": False}),
        (
            "a: 'y'\nb: \"n\"\nc: !!str y\nd: |-\n  N\ne: yy\nf: yEs",
            {"a": "y", "b": "n", "c": "y", "d": "N", "e": "yy", "f": "yEs"},
        ),
        ("y: 1\nN: 2", {"true": 1, "false": 2}),
        ("a: 1_0\nb: 1__0_\nc: -_1_000\nd: 0_x1_F\ne: 0_8", {"a": 10, "b": 10, "c": -1000, "d": 31, "e": 8}),
        ("a: 1_0.5_0\nb: 1_e1_0\nc: .5_0\nd: -.5__0", {"a": 10.5, "b": 10**10, "c": 0.5, "d": -0.5}),
        ("a: _1\nb: +_\nc: ._5\nd: .5__0\ne: 0x_", {"a": "_1", "b": "+_", "c": "._5", "d": ".5__0", "e": "0x_"}),
        ("a: '1_0'\nb: \"1_0\"\nc: !!str 1_0", {"a": "1_0", "b": "1_0", "c": "1_0"}),
        ("a: 0B11\nb: 0O17\nc: -0XfF\nd: 08\ne: 0o8", {"a": 3, "b": 15, "c": -255, "d": 8, "e": "0o8"}),
        (
            "a: 0xFFFFFFFFFFFFFFFF\nb: 0x10000000000000000\nc: -0x8000000000000001\nd: 0b" + 65 * "1",
            {"a": 2**64 - 1, "b": "0x10000000000000000", "c": "-0x8000000000000001", "d": "0b" + 65 * "1"},
        ),
        ("a: 2024-01-01\nb: 1:30\nc: 5m", {"a": "2024-01-01", "b": "1:30", "c": "5m"}),
        ("a:\nb: ~\nc: ''", {"a": None, "b": None, "c": ""}),
        ("a: [1, {b: c}]", {"a": [1, {"b": "c"}]}),
        ("true: 1\n5: x", {"true": 1, "5": "x"}),
        ('{"a": "b"}', {"a": "b"}),
        ("a: !!str 5", {"a": "5"}),
        ("a: .5", {"a": 0.5}),
        ("a: 1e999", {"a": "1e999"}),
        ("a: ' x '", {"a": " x "}),
    ],
)
def test_yaml_is_read_as_kubernetes_reads_it(text: str, value: dict[str, Any]) -> None:
    assert parse_documents(text.encode(), "file") == [value]


def test_a_number_without_a_fraction_is_a_whole_one_however_it_is_written() -> None:
    found = parse_documents(b"{a: 1e3, b: 1.0, c: 1_0., d: 1e20, e: 0.5, f: -0.0}", "file")[0]
    assert found == {"a": 1000, "b": 1, "c": 10, "d": 10**20, "e": 0.5, "f": 0}
    assert [type(each) for each in found.values()] == [int, int, int, int, float, int]
    assert type(parse_documents(b"a: 1e21", "file")[0]["a"]) is float


@pytest.mark.parametrize("text", [".inf", "-.Inf", "+.INF", ".nan", ".NaN"])
def test_numbers_that_json_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"line 2: [^ ]* is no number that JSON has"):
        parse_documents(f"a: '{text}'\nb: {text}".encode(), "file")
    assert parse_documents(f"a: '{text}'\nb: {text}x".encode(), "file") == [{"a": text, "b": f"{text}x"}]


def test_the_kubelets_members_are_read_from_all_its_spellings() -> None:
    lines = ("serializeImagePulls: n", "registryPullQPS: 1_0", "registryBurst: 2e1")
    text = "\n".join((*lines, "featureGates: {RuntimeClassInImageCriApi: Y}"))
    settings = KubeletImageSettings.parse(parse_documents(text.encode(), "file")[0])
    assert (settings.serialize_image_pulls, settings.registry_pull_qps, settings.registry_burst) == (False, 10, 20)
    assert settings.gates.runtime_class_in_image_cri


def test_several_documents_and_empty_ones() -> None:
    assert parse_documents(b"---\n---\na: 1\n---\nb: 2\n", "file") == [{"a": 1}, {"b": 2}]
    assert parse_documents(b"", "file") == []


@pytest.mark.parametrize(
    "data",
    [
        b"a: &x 1\nb: *x",
        b"a: &x [1]",
        b"<<: {a: 1}",
        b"~: 1",
        b"a: 1\na: 2",
        b"? [a]\n: b",
        b"a: !!python/object/apply:os.system [x]",
        b"a: !!binary aGk=",
        b"a: [",
        b"a: \xff",
        b"- a",
        b"text",
        b"a: " + b"[" * 60 + b"]" * 60,
        b"a: [" + b"1," * 20_001 + b"]",
        b"#" * (256 * 1024 + 1),
        b"a: b: c",
        b"\x00",
    ],
)
def test_bombs_and_doubtful_yaml_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_documents(data, "file")
    assert str(caught.value).startswith("file: ")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_documents(tmp_path / "none.yaml")


@given(st.binary(max_size=60))
def test_any_bytes_are_objects_or_refused(data: bytes) -> None:
    try:
        found = parse_documents(data, "file")
    except ConfigError:
        return
    assert all(isinstance(value, dict) for value in found)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\n\nb: 2\nb: 3\n", "lines 3 and 4: key 'b' comes twice"),
        ("a:\n  - c:\n      d: 1\n    e: 1\n    c: 2\n", "lines 2 and 5: key 'c' comes twice"),
        ("x: 1\ny: {a: 1, a: 2}\n", "line 2: key 'a' comes twice"),
        ("yes: 1\nb: 2\n'true': 3\n", "lines 1 and 3: key 'true' comes twice"),
        ("a: 1\nb:\n  c: 1\n  ? [d]\n  : 2\n", "line 4: expected plain keys"),
    ],
)
def test_what_is_wrong_with_a_key_is_told_with_its_lines(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_documents(text.encode(), "file")
    assert str(caught.value) == f"file: {told}"
