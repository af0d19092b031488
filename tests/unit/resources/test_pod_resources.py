"""A handler's platform and isolation choose the mapping; every formula of an explanation works out to its number."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from imagestore import config, platforms
from imagestore.errors import DocumentError, InvalidInputError, InvalidResourcesError, UnknownRuntimeHandlerError
from imagestore.resources import (
    CgroupVersion,
    CpuConflict,
    KubeletSettings,
    LinuxContainerResources,
    Node,
    QosClass,
    WeightFormula,
    WindowsContainerResources,
    pod_from_json,
)
from imagestore.resources.cpu import Mapping
from imagestore.resources.node import MemoryReservationPolicy, SwapBehavior
from imagestore.resources.pod_resources import Choices, PodPlan, Target, check_oci, plan, target_of
from imagestore.resources.windows import Isolation

RUNTIMES = 'plugins."io.containerd.cri.v1.runtime".containerd'
CONFIG = f"""
version = 3
[{RUNTIMES}]
default_runtime_name = "runhcs-wcow-process"
[{RUNTIMES}.runtimes.runhcs-wcow-process]
runtime_type = "io.containerd.runhcs.v1"
[{RUNTIMES}.runtimes.hyperv]
runtime_type = "io.containerd.runhcs.v1"
[{RUNTIMES}.runtimes.hyperv.options]
SandboxIsolation = 1
[{RUNTIMES}.runtimes.hyperv.guest_platform]
OS = "windows"
Architecture = "amd64"
OSVersion = "10.0.17763"
[{RUNTIMES}.runtimes.lcow]
runtime_type = "io.containerd.runhcs.v1"
[{RUNTIMES}.runtimes.lcow.options]
SandboxIsolation = 1
[{RUNTIMES}.runtimes.lcow.guest_platform]
OS = "linux"
Architecture = "amd64"
"""
HANDLERS = config.loads(CONFIG, host=platforms.parse("windows(10.0.20348)/amd64"))
NODE = Node(
    memory_bytes=4 * 2**30, allocatable_memory_bytes=3 * 2**30, swap_bytes=2**30, processors=4, huge_page_sizes=("2MB",)
)
POD = {
    "spec": {
        "initContainers": [{"name": "first", "resources": {"requests": {"cpu": "10m"}}}],
        "containers": [
            {
                "name": "main",
                "resources": {
                    "requests": {"cpu": "333m", "memory": "512Mi"},
                    "limits": {"cpu": "1500m", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
                },
            },
            {"name": "side"},
        ],
    }
}


@pytest.mark.parametrize(
    ("handler", "os", "isolation"),
    [
        ("", "windows", Isolation.PROCESS),
        ("runhcs-wcow-process", "windows", Isolation.PROCESS),
        ("hyperv", "windows", Isolation.HYPERVISOR),
        ("lcow", "linux", None),
    ],
)
def test_a_handler_chooses_the_mapping(handler: str, os: str, isolation: Isolation | None) -> None:
    found = target_of(HANDLERS, handler)
    assert (found.os, found.isolation) == (os, isolation)
    message = plan(pod_from_json(POD), found, node=NODE).containers[0].cri
    assert isinstance(message, LinuxContainerResources if os == "linux" else WindowsContainerResources)


def test_a_linux_node_needs_no_isolation() -> None:
    linux = platforms.parse("linux/amd64")
    assert target_of(config.default(linux), "") == Target("linux", None, "runc")


def test_an_unknown_handler_or_system_is_refused() -> None:
    with pytest.raises(UnknownRuntimeHandlerError):
        target_of(HANDLERS, "kata")
    with pytest.raises(InvalidInputError, match="freebsd"):
        Target("freebsd")


def test_the_isolation_changes_the_numbers_of_the_proposal_only() -> None:
    pod = pod_from_json(POD)
    process, guest = target_of(HANDLERS, ""), target_of(HANDLERS, "hyperv")
    before = KubeletSettings(mapping=Mapping.PROPOSAL)
    keep = Choices(conflict=CpuConflict.KEEP)
    assert plan(pod, process, node=NODE).containers == plan(pod, guest, node=NODE).containers
    proposed = [
        plan(pod, each, node=NODE, settings=before, choices=keep).containers[1].cri for each in (process, guest)
    ]
    assert proposed == [
        WindowsContainerResources(cpu_count=2, cpu_shares=5000, cpu_maximum=3750, memory_limit_in_bytes=2**30),
        WindowsContainerResources(cpu_count=2, cpu_shares=3746, cpu_maximum=7500, memory_limit_in_bytes=2**30),
    ]


def test_a_whole_plan_for_linux() -> None:
    found = plan(pod_from_json(POD), Target("linux"), node=NODE)
    assert found.qos is QosClass.BURSTABLE
    assert [each.name for each in found.containers] == ["first", "main", "side"]
    main = found.containers[1]
    assert main.oci == {
        "linux": {
            "resources": {
                "cpu": {"period": 100_000, "quota": 150_000, "shares": 340},
                "memory": {"limit": 2**30, "swap": 2**30},
                "hugepageLimits": [{"pageSize": "2MB", "limit": 4 * 2**20}],
                "unified": {"memory.oom.group": "1", "memory.swap.max": "0"},
            }
        }
    }
    assert main.oom_score_adj == 875
    assert main.cgroup_files["cpu.max"] == "150000 100000"
    assert found.cgroup is not None
    assert found.cgroup.to_json() == {
        "cpu_shares": 340,
        "huge_page_limits": {"2MB": 4 * 2**20},
        "unified": {},
    }


def _plans() -> list[PodPlan]:
    pod = pod_from_json(POD)
    guaranteed = pod_from_json({"limits": {"cpu": "0.3", "memory": "300Mi"}})
    critical = pod_from_json({"spec": {"priorityClassName": "system-node-critical", "containers": [{"name": "c"}]}})
    older = Node(memory_bytes=4 * 2**30, cgroup=CgroupVersion.V1, processors=3)
    protected = KubeletSettings(
        swap_behavior=SwapBehavior.LIMITED_SWAP,
        has_memory_qos=True,
        memory_reservation=MemoryReservationPolicy.TIERED,
        cpu_period=50_000,
    )
    before = KubeletSettings(mapping=Mapping.PROPOSAL)
    unlimited = KubeletSettings(has_cpu_quota=False)
    linear, keep = Choices(weight=WeightFormula.LINEAR), Choices(conflict=CpuConflict.KEEP)
    linux, windows = Target("linux"), Target("windows", Isolation.PROCESS)
    return [
        plan(each, target, node=node, settings=settings, choices=choices)
        for each in (pod, guaranteed, critical)
        for target, node, settings, choices in (
            (linux, NODE, protected, linear),
            (linux, older, before, None),
            (linux, NODE, unlimited, None),
            (windows, NODE, None, None),
            (windows, older, before, keep),
            (Target("windows", Isolation.HYPERVISOR), NODE, before, keep),
        )
    ]


@pytest.mark.parametrize(
    ("version", "origins"),
    [
        (
            CgroupVersion.V1,
            {
                "cpu.shares": "cpu_shares",
                "cpu.cfs_quota_us": "cpu_quota",
                "cpu.cfs_period_us": "cpu_period",
                "memory.limit_in_bytes": "memory_limit_in_bytes",
                "memory.memsw.limit_in_bytes": "memory_swap_limit_in_bytes",
                "hugetlb.2MB.limit_in_bytes": "hugepage_limits",
            },
        ),
        (
            CgroupVersion.V2,
            {
                "cpu.weight": "cpu_shares, formula curve",
                "cpu.max": "cpu_quota, cpu_period",
                "memory.max": "memory_limit_in_bytes",
                "hugetlb.2MB.max": "hugepage_limits",
                "hugetlb.2MB.rsvd.max": "hugepage_limits",
            },
        ),
    ],
)
def test_each_file_names_the_member_it_comes_from(version: CgroupVersion, origins: dict[str, str]) -> None:
    node = replace(NODE, cgroup=version)
    (main,) = (each for each in plan(pod_from_json(POD), Target("linux"), node=node).containers if each.name == "main")
    assert {line.field: line.source for line in main.lines if line.field in origins} == origins


def test_every_formula_works_out_to_its_number() -> None:
    names = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor, "log2": math.log2}
    worked_out = 0
    for planned in _plans():
        for container in planned.containers:
            for line in container.lines:
                assert line.source
                if line.formula:
                    assert re.fullmatch(r"[a-z0-9 ()*/+,.-]+", line.formula)
                    assert str(eval(line.formula, {"__builtins__": {}}, names)) == line.value, line
                    worked_out += 1
    assert worked_out > 50


def test_every_number_of_a_message_and_every_file_is_explained() -> None:
    for planned in _plans():
        for container in planned.containers:
            lines = {line.field: line.value for line in container.lines}
            for field, value in container.cri.to_json().items():
                if isinstance(value, int) and value:
                    assert lines[field] == str(value)
            for file, content in container.cgroup_files.items():
                assert lines.get(file, lines.get(f"unified[{file}]")) == content


def test_a_pod_without_containers_or_with_faults_is_refused() -> None:
    with pytest.raises(InvalidResourcesError, match="at least one container"):
        plan(pod_from_json({"containers": []}), Target("linux"), node=NODE)
    with pytest.raises(InvalidResourcesError, match="more than its limit"):
        plan(pod_from_json({"requests": {"cpu": 2}, "limits": {"cpu": 1}}), Target("linux"), node=NODE)


def _linux(**parts: Any) -> dict[str, object]:
    return {"linux": {"resources": parts}}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"linux": {}},
        {"freebsd": {"resources": {}}},
        _linux(cpu={"period": 0}),
        _linux(cpu={"quota": -2}),
        _linux(cpu={"shares": "2"}),
        _linux(cpu={"cpus": "a"}),
        _linux(memory={"limit": -2}),
        _linux(memory={"limit": 2**63}),
        _linux(unified={"a/b.c": "1"}),
        _linux(unified={"a.b": 1}),
        _linux(hugepageLimits=[{"pageSize": "2mb", "limit": 1}]),
        _linux(other={}),
        {"windows": {"resources": {"cpu": {"maximum": 10001}}}},
        {"windows": {"resources": {"cpu": {"shares": 0}}}},
    ],
)
def test_resources_that_the_specification_forbids_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(DocumentError):
        check_oci(document)


@pytest.mark.parametrize(
    "document", [_linux(), _linux(cpu={"cpus": "0-3,7", "quota": -1}), {"windows": {"resources": {}}}]
)
def test_resources_that_the_specification_allows_pass(document: dict[str, object]) -> None:
    assert check_oci(document) is document
