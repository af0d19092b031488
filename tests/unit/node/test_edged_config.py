"""edged's configuration: the seed's defaults and checks, v1alpha1 and v1alpha2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagestore.errors import ConfigError, UnsupportedRuntimeTypeError
from imagestore.node.edged.config import interpret, load
from imagestore.node.edged.proposal import resolve_proposal
from imagestore.node.edged.settings import EdgedSettings, Origin
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from pathlib import Path

CONTAINERD = "unix:///run/containerd/containerd.sock"


SEED = "/var/run/containerd/container.sock"


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, ("docker", "", "", None, "", None)),
        ({"runtimeType": "docker"}, ("docker", "", "", None, "", None)),
        (
            {
                "runtimeType": "docker",
                "remoteRuntimeEndpoint": "R",
                "podSandboxImage": "p",
                "RuntimeRequestTimeout": "5s",
            },
            ("docker", "R", "", 5, "p", None),
        ),
        ({"runtimeType": "remote"}, ("remote", SEED, SEED, 120, "k8s.gcr.io/pause", 2_000_000_000)),
        (
            {"runtimeType": "remote", "remoteRuntimeEndpoint": ""},
            ("remote", SEED, SEED, 120, "k8s.gcr.io/pause", 2 * 10**9),
        ),
        (
            {"runtimeType": "remote", "remoteRuntimeEndpoint": "unix:///r"},
            ("remote", "unix:///r", "unix:///r", 120, "k8s.gcr.io/pause", 2 * 10**9),
        ),
        (
            {"runtimeType": "remote", "remoteRuntimeEndpoint": "unix:///r", "remoteImageEndpoint": "unix:///i"},
            ("remote", "unix:///r", "unix:///i", 120, "k8s.gcr.io/pause", 2 * 10**9),
        ),
        (
            {"runtimeType": "remote", "remoteImageEndpoint": "unix:///i"},
            ("remote", SEED, "unix:///i", 120, "k8s.gcr.io/pause", 2 * 10**9),
        ),
        (
            {"edged.runtime-type": "remote", "edged.edged-memory-capacity-bytes": 5, "edged.podsandbox-image": "x"},
            ("remote", SEED, SEED, 120, "x", 5),
        ),
        (
            {"edged": {"runtimeType": "remote", "memoryCapacity": "2Gi", "PodSandboxImage": "x"}},
            ("remote", SEED, SEED, 120, "x", 2 * 2**30),
        ),
    ],
)
def test_the_seeds_defaults(given: dict[str, object], resolved: tuple[object, ...]) -> None:
    found = resolve_proposal(given)
    timeout = None if found.request_timeout is None else found.request_timeout.seconds
    shown = (found.runtime_type, found.runtime_endpoint, found.image_endpoint, timeout, found.sandbox_image)
    assert (*shown, found.memory_bytes) == resolved


def test_every_value_says_where_it_came_from() -> None:
    remote = resolve_proposal({"runtimeType": "remote", "podSandboxImage": "x"})
    assert remote.origins == {
        "runtimeType": Origin.GIVEN,
        "remoteRuntimeEndpoint": Origin.DEFAULT,
        "remoteImageEndpoint": Origin.FOLLOWS,
        "runtimeRequestTimeout": Origin.DEFAULT,
        "podSandboxImage": Origin.GIVEN,
        "memoryCapacity": Origin.DEFAULT,
        "dockerAddress": Origin.DEFAULT,
    }
    docker = resolve_proposal({"remoteRuntimeEndpoint": "x"})
    assert (docker.origins["remoteRuntimeEndpoint"], docker.origins["podSandboxImage"]) == (
        Origin.UNUSED,
        Origin.ABSENT,
    )
    assert docker.warnings
    # The sandbox image is spared on Docker too, and calls have this limit.
    used = resolve_proposal({"podSandboxImage": "x", "runtimeRequestTimeout": "1s", "memoryCapacity": 1}).origins
    assert {used[name] for name in ("podSandboxImage", "runtimeRequestTimeout", "memoryCapacity")} == {Origin.GIVEN}


@pytest.mark.parametrize("kind", ["rkt", "Docker", "REMOTE", "containerd", "docker "])
def test_other_runtime_types_have_the_seeds_error(kind: str) -> None:
    with pytest.raises(UnsupportedRuntimeTypeError) as caught:
        resolve_proposal({"runtimeType": kind})
    assert str(caught.value) == f'unsupported CRI runtime: "{kind}"'


@pytest.mark.parametrize(
    "given",
    [
        {"runtimeType": "remote", "remoteRuntimeEndpoint": "http://x"},
        {"runtimeType": "remote", "RuntimeRequestTimeout": "0s"},
        {"runtimeType": "remote", "RuntimeRequestTimeout": "-1s"},
        {"runtimeType": "remote", "RuntimeRequestTimeout": 2},
        {"runtimeType": "remote", "memoryCapacity": "lots"},
        {"runtimeType": "remote", "memoryCapacity": 0},
        {"runtimeType": 1},
        {"runtimeType": "remote", "edged.runtime-type": "docker"},
    ],
)
def test_the_seeds_values_are_checked(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        resolve_proposal(given)


ALPHA1 = """
apiVersion: edgecore.config.kubeedge.io/v1alpha1
kind: EdgeCore
modules:
  edged:
    runtimeType: remote
    remoteRuntimeEndpoint: unix:///run/containerd/containerd.sock
    runtimeRequestTimeout: 3
    podSandboxImage: kubeedge/pause:3.1
"""


def test_v1alpha1_counts_minutes(tmp_path: Path) -> None:
    (tmp_path / "edgecore.yaml").write_text(ALPHA1)
    found = load(tmp_path / "edgecore.yaml")
    assert (found.profile, found.runtime_type) == ("v1alpha1", "remote")
    assert found.request_timeout == Duration.of_seconds(180)
    assert found.image_endpoint == "unix:///var/run/dockershim.sock"
    assert any("images stay on unix:///var/run/dockershim.sock" in each for each in found.warnings)
    assert found.memory_bytes == 7_852_396_000
    assert (found.kubelet.image_gc_high_threshold_percent, found.kubelet.image_gc_low_threshold_percent) == (80, 40)
    assert found.warnings


def alpha2(config: dict[str, object], flags: dict[str, object]) -> dict[str, object]:
    edged = {"tailoredKubeletConfig": config, **flags}
    return {"apiVersion": "edgecore.config.kubeedge.io/v1alpha2", "modules": {"edged": edged}}


def test_v1alpha2_defaults() -> None:
    found = interpret(alpha2({}, {}))
    assert (found.runtime_type, found.runtime_endpoint, found.image_endpoint) == ("remote", CONTAINERD, CONTAINERD)
    assert (found.sandbox_image, found.request_timeout) == ("kubeedge/pause:3.6", Duration.of_seconds(120))
    assert found.kubelet.node_status_max_images == 0
    assert (found.warnings, found.memory_bytes) == ((), None)


def test_v1alpha2_changing_only_the_runtime_endpoint_leaves_images_on_containerd() -> None:
    found = interpret(alpha2({"containerRuntimeEndpoint": "unix:///run/crio.sock"}, {}))
    assert (found.runtime_endpoint, found.image_endpoint) == ("unix:///run/crio.sock", CONTAINERD)
    assert len(found.warnings) == 1
    both: dict[str, object] = {
        "containerRuntimeEndpoint": "unix:///run/crio.sock",
        "imageServiceEndpoint": "unix:///run/crio.sock",
    }
    assert interpret(alpha2(both, {})).warnings == ()


def test_v1alpha2_an_image_endpoint_that_was_emptied_follows_the_runtimes() -> None:
    found = interpret(alpha2({"containerRuntimeEndpoint": "unix:///run/crio.sock", "imageServiceEndpoint": ""}, {}))
    assert (found.image_endpoint, found.kubelet.image_service_endpoint) == ("unix:///run/crio.sock",) * 2
    assert (found.origins["imageServiceEndpoint"], found.warnings) == (Origin.FOLLOWS, ())
    flags: dict[str, object] = {"remoteRuntimeEndpoint": "unix:///r", "remoteImageEndpoint": ""}
    assert interpret(alpha2({}, flags)).image_endpoint == "unix:///r"
    # Null leaves the default, as JSON's null does in Go.
    found = interpret(alpha2({"containerRuntimeEndpoint": "unix:///r", "imageServiceEndpoint": None}, {}))
    assert (found.image_endpoint, len(found.warnings)) == (CONTAINERD, 1)


def test_v1alpha2_defaults_are_laid_down_before_so_nothing_is_derived_from_other_values() -> None:
    several = interpret(alpha2({"maxParallelImagePulls": 5}, {})).kubelet
    assert several.serialize_image_pulls
    assert any("maxParallelImagePulls cannot be larger than 1 unless" in each for each in several.faults())
    assert not interpret(alpha2({"maxParallelImagePulls": 5, "serializeImagePulls": False}, {})).kubelet.faults()
    nothing = interpret(alpha2({"imageMinimumGCAge": "0s", "registryBurst": 0}, {})).kubelet
    assert (nothing.image_minimum_gc_age, nothing.registry_burst) == (Duration(0), 0)
    with pytest.raises(
        ConfigError, match=r"modules.edged.tailoredKubeletConfig.runtimeRequestTimeout: expected more than zero"
    ):
        interpret(alpha2({"runtimeRequestTimeout": "0s"}, {}))


def test_v1alpha2_reads_what_1_12_had_among_the_flags() -> None:
    flags: dict[str, object] = {
        "containerRuntime": "docker",
        "dockerEndpoint": "unix:///d",
        "remoteRuntimeEndpoint": "unix:///r",
        "remoteImageEndpoint": "unix:///i",
        "imagePullProgressDeadline": "1m30s",
        "podSandboxImage": "pause:1",
    }
    found = interpret(alpha2({"featureGates": {"RuntimeClassInImageCriApi": True}}, flags))
    assert (found.runtime_type, found.docker_endpoint) == ("docker", "unix:///d")
    assert (found.runtime_endpoint, found.image_endpoint) == ("unix:///r", "unix:///i")
    assert (found.stall_limit.seconds, found.sandbox_image) == (90, "pause:1")
    assert found.kubelet.gates.runtime_class_in_image_cri
    assert found.origins["podSandboxImage"] is Origin.GIVEN
    assert any("containerRuntime docker: KubeEdge 1.14 and later refuse it" in each for each in found.warnings)


def test_v1alpha2_has_no_table_of_flags_and_one_that_is_written_is_reported() -> None:
    found = interpret(alpha2({}, {"tailoredKubeletFlag": {"remoteImageEndpoint": "unix:///i"}}))
    assert found.image_endpoint == CONTAINERD
    assert any("modules.edged.tailoredKubeletFlag: KubeEdge has no such member" in each for each in found.warnings)


@pytest.mark.parametrize(
    "value",
    [
        {"apiVersion": "v1"},
        {"apiVersion": 1},
        {"modules": {"edged": {}}},
        {"unknown": 1},
        alpha2({"containerRuntimeEndpoint": "ftp://x"}, {}),
        {"apiVersion": "edgecore.config.kubeedge.io/v1alpha2", "modules": []},
    ],
)
def test_other_files_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        interpret(value)


GROUP = "edgecore.config.kubeedge.io"


def edged(version: str, **members: object) -> dict[str, object]:
    return {"apiVersion": f"{GROUP}/{version}", "modules": {"edged": members}}


@pytest.mark.parametrize(
    "value",
    [
        edged("v1alpha1", runtimeRequestTimeout=0),
        edged("v1alpha1", imagePullProgressDeadline=-1),
        edged("v1alpha2", tailoredKubeletConfig={"runtimeRequestTimeout": "-1s"}),
        edged("v1alpha2", imagePullProgressDeadline="0s"),
    ],
)
def test_limits_under_which_nothing_could_end_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^modules\.edged\..*: expected more than zero, found "):
        interpret(value)


def test_a_kubelets_limit_is_above_zero_too() -> None:
    assert KubeletImageSettings.parse({"runtimeRequestTimeout": "0s"}).runtime_request_timeout.seconds == 120
    with pytest.raises(ConfigError, match=r"^runtimeRequestTimeout: expected more than zero, found -1s$"):
        KubeletImageSettings.parse({"runtimeRequestTimeout": "-1s"})


def test_the_designs_timeout_is_that_of_calls() -> None:
    assert resolve_proposal({"runtimeRequestTimeout": "5s"}).kubelet.runtime_request_timeout == Duration.of_seconds(5)
    assert resolve_proposal({}).kubelet.runtime_request_timeout == Duration.of_seconds(120)


def test_the_designs_parameters_may_be_in_both_places_once() -> None:
    found = resolve_proposal({"runtimeType": "remote", "edged": {"remote-image-endpoint": "unix:///i"}})
    assert (found.runtime_type, found.image_endpoint) == ("remote", "unix:///i")
    for edged_part in ({"runtime-type": "docker"}, "docker"):
        with pytest.raises(ConfigError):
            resolve_proposal({"runtimeType": "remote", "edged": edged_part})


#: As KubeEdge 1.0 and 1.1 have it in edge/conf/edge.yaml.
EDGE_1_0 = """
mqtt: {server: "tcp://127.0.0.1:1883", mode: 0}
edged:
    register-node-namespace: default
    edged-memory-capacity-bytes: 7852396000
    node-status-update-frequency: 10
    image-gc-high-threshold: 80
    docker-address: unix:///var/run/docker.sock
    runtime-type: remote
    remote-runtime-endpoint: unix:///run/r.sock
    remote-image-endpoint: unix:///run/i.sock
    runtime-request-timeout: 2
    podsandbox-image: kubeedge/pause:3.1
    image-pull-progress-deadline: 60
    node-ip: ""
"""


def loaded(folder: Path, text: str) -> EdgedSettings:
    (folder / "edge.yaml").write_text(text)
    return load(folder / "edge.yaml")


def test_the_file_of_1_0_is_read_and_its_timeout_counts_minutes(tmp_path: Path) -> None:
    found = loaded(tmp_path, EDGE_1_0)
    assert (found.runtime_endpoint, found.image_endpoint) == ("unix:///run/r.sock", "unix:///run/i.sock")
    assert (found.sandbox_image, found.request_timeout, found.warnings) == (
        "kubeedge/pause:3.1",
        Duration.of_seconds(120),
        (),
    )


def alpha(version: str, members: str) -> str:
    return f"apiVersion: {GROUP}/{version}\nModules:\n  Edged: {{{members}}}\n"


FAULTS = {
    "1.0: an endpoint": (
        EDGE_1_0.replace("unix:///run/i.sock", "http://x"),
        "edged.remote-image-endpoint: endpoint 'http://x'",
    ),
    "1.0: no text": (EDGE_1_0.replace("kubeedge/pause:3.1", "[x]"), "edged.podsandbox-image: expected a text"),
    "1.0: a timeout": (
        EDGE_1_0.replace("timeout: 2", "timeout: -1"),
        "edged.runtime-request-timeout: expected more than zero",
    ),
    "1.0: a type": (
        EDGE_1_0.replace("type: remote", "type: rkt"),
        'edged.runtime-type: unsupported CRI runtime: "rkt"',
    ),
    "1.0: twice": (
        EDGE_1_0 + "    runtimeType: docker\n",
        "edged.runtimeType: runtimeType is given twice, the other time as edged.runtime-type",
    ),
    "1.0: a sandbox image": (
        EDGE_1_0.replace("kubeedge/pause:3.1", "'::x'"),
        "edged.podsandbox-image: reference '::x'",
    ),
    "alpha1: a sandbox image": (
        alpha("v1alpha1", "PodSandboxImage: '::x'"),
        "Modules.Edged.PodSandboxImage: reference '::x'",
    ),
    "alpha2: a sandbox image": (
        alpha("v1alpha2", "podSandboxImage: '::x'"),
        "Modules.Edged.podSandboxImage: reference '::x'",
    ),
    "alpha1: an endpoint": (
        alpha("v1alpha1", "RemoteRuntimeEndpoint: 'http://x'"),
        "Modules.Edged.RemoteRuntimeEndpoint: endpoint 'http://x'",
    ),
    "alpha1: a type": (alpha("v1alpha1", "RuntimeType: x"), "Modules.Edged.RuntimeType: unsupported CRI runtime"),
    "alpha1: a number": (
        alpha("v1alpha1", "edgedmemorycapacity: x"),
        "Modules.Edged.edgedmemorycapacity: ",
    ),
    "alpha2: an endpoint": (
        alpha("v1alpha2", "tailoredKubeletConfig: {imageServiceEndpoint: 'http://x'}"),
        "Modules.Edged.tailoredKubeletConfig.imageServiceEndpoint: endpoint",
    ),
    "alpha2: an endpoint of 1.12": (
        alpha("v1alpha2", "remoteRuntimeEndpoint: 'http://x'"),
        "Modules.Edged.remoteRuntimeEndpoint: endpoint 'http://x'",
    ),
    "alpha2: a number": (
        alpha("v1alpha2", "TailoredKubeletConfig: {ImageGCHighThresholdPercent: x}"),
        "Modules.Edged.TailoredKubeletConfig.ImageGCHighThresholdPercent: expected an integer, got a text",
    ),
    "alpha2: a timeout": (
        alpha("v1alpha2", "TailoredKubeletConfig: {RuntimeRequestTimeout: -1s}"),
        "Modules.Edged.TailoredKubeletConfig.RuntimeRequestTimeout: expected more than zero",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_name_the_file_and_the_member_as_written(tmp_path: Path, fault: str) -> None:
    text, words = FAULTS[fault]
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/edge.yaml: {words}")


#: What edged takes, and no client here can use.
USELESS = {
    EDGE_1_0.replace("unix:///run/i.sock", "tcp://h:1"): "edged.remote-image-endpoint: endpoint 'tcp://h:1'",
    "edged: {runtime-type: docker, docker-address: 'tcp://h:1'}": "edged.docker-address: endpoint 'tcp://h:1'",
    alpha(
        "v1alpha1", "RuntimeType: remote, remoteruntimeendpoint: 'tcp://h:1'"
    ): "Modules.Edged.remoteruntimeendpoint: ",
    alpha("v1alpha1", "DockerAddress: 'tcp://h:1'"): "Modules.Edged.DockerAddress: endpoint",
    alpha("v1alpha2", "remoteImageEndpoint: 'npipe://./x'"): "Modules.Edged.remoteImageEndpoint: endpoint",
    alpha("v1alpha2", "tailoredKubeletConfig: {imageServiceEndpoint: 'tcp://h:1'}"): (
        "Modules.Edged.tailoredKubeletConfig.imageServiceEndpoint: endpoint"
    ),
    alpha("v1alpha2", "containerRuntime: docker, dockerEndpoint: 'tcp://h:1'"): "Modules.Edged.dockerEndpoint: ",
}


@pytest.mark.parametrize("text", USELESS)
def test_an_endpoint_that_no_client_can_use_is_named_as_written(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text).check_services()
    assert str(caught.value).startswith(USELESS[text])


def test_usual_endpoints_and_those_that_are_not_used_are_no_fault(tmp_path: Path) -> None:
    loaded(tmp_path, EDGE_1_0).check_services()
    loaded(tmp_path, alpha("v1alpha2", "dockerEndpoint: 'tcp://h:1'")).check_services()


@pytest.mark.parametrize(
    ("text", "member"),
    [
        (alpha("v1alpha1", "ImageGCHighThreshold: 101"), "Modules.Edged.ImageGCHighThreshold"),
        (
            alpha("v1alpha2", "tailoredKubeletConfig: {imageGCHighThresholdPercent: 101}"),
            "Modules.Edged.tailoredKubeletConfig.imageGCHighThresholdPercent",
        ),
    ],
)
def test_faults_of_the_kubelets_settings_name_the_member_as_written(tmp_path: Path, text: str, member: str) -> None:
    found = loaded(tmp_path, text)
    [fault] = map(found.located, found.kubelet.faults())
    assert fault.endswith(f"({member})")
    assert "imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be" in fault


def test_members_of_1_21_are_known(tmp_path: Path) -> None:
    text = alpha("v1alpha2", "enable: true") + "  taskManager: {enable: true}\nedgecoreVersion: v1.21.0\n"
    assert loaded(tmp_path, text).warnings == ()
