"""The Linux message of a container, and back."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidResourcesError
from imagestore.resources import hugepages, linux
from imagestore.resources.cpu import Mapping
from imagestore.resources.messages import HugepageLimit, LinuxContainerResources
from imagestore.resources.node import CgroupVersion, KubeletSettings, MemoryReservationPolicy, Node, SwapBehavior
from imagestore.resources.pod import Container, Pod
from tests.unit.resources.pods import container, init, needs, pod

GIBIBYTE = 2**30
V1 = Node(memory_bytes=8 * GIBIBYTE, cgroup=CgroupVersion.V1)
V2 = Node(memory_bytes=8 * GIBIBYTE, allocatable_memory_bytes=7 * GIBIBYTE, swap_bytes=4 * GIBIBYTE)
TODAY = KubeletSettings()
BEFORE = KubeletSettings(mapping=Mapping.PROPOSAL)


def message(
    given: Pod | Container, *, node: Node = V1, settings: KubeletSettings = TODAY, has_exclusive_cpus: bool = False
) -> LinuxContainerResources:
    whole = pod(given) if isinstance(given, Container) else given
    return linux.container_resources(
        whole, whole.containers[0], node=node, settings=settings, has_exclusive_cpus=has_exclusive_cpus
    )


def test_a_whole_linux_message() -> None:
    found = message(container("cpu=250m memory=512Mi", "cpu=1 memory=1Gi"))
    assert found == LinuxContainerResources(
        cpu_period=100_000,
        cpu_quota=100_000,
        cpu_shares=256,
        memory_limit_in_bytes=GIBIBYTE,
        oom_score_adj=938,
        memory_swap_limit_in_bytes=GIBIBYTE,
    )


@pytest.mark.parametrize(
    ("requests", "limits", "today", "before"),
    [
        ("", "", 2, 2),
        ("cpu=0", "cpu=1", 2, 1024),
        ("", "cpu=1", 1024, 1024),
        ("cpu=500m", "cpu=1", 512, 512),
        ("cpu=300", "", 262144, 307200),
    ],
)
def test_the_request_decides_the_shares(requests: str, limits: str, today: int, before: int) -> None:
    given = container(requests, limits)
    assert (message(given).cpu_shares, message(given, settings=BEFORE).cpu_shares) == (today, before)


def test_limits_of_the_pod_itself_count_for_a_container_without() -> None:
    given = pod(container("", "memory=1Gi"), resources=needs("", "cpu=500m memory=4Gi hugepages-2Mi=8Mi"))
    node = Node(memory_bytes=8 * GIBIBYTE, cgroup=CgroupVersion.V1, huge_page_sizes=("2MB",))
    found = message(given, node=node)
    assert (found.cpu_quota, found.cpu_shares, found.memory_limit_in_bytes) == (50_000, 512, GIBIBYTE)
    assert found.hugepage_limits == (HugepageLimit("2MB", 8 * 2**20),)
    assert message(given, settings=KubeletSettings(has_pod_level_resources=False)).cpu_quota == 0


@pytest.mark.parametrize(
    ("settings", "has_exclusive_cpus", "quota", "period"),
    [
        (TODAY, False, 50_000, 100_000),
        (TODAY, True, -1, 100_000),
        (KubeletSettings(has_cpu_quota=False), False, 0, 0),
        (KubeletSettings(has_cpu_quota=False), True, 0, 0),
        (KubeletSettings(cpu_period=5000), False, 2500, 5000),
    ],
)
def test_quota_and_period(settings: KubeletSettings, has_exclusive_cpus: bool, quota: int, period: int) -> None:
    found = message(container("", "cpu=500m"), settings=settings, has_exclusive_cpus=has_exclusive_cpus)
    assert (found.cpu_quota, found.cpu_period) == (quota, period)


@pytest.mark.parametrize(
    ("node", "choice", "unified"),
    [
        (V2, None, {"memory.oom.group": "1", "memory.swap.max": "0"}),
        (V2, True, {"memory.swap.max": "0"}),
        (Node(memory_bytes=1, has_swap_controller=False), False, {"memory.oom.group": "1"}),
        (V1, False, {}),
    ],
)
def test_all_processes_of_a_container_are_killed_together_on_version_2(
    node: Node, choice: bool | None, unified: dict[str, str]
) -> None:
    assert message(container(), node=node, settings=KubeletSettings(single_process_oom_kill=choice)).unified == unified


def test_without_a_swap_controller_nothing_is_said_about_swap() -> None:
    node = Node(memory_bytes=8 * GIBIBYTE, cgroup=CgroupVersion.V1, has_swap_controller=False)
    assert message(container("", "memory=1Gi"), node=node).memory_swap_limit_in_bytes == 0


SWAPPING = KubeletSettings(swap_behavior=SwapBehavior.LIMITED_SWAP)
BURSTABLE = container("memory=1Gi", "memory=2Gi")


@pytest.mark.parametrize(
    ("given", "node", "settings", "swap"),
    [
        (pod(BURSTABLE), V2, SWAPPING, 512 * 2**20),
        (pod(BURSTABLE), V2, TODAY, 0),
        (pod(BURSTABLE, priority=2 * 10**9), V2, SWAPPING, 0),
        (pod(container("memory=1Gi", "memory=1Gi"), container("cpu=1")), V2, SWAPPING, 0),
        (pod(container("cpu=1"), BURSTABLE), V2, SWAPPING, 0),
        (pod(BURSTABLE), Node(memory_bytes=8 * GIBIBYTE), SWAPPING, 0),
    ],
)
def test_swap_belongs_to_burstable_containers_by_their_request(
    given: Pod, node: Node, settings: KubeletSettings, swap: int
) -> None:
    assert message(given, node=node, settings=settings).unified["memory.swap.max"] == str(swap)


def test_version_1_never_lets_a_container_swap() -> None:
    assert message(BURSTABLE, settings=SWAPPING).memory_swap_limit_in_bytes == 2 * GIBIBYTE


def test_a_share_of_swap_is_divided_as_floating_point() -> None:
    assert linux.swap_share(100, node_memory_bytes=300, node_swap_bytes=3000) == 1000
    assert linux.swap_share(7, node_memory_bytes=10, node_swap_bytes=10) == 7
    assert linux.swap_share(29, node_memory_bytes=100, node_swap_bytes=100) == 28


@pytest.mark.parametrize(
    ("given", "policy", "expected"),
    [
        (container("memory=1Gi", "memory=1Gi cpu=1"), "None", {"memory.min": "0", "memory.low": "0"}),
        (container("memory=1Gi cpu=1", "memory=1Gi cpu=1"), "TieredReservation", {"memory.min": str(GIBIBYTE)}),
        (BURSTABLE, "TieredReservation", {"memory.low": str(GIBIBYTE), "memory.high": "2040107008"}),
        (BURSTABLE, "None", {"memory.min": "0", "memory.low": "0", "memory.high": "2040107008"}),
        (BURSTABLE, "Request", {"memory.min": str(GIBIBYTE), "memory.high": "2040107008"}),
        (container("memory=1Gi"), "None", {"memory.min": "0", "memory.low": "0", "memory.high": "6871945216"}),
        (
            container("cpu=1", "memory=1Gi"),
            "TieredReservation",
            {"memory.min": "0", "memory.low": "0", "memory.high": "966365184"},
        ),
        (container("cpu=1"), "Request", {}),
        (container("memory=4095", "memory=4096"), "None", {"memory.min": "0", "memory.low": "0"}),
    ],
)
def test_memory_qos(given: Container, policy: str, expected: dict[str, str]) -> None:
    settings = KubeletSettings(has_memory_qos=True, memory_reservation=MemoryReservationPolicy(policy))
    unified = dict(message(given, node=V2, settings=settings).unified)
    assert unified.pop("memory.oom.group") == "1"
    assert unified.pop("memory.swap.max") == "0"
    assert unified == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("", (0, 0)),
        ("hugepages-2Mi=4Mi", (4 * 2**20, 0)),
        ("hugepages-1Gi=2Gi hugepages-2048Ki=2Mi", (2 * 2**20, 2 * GIBIBYTE)),
        ("hugepages-64Ki=1Mi", (0, 0)),
        ("hugepages-x=1Mi hugepages-3000=1", (0, 0)),
        ("memory=1Gi", (0, 0)),
    ],
)
def test_huge_pages_have_a_limit_for_each_size_of_the_node(limits: str, expected: tuple[int, int]) -> None:
    found = hugepages.limits(("2MB", "1GB"), needs("", limits).limits)
    assert found == (HugepageLimit("2MB", expected[0]), HugepageLimit("1GB", expected[1]))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1024, "1KB"),
        (65536, "64KB"),
        (2**21, "2MB"),
        (2**25, "32MB"),
        (2**30, "1GB"),
        (2**34, "16GB"),
        (2**40, "1TB"),
        (1000, "1000B"),
    ],
)
def test_page_sizes_are_named_with_the_largest_unit(size: int, text: str) -> None:
    assert hugepages.page_size_text(size) == text


@pytest.mark.parametrize("size", [0, -2048, 1025, 1500 * 1024 + 1, 2049 * 2**20])
def test_an_odd_page_size_has_no_name(size: int) -> None:
    with pytest.raises(InvalidResourcesError):
        hugepages.page_size_text(size)


def test_a_number_that_does_not_fit_is_refused_not_wrapped() -> None:
    for given in (container("", "memory=8E memory=10E"), container("cpu=10E"), container("", "cpu=9E")):
        with pytest.raises(InvalidResourcesError, match="does not fit"):
            message(given)


def test_a_sidecar_has_a_message_of_its_own() -> None:
    sidecar = init("memory=1Gi", is_sidecar=True)
    whole = pod(container("memory=2Gi"), init_containers=(sidecar,))
    found = linux.container_resources(whole, sidecar, node=V1, settings=TODAY)
    assert found.oom_score_adj == 750


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: Node(processors=0),
        lambda: Node(memory_bytes=-1),
        lambda: Node(swap_bytes=2**63),
        lambda: KubeletSettings(memory_throttling_factor=float("nan")),
    ],
)
def test_impossible_nodes_and_kubelets_are_refused(attempt: object) -> None:
    assert callable(attempt)
    with pytest.raises(InvalidResourcesError):
        attempt()


@pytest.mark.parametrize("size", ["junk", "2MBx", "2 MB", "2Mi", "0MB", ""])
def test_page_sizes_are_written_as_control_groups_do(size: str) -> None:
    with pytest.raises(InvalidResourcesError, match="huge pages of"):
        Node(huge_page_sizes=(size,))
