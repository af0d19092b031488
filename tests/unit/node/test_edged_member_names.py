"""Members of edgecore's file that are in the wrong place, of the other version, or none; and files of another kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from imagestore.cli.main import main
from imagestore.errors import ConfigError
from imagestore.node.edged.config import interpret
from imagestore.node.edged.proposal import resolve_proposal
from imagestore.util.yaml_documents import parse_documents

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "edgecore.config.kubeedge.io"
# As keadm writes it for v1alpha1, shortened.
ALPHA1 = b"""
apiVersion: edgecore.config.kubeedge.io/v1alpha1
kind: EdgeCore
database: {aliasName: default, dataSource: /var/lib/kubeedge/edgecore.db, driverName: sqlite3}
featureGates: {requireAuthorization: true}
modules:
  dbTest: {enable: false}
  deviceTwin: {enable: true}
  edgeHub: {enable: true, httpServer: "https://127.0.0.1:10002"}
  edgeMesh: {enable: true}
  edgeStream: {enable: false}
  edged:
    annotations: {a: b}
    cgroupDriver: cgroupfs
    cgroupRoot: ""
    cgroupsPerQOS: true
    clusterDNS: ""
    clusterDomain: ""
    cniBinDir: /opt/cni/bin
    cniCacheDirs: /var/lib/cni/cache
    cniConfDir: /etc/cni/net.d
    concurrentConsumers: 5
    devicePluginEnabled: false
    dockerAddress: unix:///var/run/docker.sock
    edgedMemoryCapacity: 7852396000
    enable: true
    enableMetrics: true
    gpuPluginEnabled: false
    hostnameOverride: edge
    imageGCHighThreshold: 80
    imageGCLowThreshold: 40
    imagePullProgressDeadline: 60
    labels: {anything: goes}
    maximumDeadContainersPerPod: 1
    networkPluginMTU: 1500
    nodeIP: 192.0.2.1
    nodeStatusUpdateFrequency: 10
    podSandboxImage: kubeedge/pause:3.1
    registerNode: true
    registerNodeNamespace: default
    remoteImageEndpoint: unix:///var/run/dockershim.sock
    remoteRuntimeEndpoint: unix:///var/run/dockershim.sock
    runtimeType: docker
    taints: []
    volumeStatsAggPeriod: 60000000000
  eventBus: {enable: true}
  metaManager: {enable: true}
  serviceBus: {enable: false}
"""
# The same for v1alpha2.
ALPHA2 = b"""
apiVersion: edgecore.config.kubeedge.io/v1alpha2
kind: EdgeCore
database: {dataSource: /var/lib/kubeedge/edgecore.db}
modules:
  dbTest: {enable: false}
  edgeHub: {enable: true}
  edged:
    enable: true
    hostnameOverride: edge
    maxContainerCount: -1
    maxPerPodContainerCount: 1
    minimumGCAge: 0s
    podSandboxImage: kubeedge/pause:3.6
    registerNodeNamespace: default
    reportEvent: false
    rootDirectory: /var/lib/kubelet
    tailoredKubeletConfig:
      cgroupDriver: systemd
      containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
      evictionHard: {imagefs.available: 15%}
      imageServiceEndpoint: unix:///run/containerd/containerd.sock
      logging: {flushFrequency: 5000000000, format: text}
      staticPodPath: /etc/kubeedge/manifests
"""


def file(
    version: str, edged: object, /, *, modules: dict[str, object] | None = None, **top: object
) -> dict[str, object]:
    return {"apiVersion": f"{GROUP}/{version}", "modules": {"edged": edged, **(modules or {})}, **top}


@pytest.mark.parametrize("text", [ALPHA1, ALPHA2])
def test_a_usual_file_is_taken_without_a_word(text: bytes) -> None:
    assert interpret(parse_documents(text, "usual")[0]).warnings == ()


PASSED_OVER = "v1alpha2 has no such member and ignores it"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            file("v1alpha2", {"remoteImageEndpiont": "unix:///i"}),
            f"modules.edged.remoteImageEndpiont: {PASSED_OVER}; did you mean remoteImageEndpoint?",
        ),
        (file("v1alpha2", {"whatever": 1}), f"modules.edged.whatever: {PASSED_OVER}"),
        (file("v1alpha2", {"edgedMemoryCapacity": 1}), f"modules.edged.edgedMemoryCapacity: {PASSED_OVER}"),
        (file("v1alpha2", {}, modules={"edgd": {}}), f"modules.edgd: {PASSED_OVER}; did you mean edged?"),
        (file("v1alpha2", {}, module={}), f"module: {PASSED_OVER}; did you mean modules?"),
        (
            file("v1alpha2", {}, remoteImageEndpoint="unix:///i"),
            "remoteImageEndpoint: v1alpha2 has no such member; write modules.edged.remoteImageEndpoint",
        ),
        (
            file("v1alpha2", {}, modules={"tailoredKubeletConfig": {}}),
            "modules.tailoredKubeletConfig: v1alpha2 has no such member; write modules.edged.tailoredKubeletConfig",
        ),
        (
            file("v1alpha2", {"imageMinimumGCAge": "1m"}),
            "modules.edged.imageMinimumGCAge: v1alpha2 has no such member; write modules.edged.tailoredKubeletConfig.",
        ),
        (file("v1alpha2", {}, edged={}), "edged: v1alpha2 has no such member; write modules.edged"),
        (file("v1alpha2", {}, edgeHub={}), "edgeHub: v1alpha2 has no such member; write modules.edgeHub"),
        (
            file("v1alpha1", {"containerRuntime": "remote"}),
            "modules.edged.containerRuntime: v1alpha1 has no such member; write modules.edged.runtimeType",
        ),
        (
            file("v1alpha1", {"dockerEndpoint": "x"}),
            "modules.edged.dockerEndpoint: v1alpha1 has no such member; write modules.edged.dockerAddress",
        ),
        (
            file("v1alpha1", {"imageGCHighThresholdPercent": 50}),
            "modules.edged.imageGCHighThresholdPercent: v1alpha1 has no such member; write modules.edged.imageGC",
        ),
        (
            file("v1alpha1", {"tailoredKubeletConfig": {"imageGCHighThresholdPercent": 50}}),
            "modules.edged.tailoredKubeletConfig: v1alpha1 has no such member and ignores it; its members are v1alp",
        ),
        (
            file("v1alpha1", {"imageMinimumGCAge": "1m"}),
            "modules.edged.imageMinimumGCAge: v1alpha1 has no such member and ignores it; v1alpha2 has it, as",
        ),
        (
            file("v1alpha1", {"podSandboxImag": "x"}),
            "modules.edged.podSandboxImag: v1alpha1 has no such member and ignores it; did you mean podSandbox",
        ),
    ],
)
def test_a_member_that_edgecore_passes_over_is_named(value: dict[str, object], told: str) -> None:
    (warning,) = interpret(value).warnings
    assert warning.startswith(told)


def test_upper_and_lower_case_do_not_count_as_for_edgecore() -> None:
    config = {"ContainerRuntimeEndpoint": "unix:///r", "imageserviceendpoint": "unix:///i"}
    value = {"APIVersion": f"{GROUP}/v1alpha2", "Modules": {"EdgeD": {"TailoredKubeletConfig": config}}}
    found = interpret(value)
    assert (found.runtime_endpoint, found.image_endpoint, found.warnings) == ("unix:///r", "unix:///i", ())
    with pytest.raises(ConfigError, match=r"^modules\.edged\.runtimeType is given twice, in two spellings$"):
        interpret(file("v1alpha1", {"runtimeType": "remote", "RuntimeType": "docker"}))


def test_a_table_of_edged_at_the_top_alone_is_refused() -> None:
    words = r"^e\.yaml: edged is at the top, where KubeEdge ignores it, and there is no modules\.edged$"
    without: tuple[dict[str, Any], ...] = (
        {},
        {"modules": None},
        {"modules": {"edgeHub": {}}},
        {"modules": {"edged": None}},
    )
    for modules in without:
        value: dict[str, Any] = {"apiVersion": f"{GROUP}/v1alpha2", "edged": {"podSandboxImage": "x"}, **modules}
        with pytest.raises(ConfigError, match=words) as caught:
            interpret(value, what="e.yaml")
        assert caught.value.hint == "move it into modules, as modules.edged"


@pytest.mark.parametrize("kind", ["CloudCore", "KubeletConfiguration", 5])
def test_a_file_of_another_kind_is_refused(kind: object) -> None:
    for value in (file("v1alpha2", {}, kind=kind), file("v1alpha1", {}, kind=kind), {"kind": kind, "runtimeType": "x"}):
        with pytest.raises(ConfigError, match=rf"^e\.yaml: kind '{kind}': expected EdgeCore$"):
            interpret(value, what="e.yaml")
    for mine in ("EdgeCore", "", None):
        assert interpret(file("v1alpha2", {}, kind=mine)).profile == "v1alpha2"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"remoteImageEndpiont": "x"},
            "remoteImageEndpiont: no such parameter, ignored; did you mean remoteImageEnd",
        ),
        (
            {"edged": {"docker-adress": "x"}},
            "docker-adress: no such parameter, ignored; did you mean dockerAddress?",
        ),
    ],
)
def test_a_slip_in_a_parameter_of_the_design_is_named(given: dict[str, object], told: str) -> None:
    (warning,) = resolve_proposal({"runtimeType": "remote", **given}).warnings
    assert warning.startswith(told)


def test_other_parameters_of_the_first_release_are_taken_without_a_word() -> None:
    others = {
        f"edged.{name}": 1
        for name in (
            *("register-node-namespace", "hostname-override", "interface-name", "node-status-update-frequency"),
            *("device-plugin-enabled", "gpu-plugin-enabled", "image-gc-high-threshold", "image-gc-low-threshold"),
            *("maximum-dead-containers-per-pod", "image-pull-progress-deadline", "cgroup-driver", "version"),
        )
    }
    assert resolve_proposal({"edged.runtime-type": "remote", "mqtt": {"mode": 0}, **others}).warnings == ()


def test_commands_refuse_another_kind_and_say_what_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "edgecore.yaml"
    path.write_bytes(ALPHA2.replace(b"kind: EdgeCore", b"kind: CloudCore"))
    assert main(["node", "edged-config", str(path)]) == 9
    assert f"imagestore: {path}: kind 'CloudCore': expected EdgeCore\n" in capsys.readouterr().err
    path.write_bytes(ALPHA2.replace(b"podSandboxImage", b"podSandboxImagee"))
    assert main(["node", "edged-config", str(path)]) == 0
    assert f"warning: modules.edged.podSandboxImagee: {PASSED_OVER}; did you mean pod" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["gc", "--dry-run"], ["ensure", "x.example/a:1"]])
def test_commands_name_the_file_of_an_endpoint_that_they_can_not_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text("edged: {runtime-type: remote, remote-image-endpoint: 'tcp://h:1'}")
    assert main(["--root", str(tmp_path / "store"), "node", *command, "--edged", str(path)]) == 9
    assert f"imagestore: {path}: edged.remote-image-endpoint: endpoint 'tcp://h:1'" in capsys.readouterr().err
