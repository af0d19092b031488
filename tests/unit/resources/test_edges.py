"""Where rules of the kubelet and of the API server begin and end."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from imagestore.errors import InvalidResourcesError
from imagestore.resources import hugepages, linux, oci_spec, pod_reading
from imagestore.resources.linux import pod_cgroup
from imagestore.resources.messages import LinuxContainerResources
from imagestore.resources.node import CgroupVersion, KubeletSettings, MemoryReservationPolicy, Node, SwapBehavior
from imagestore.resources.oci_spec import HugetlbController
from imagestore.resources.pod import Pod
from tests.unit.resources.pods import container, needs, pod

MEBIBYTE = 2**20
SWAPPING = KubeletSettings(swap_behavior=SwapBehavior.LIMITED_SWAP)
SWAPPY = Node(memory_bytes=1024 * MEBIBYTE, swap_bytes=512 * MEBIBYTE)
BURSTABLE = pod(container("memory=256Mi"))


@pytest.mark.parametrize(
    ("given", "node", "settings", "swap"),
    [
        (BURSTABLE, SWAPPY, SWAPPING, 128 * MEBIBYTE),
        (BURSTABLE, SWAPPY, KubeletSettings(), 0),
        (BURSTABLE, SWAPPY, replace(SWAPPING, has_node_swap=False), 0),
        (BURSTABLE, replace(SWAPPY, has_swap_controller=False), SWAPPING, 0),
        (BURSTABLE, replace(SWAPPY, cgroup=CgroupVersion.V1), SWAPPING, 0),
        (replace(BURSTABLE, priority_class="system-node-critical"), SWAPPY, SWAPPING, 0),
        (pod(container()), SWAPPY, SWAPPING, 0),
        (pod(container("cpu=1 memory=256Mi", "cpu=1 memory=256Mi")), SWAPPY, SWAPPING, 0),
        (pod(container("cpu=1 memory=256Mi", "cpu=2 memory=256Mi")), SWAPPY, SWAPPING, 0),
        # All of the node's memory, and more than it.
        (pod(container("memory=1Gi")), SWAPPY, SWAPPING, 512 * MEBIBYTE),
        (pod(container("memory=2Gi")), SWAPPY, SWAPPING, 0),
        (BURSTABLE, replace(SWAPPY, memory_bytes=0), SWAPPING, 0),
        (pod(container("cpu=1", "memory=1Gi")), replace(SWAPPY, memory_bytes=0), SWAPPING, 0),
        # Guaranteed by what the pod itself has.
        (
            pod(container("memory=256Mi"), resources=needs("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")),
            SWAPPY,
            SWAPPING,
            0,
        ),
    ],
)
def test_only_an_ordinary_burstable_container_swaps_where_the_node_can(
    given: Pod, node: Node, settings: KubeletSettings, swap: int
) -> None:
    assert linux.swap_max(given, given.containers[0], node=node, settings=settings) == swap


@pytest.mark.parametrize(("request_bytes", "node_bytes"), [(1, 0), (0, 0), (1, -1), (2, 1)])
def test_a_share_of_no_memory_is_refused(request_bytes: int, node_bytes: int) -> None:
    with pytest.raises(InvalidResourcesError):
        linux.swap_share(request_bytes, node_memory_bytes=node_bytes, node_swap_bytes=1)


@pytest.mark.parametrize(("more", "high"), [("4096Ki", 0), ("4098Ki", 0), ("8Mi", 1945 * 4096)])
def test_a_throttle_limit_is_above_its_request(more: str, high: int) -> None:
    given = container("memory=4Mi", f"memory={more}")
    assert linux.throttle_limit(given, node=Node(), settings=KubeletSettings()) == high


def test_without_its_gate_memory_qos_writes_nothing() -> None:
    for has_gate, unified in ((False, {}), (True, {"memory.min": str(256 * MEBIBYTE)})):
        settings = KubeletSettings(has_memory_qos=has_gate, memory_reservation=MemoryReservationPolicy.REQUEST)
        assert pod_cgroup(BURSTABLE, node=Node(), settings=settings).unified == unified


def test_a_pods_own_limit_of_one_resource_is_none_of_another() -> None:
    given = pod(container("cpu=1 memory=1Gi"), resources=needs("cpu=1", "cpu=2"))
    found = pod_cgroup(given, node=Node(), settings=KubeletSettings())
    assert (found.cpu_quota, found.memory_bytes) == (200_000, None)


def test_a_pods_own_limits_bind_only_what_they_name() -> None:
    given = pod(container("cpu=1 memory=1Gi", "cpu=1 memory=1Gi"), resources=needs("cpu=1", "cpu=2"))
    assert list(pod_reading.faults(given)) == []


def test_one_fault_is_told_without_a_count() -> None:
    with pytest.raises(InvalidResourcesError) as caught:
        pod_reading.check(pod(container("cpu=2", "cpu=1")))
    assert "more)" not in str(caught.value)


@pytest.mark.parametrize("name", ["../memory.max", "memory", "a/b.c"])
def test_what_is_no_file_of_a_control_group_does_not_reach_a_runtime(name: str) -> None:
    with pytest.raises(InvalidResourcesError):
        oci_spec.linux_resources(LinuxContainerResources(unified={name: "1"}))


def test_a_missing_controller_matters_only_to_limits() -> None:
    resources = LinuxContainerResources(memory_limit_in_bytes=1)
    assert "hugepageLimits" not in oci_spec.linux_resources(resources, hugetlb=HugetlbController.REQUIRED)


def test_a_swap_limit_counts_without_one_of_memory() -> None:
    found = oci_spec.linux_resources(LinuxContainerResources(memory_swap_limit_in_bytes=7), has_swap_controller=True)
    assert found["memory"] == {"swap": 7}


def test_another_resource_has_no_page_size() -> None:
    with pytest.raises(InvalidResourcesError, match="hugepages-<size>"):
        hugepages.page_bytes("cpu")


@pytest.mark.parametrize(
    ("period", "factor", "is_taken"),
    [
        (1000, 0.9, True),
        (1_000_000, 1.0, True),
        (999, 0.9, False),
        (1_000_001, 0.9, False),
        (100_000, 0.0, False),
        (100_000, 1.01, False),
    ],
)
def test_a_kubelets_period_and_factor_have_its_bounds(period: int, factor: float, is_taken: bool) -> None:
    with contextlib.nullcontext() if is_taken else pytest.raises(InvalidResourcesError):
        KubeletSettings(cpu_period=period, memory_throttling_factor=factor)
