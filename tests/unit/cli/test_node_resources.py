"""``imagestore node resources`` as its users meet it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagestore.cli.commands import NODE_COMMANDS
from tests.support.commands import Commands
from tests.support.node import CONFIG, HYPERV, PROCESS

POD: dict[str, Any] = {
    "metadata": {"name": "web"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "resources": {"requests": {"memory": "512Mi"}, "limits": {"cpu": "1500m", "memory": "1Gi"}},
            }
        ]
    },
}
WINDOWS = ("--host", "windows(10.0.20348)/amd64")
NODE = ("--node-memory", "4Gi", "--processors", "4")


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    return Commands(capsys, "--config", str(config), "node", "resources")


def test_options_make_one_container(line: Commands) -> None:
    found = line.json("--os", "linux", "--cpu-request", "250m", "--memory-limit", "1Gi", "--cgroup", "v1", *NODE)
    container = found["containers"][0]
    assert (found["qosClass"], found["mapping"], found["node"]["cgroup"]) == ("Burstable", "kubelet", "v1")
    assert container["cri"]["cpu_shares"] == 256
    assert container["oci"]["process"] == {"oomScoreAdj": 750}
    assert container["oci"]["linux"]["resources"]["cpu"] == {"period": 100000, "shares": 256}
    assert container["cgroupFiles"]["memory.limit_in_bytes"] == str(2**30)
    assert "explanation" not in container


def test_a_pod_comes_from_a_file_or_from_standard_input(
    line: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(POD))
    from_file = line.json(str(path), "--os", "linux", *NODE)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert line.json("-", "--os", "linux", *NODE) == from_file
    as_yaml = tmp_path / "pod.yaml"
    as_yaml.write_text("---\n" + yaml.safe_dump(POD))
    assert line.json(str(as_yaml), "--os", "linux", *NODE) == from_file
    assert from_file["podCgroup"]["cpu_shares"] == 1536
    assert from_file["containers"][0]["cgroupFiles"]["cpu.max"] == "150000 100000"


@pytest.mark.parametrize(
    ("handler", "isolation", "maximum"), [(PROCESS, "process", 3750), (HYPERV, "hypervisor", 7500)]
)
def test_the_handler_chooses_system_and_isolation(line: Commands, handler: str, isolation: str, maximum: int) -> None:
    options = ("--cpu-limit", "1500m", "--mapping", "proposal", "--conflict", "keep", *NODE, *WINDOWS)
    found = line.json("--runtime-handler", handler, *options)
    assert (found["runtimeHandler"], found["os"], found["isolation"]) == (handler, "windows", isolation)
    assert found["containers"][0]["cri"]["cpu_maximum"] == maximum
    today = line.json("--runtime-handler", handler, "--cpu-limit", "1", *NODE, *WINDOWS)
    assert today["containers"][0]["cri"]["cpu_maximum"] == 2500


@pytest.mark.parametrize(("conflict", "written"), [("precedence", ["2", "-", "-"]), ("keep", ["2", "5000", "3750"])])
def test_what_the_order_of_controls_dropped_is_shown(line: Commands, conflict: str, written: list[str]) -> None:
    options = ("--os", "windows", "--cpu-limit", "1500m", "--mapping", "proposal", "--conflict", conflict, *NODE)
    rows = [each.split() for each in line(*options, "--explain").splitlines()]
    found = {each[1] + each[2]: each for each in rows if each[1:2] == ["oci"]}
    assert [found[f"ocicpu.{name}"][3] for name in ("count", "shares", "maximum")] == written
    assert found["ocicpu.count"][-1] == conflict


@pytest.mark.parametrize("system", ["linux", "windows"])
@pytest.mark.parametrize("amount", ["1e99999", "10E"])
def test_an_amount_that_cannot_be_had_names_its_container(
    line: Commands, tmp_path: Path, system: str, amount: str
) -> None:
    path = tmp_path / "pod.json"
    containers = [{"name": "a"}, {"name": "b", "resources": {"limits": {"memory": amount}}}]
    path.write_text(json.dumps({"spec": {"containers": containers}}))
    line(str(path), "--os", system, *NODE, status=2)
    assert "container b: " in line.error


def test_a_number_that_is_not_the_containers_own_names_whose_it_is(line: Commands, tmp_path: Path) -> None:
    def amounts(memory: str) -> dict[str, object]:
        return {"requests": {"memory": memory}}

    sidecar = {"name": "side", "restartPolicy": "Always", "resources": amounts("64Mi")}
    path = tmp_path / "pod.json"
    containers = [{"name": "a", "resources": amounts("1Gi")}, {"name": "b", "resources": amounts("512Mi")}]
    path.write_text(json.dumps({"spec": {"initContainers": [sidecar], "containers": containers}}))
    side = line.json(str(path), "--os", "linux", "--explain", *NODE)["containers"][0]["explanation"]
    assert source(side, "oom_score_adj").split("; ")[1] == "container b requests.memory 512Mi"
    own = {"requests": {"memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    spec = {"resources": own, "containers": [{"name": "a"}, {"name": "b", "resources": amounts("256Mi")}]}
    path.write_text(json.dumps({"spec": spec}))
    first = line.json(str(path), "--os", "linux", "--explain", *NODE)["containers"][0]["explanation"]
    for field in ("cpu_shares", "cpu_quota"):
        assert source(first, field) == "pod limits.cpu 2"
    assert source(first, "memory_limit_in_bytes") == "pod limits.memory 2Gi"
    assert "pod requests.memory 1Gi, of which 402653184 more for each container" in source(first, "oom_score_adj")


def source(lines: list[dict[str, str]], field: str) -> str:
    return next(each["source"] for each in lines if each["field"] == field)


def test_an_isolation_may_be_named(line: Commands) -> None:
    options = ("--isolation", "hyperv", "--cpu-limit", "1", *NODE)
    assert line.json("--os", "windows", *options)["isolation"] == "hypervisor"
    assert line.json("--runtime-handler", PROCESS, *options, *WINDOWS)["isolation"] == "hypervisor"


def test_the_explanation_has_formula_and_source(line: Commands) -> None:
    out = line("--os", "linux", "--cpu-limit", "1500m", "--explain", *NODE)
    assert "min(max(1500 * 1024 // 1000, 2), 262144)" in out
    assert "requests.cpu 1500m" in out
    assert out.splitlines()[0] == "Burstable pod on linux"
    explained = line.json("--os", "windows", "--cpu-limit", "1", "--explain", *NODE)["containers"][0]["explanation"]
    assert {
        "field": "cpu_maximum",
        "value": "2500",
        "formula": "min(max(10 * 1000 // 4, 1), 10000)",
        "source": "limits.cpu 1; node processors 4",
    } in explained
    assert "FORMULA" not in line("--os", "linux", "--cpu-limit", "1", *NODE)


def test_every_option_of_node_and_kubelet_changes_its_number(line: Commands) -> None:
    options = ("--os", "linux", "--memory-request", "1Gi", "--cpu-limit", "1", "--huge-page-limit", "2Mi=4Mi", *NODE)
    more = (
        "--node-swap",
        "1Gi",
        "--swap",
        "LimitedSwap",
        "--memory-qos",
        "TieredReservation",
        "--node-huge-page",
        "2MB",
    )
    found = line.json(*options, *more, "--node-allocatable", "3Gi", "--weight", "linear", "--cpu-period", "50000")
    message = found["containers"][0]["cri"]
    assert message["unified"] == {
        "memory.oom.group": "1",
        "memory.swap.max": str(2**28),
        "memory.low": str(2**30),
        "memory.high": "3006476288",
    }
    assert message["hugepage_limits"] == [{"page_size": "2MB", "limit": 4 * 2**20}]
    assert found["containers"][0]["cgroupFiles"]["cpu.weight"] == "39"
    assert message["cpu_quota"] == 50000
    assert line.json(*options, "--no-cpu-quota")["containers"][0]["cri"]["cpu_period"] == 0
    bare = line.json(*options, "--no-swap-controller")["containers"][0]
    assert "memory.swap.max" not in bare["cgroupFiles"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either a DOCUMENT or options"),
        (("FILE", "--cpu-limit", "1"), "give either a DOCUMENT or options"),
        (("--cpu-limit", "1", "--os", "linux", "--runtime-handler", PROCESS), "either --runtime-handler or --os"),
        (("--cpu-limit", "1", "--os", "linux", "--isolation", "hyperv"), "--isolation is for Windows"),
        (("--cpu-limit", "1", "--os", "linux", "--huge-page-limit", "2Mi"), "expected SIZE=QUANTITY"),
        (("--cpu-limit", "1x", "--os", "linux"), "quantity '1x': $.limits.cpu: expected a number"),
        (("--cpu-limit", "1", "--cpu-request", "2", "--os", "linux"), "requests.cpu is 2, more than its limit 1"),
        (("--cpu-limit", "1", "--node-memory", "0", "--os", "linux"), "node memory 0"),
        (("--cpu-limit", "1", "--os", "linux", "--cpu-period", "5"), "expected 1000 to 1000000 microseconds"),
        (("--cpu-limit", "1", "--os", "windows", "--mapping", "proposal"), "mutually exclusive"),
        (("missing.json",), "No such file"),
        (("--memory-limit", "1E", "--memory-request", "9E", "--os", "linux"), "more than its limit"),
        (("--memory-limit", "10E", "--os", "linux"), "does not fit"),
        (("--cpu-limit", "1", "--node-memory", "-5", "--os", "linux"), "--node-memory: '-5'"),
        (("--cpu-limit", "1", "--node-swap", "10E", "--os", "linux"), "--node-swap: '10E'"),
        (("--huge-page-limit", "2Mi=4Mi", "--os", "linux"), "has neither cpu nor memory next to it"),
        (("--memory-limit", "1Gi", "--huge-page-limit", "0=0", "--os", "linux"), "expected a page size in its name"),
        (("--memory-limit", "1Gi", "--huge-page-limit", "2Mi=3Mi", "--os", "windows"), "such as 4Mi"),
    ],
)
def test_what_cant_be_done_is_one_clear_line(
    line: Commands, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    shown = line(*(str(tmp_path / "pod.json") if each == "FILE" else each for each in arguments), status=2)
    assert (shown, said in line.error) == ("", True), line.error


def test_a_page_size_that_control_groups_have_no_name_for_is_passed_over(line: Commands) -> None:
    options = ("--os", "linux", "--memory-limit", "1Gi", "--huge-page-limit", "3M=6M", *NODE)
    assert "huge_page" not in line(*options)
    assert line.json(*options, "--huge-page-limit", "2Mi=4Mi")["podCgroup"]["huge_page_limits"] == {"2MB": 4 * 2**20}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"a: 1\n---\nb: 2",
        b"kind: Service\n---\nkind: ConfigMap",
        b"kind: Pod\nspec: {containers: [{}]}\n---\nkind: Deployment\nspec: {}",
        b'{"kind": "List", "items": [5]}',
        b'{"limits": {}, "limits": {}}',
        b'{"spec": 5}',
        b'{"kind": "List"}',
    ],
)
def test_a_document_that_is_no_pod_is_wrong_usage(line: Commands, tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "pod.json"
    path.write_bytes(raw)
    line(str(path), "--os", "linux", status=2)
    assert "Traceback" not in line.error
    assert line.error.startswith("imagestore: ")


def test_an_unknown_handler_has_its_own_status(line: Commands) -> None:
    line("--cpu-limit", "1", "--runtime-handler", "none", status=9)
    assert "runtime handler 'none' is not configured" in line.error


def test_the_group_lists_its_commands_without_loading_them() -> None:
    code = (
        "import sys, click.testing\n"
        "from imagestore.cli.main import cli\n"
        "ran = click.testing.CliRunner().invoke(cli, ['node', '--help'])\n"
        "print(ran.output)\n"
        "print('imagestore.cli.node.resources' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(name in ran.stdout for name in NODE_COMMANDS)
    assert ran.stdout.splitlines()[-1] == "False"


def written(tmp_path: Path, **spec: object) -> str:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps({"kind": "Pod", "spec": {**POD["spec"], **spec}}))
    return str(path)


def test_a_pod_chooses_its_system_where_no_option_does(line: Commands, tmp_path: Path) -> None:
    windows = written(tmp_path, os={"name": "windows"})
    found = line.json(windows, *NODE)
    assert (found["os"], found["isolation"], found["runtimeHandler"], found["warnings"]) == (
        "windows",
        "process",
        "",
        [],
    )
    assert line.json(written(tmp_path, os={"name": "linux"}), *NODE, *WINDOWS)["os"] == "linux"
    refused = line.json(written(tmp_path, os={"name": "windows"}), "--os", "linux", *NODE)
    assert (refused["os"], refused["warnings"]) == (
        "linux",
        ["the pod is for windows: a kubelet on linux refuses it (PodOSNotSupported)"],
    )


def test_a_pods_node_affinity_chooses_its_system_and_a_contradiction_is_said(line: Commands, tmp_path: Path) -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["windows"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    affine = written(tmp_path, affinity={"nodeAffinity": required})
    found = line.json(affine, *NODE)
    assert (found["os"], found["warnings"]) == ("windows", [])
    refused = line.json(affine, "--os", "linux", *NODE)["warnings"]
    assert refused == ["the pod is for windows: a kubelet on linux refuses it (NodeAffinity)"]
    both = written(tmp_path, os={"name": "linux"}, nodeSelector={"kubernetes.io/os": "windows"})
    found = line.json(both, *NODE)
    assert found["os"] == "linux"
    assert found["warnings"] == [
        "os.name linux and nodeSelector kubernetes.io/os: windows contradict each other: no node can run this pod"
    ]


def test_a_runtime_class_is_reported_where_no_handler_is_named(line: Commands, tmp_path: Path) -> None:
    pod = written(tmp_path, runtimeClassName="gold")
    (warning,) = line.json(pod, "--os", "linux", *NODE)["warnings"]
    assert warning == (
        "the numbers are for linux; name the handler of runtimeClassName gold with --runtime-handler, "
        "or the cluster's classes with --runtime-classes"
    )
    assert line.json(pod, "--runtime-handler", HYPERV, *NODE, *WINDOWS)["warnings"] == []


def test_what_is_doubtful_is_said_on_standard_error_also_of_options(line: Commands) -> None:
    assert "memory.max" in line("--os", "linux", "--memory-limit", "128m", *NODE)
    assert line.error.startswith(
        "imagestore: warning: container: limits.memory is 128m, which has a fraction of a byte"
    )
    line("--os", "linux", "--memory-limit", "128Mi", *NODE)
    assert line.error == ""


MANY = """
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    spec:
      runtimeClassName: isolated
      containers: [{name: main, resources: {limits: {cpu: 1500m, memory: 1Gi}}}]
---
kind: List
items:
  - {kind: CronJob, metadata: {name: night}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: c}]}}}}}}
  - {kind: PodTemplate, metadata: {name: t}, template: {spec: {os: {name: windows}, containers: [{name: d}]}}}
"""
CLASSES = f"""
kind: RuntimeClass
metadata: {{name: isolated}}
handler: {HYPERV}
scheduling: {{nodeSelector: {{kubernetes.io/os: windows}}}}
"""


def test_each_pod_of_several_documents_is_shown(line: Commands, tmp_path: Path) -> None:
    path, classes = tmp_path / "many.yaml", tmp_path / "classes.yaml"
    path.write_text(MANY)
    classes.write_text(CLASSES)
    found = line.json(str(path), "--runtime-classes", str(classes), *NODE, *WINDOWS)
    assert [(each["object"], each["runtimeHandler"], each["os"]) for each in found["items"]] == [
        ("Deployment web", HYPERV, "windows"),
        ("CronJob night", PROCESS, "windows"),
        ("PodTemplate t", PROCESS, "windows"),
    ]
    assert found["warnings"] == ["Service web: has no pod, passed over"]
    text = line(str(path), "--runtime-classes", str(classes), *NODE, *WINDOWS)
    assert text.startswith(
        f"Deployment web:\nGuaranteed pod on windows, hypervisor isolation, runtime handler {HYPERV}\n"
    )
    assert "\n\nCronJob night:\nBestEffort pod" in text
    path.write_text(MANY.partition("---\nkind: List")[0] + "---" + CLASSES)
    alone = line.json(str(path), *NODE, *WINDOWS)
    assert (alone["runtimeHandler"], alone["isolation"]) == (HYPERV, "hypervisor")
    assert alone["warnings"][0] == "Service web: has no pod, passed over"
    classes.write_text(CLASSES.replace("isolated", "other"))
    path.write_text(MANY)
    line(str(path), "--runtime-classes", str(classes), *NODE, *WINDOWS, status=3)
    assert 'runtimeclass.node.k8s.io "isolated" not found' in line.error


def test_a_fault_names_its_object(line: Commands, tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(MANY.replace("1Gi", "1Gb"))
    line(str(path), "--os", "linux", status=2)
    assert "Deployment web: quantity '1Gb'" in line.error


def test_the_hint_of_a_conflict_names_its_option(line: Commands) -> None:
    line("--cpu-limit", "1", "--os", "windows", "--mapping", "proposal", status=2)
    assert "--conflict precedence" in line.error
