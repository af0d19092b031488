"""The Windows message, by today's kubelet and by the proposal, and the OCI resources of both systems."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidResourcesError
from imagestore.resources import oci_spec, windows
from imagestore.resources.cpu import Mapping
from imagestore.resources.messages import (
    HugepageLimit,
    LinuxContainerResources,
    WindowsContainerResources,
    WindowsCpuGroupAffinity,
)
from imagestore.resources.node import KubeletSettings, Node
from imagestore.resources.pod import Container
from imagestore.resources.windows import Isolation
from tests.unit.resources.pods import container

GIBIBYTE = 2**30
TODAY = KubeletSettings()
BEFORE = KubeletSettings(mapping=Mapping.PROPOSAL)


def of_windows(
    given: Container, *, processors: int, settings: KubeletSettings = TODAY, isolation: Isolation = Isolation.PROCESS
) -> WindowsContainerResources:
    return windows.container_resources(given, node=Node(processors=processors), settings=settings, isolation=isolation)


@pytest.mark.parametrize(
    ("limit", "processors", "maximum"),
    [
        ("1", 1, 10000),
        ("94", 96, 9791),
        ("1", 2, 5000),
        ("2", 1, 10000),
        ("1m", 100, 1),
        ("100m", 4, 250),
        ("1", 8, 1250),
        ("10", 4, 10000),
        ("0", 4, 0),
        ("1n", 4, 2),
        ("333m", 7, 475),
    ],
)
@pytest.mark.parametrize("isolation", Isolation)
def test_todays_kubelet_sets_the_maximum_alone(limit: str, processors: int, maximum: int, isolation: Isolation) -> None:
    found = of_windows(container("cpu=1", f"cpu={limit} memory=1Gi"), processors=processors, isolation=isolation)
    assert found == WindowsContainerResources(cpu_maximum=maximum, memory_limit_in_bytes=GIBIBYTE)


@pytest.mark.parametrize(
    ("requests", "limits", "processors", "process", "hypervisor"),
    [
        ("", "cpu=1", 4, (2, 5000, 2500), (2, 2497, 5000)),
        ("", "cpu=2", 4, (3, 5000, 5000), (3, 4995, 6666)),
        ("", "cpu=999m", 4, (1, 5000, 2497), (1, 2495, 9990)),
        ("", "cpu=1m", 64, (1, 5000, 1), (1, 10, 10)),
        ("", "cpu=8", 4, (9, 10000, 10000), (9, 10000, 8888)),
        ("cpu=2", "", 4, (0, 5000, 0), (0, 4995, 0)),
        ("", "", 4, (0, 0, 0), (0, 0, 0)),
        ("cpu=4", "cpu=0", 4, (0, 5000, 0), (0, 9990, 0)),
    ],
)
def test_the_proposals_table(
    requests: str, limits: str, processors: int, process: tuple[int, int, int], hypervisor: tuple[int, int, int]
) -> None:
    for isolation, expected in ((Isolation.PROCESS, process), (Isolation.HYPERVISOR, hypervisor)):
        found = of_windows(container(requests, limits), processors=processors, settings=BEFORE, isolation=isolation)
        assert (found.cpu_count, found.cpu_shares, found.cpu_maximum) == expected


ALL = WindowsContainerResources(cpu_count=2, cpu_shares=5000, cpu_maximum=2500)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (ALL, WindowsContainerResources(cpu_count=2)),
        (WindowsContainerResources(cpu_shares=5, cpu_maximum=7), WindowsContainerResources(cpu_shares=5)),
        (WindowsContainerResources(cpu_maximum=7), WindowsContainerResources(cpu_maximum=7)),
        (WindowsContainerResources(cpu_count=1, cpu_maximum=7), WindowsContainerResources(cpu_count=1)),
        (WindowsContainerResources(), WindowsContainerResources()),
    ],
)
def test_precedence_is_count_shares_maximum_under_process_isolation(
    given: WindowsContainerResources, kept: WindowsContainerResources
) -> None:
    assert windows.by_precedence(given, Isolation.PROCESS) == kept
    assert windows.by_precedence(given, Isolation.HYPERVISOR) == given


def test_linux_resources_leave_zeros_out_and_forbid_swapping() -> None:
    assert oci_spec.linux_resources(LinuxContainerResources()) == {}
    found = LinuxContainerResources(
        cpu_shares=2, cpu_quota=-1, cpu_period=100_000, memory_limit_in_bytes=5, cpuset_mems="0"
    )
    cpu = {"shares": 2, "quota": -1, "period": 100_000, "mems": "0"}
    assert oci_spec.linux_resources(found) == {"cpu": cpu, "memory": {"limit": 5, "swap": 5}}
    assert oci_spec.linux_resources(found, has_swap_controller=False) == {"cpu": cpu, "memory": {"limit": 5}}
    more = LinuxContainerResources(memory_limit_in_bytes=5, memory_swap_limit_in_bytes=8)
    assert oci_spec.linux_resources(more) == {"memory": {"limit": 5, "swap": 8}}


def test_an_update_changes_what_it_names_and_keeps_the_rest() -> None:
    base = {"cpu": {"shares": 5, "cpus": "0"}, "unified": {"a.b": "1"}, "devices": [{"allow": False}]}
    given = LinuxContainerResources(cpu_shares=9, unified={"c.d": "2"})
    assert oci_spec.linux_resources(given, base=base) == {
        "cpu": {"shares": 9, "cpus": "0"},
        "unified": {"a.b": "1", "c.d": "2"},
        "devices": [{"allow": False}],
    }
    assert base["cpu"] == {"shares": 5, "cpus": "0"}


PAGES = LinuxContainerResources(hugepage_limits=(HugepageLimit("2MB", 0),))


def test_huge_pages_without_a_controller() -> None:
    written = {"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}
    assert oci_spec.linux_resources(PAGES) == written
    assert oci_spec.linux_resources(PAGES, hugetlb=oci_spec.HugetlbController.TOLERATED) == {}
    assert oci_spec.linux_resources(PAGES, hugetlb=oci_spec.HugetlbController.DISABLED) == {}
    with pytest.raises(InvalidResourcesError, match="no hugetlb controller"):
        oci_spec.linux_resources(PAGES, hugetlb=oci_spec.HugetlbController.REQUIRED)


def test_windows_resources_refuse_thin_out_or_keep_what_excludes_each_other() -> None:
    with pytest.raises(InvalidResourcesError, match="mutually exclusive"):
        oci_spec.windows_resources(ALL)
    thinned = oci_spec.windows_resources(ALL, conflict=oci_spec.CpuConflict.PRECEDENCE)
    assert thinned == {"cpu": {"count": 2}}
    everything = {"cpu": {"count": 2, "shares": 5000, "maximum": 2500}}
    assert oci_spec.windows_resources(ALL, conflict=oci_spec.CpuConflict.KEEP) == everything
    under_hypervisor = oci_spec.windows_resources(
        ALL, isolation=Isolation.HYPERVISOR, conflict=oci_spec.CpuConflict.PRECEDENCE
    )
    assert under_hypervisor == everything


@pytest.mark.parametrize("processors", [0, -1])
def test_a_share_of_no_processors_is_refused(processors: int) -> None:
    with pytest.raises(InvalidResourcesError, match="expected at least 1"):
        windows.cpu_maximum(1000, processors)


def test_a_linux_container_keeps_its_sets_of_processors_and_memory_nodes() -> None:
    given = LinuxContainerResources(cpuset_cpus="0-3", cpuset_mems="1")
    assert oci_spec.linux_resources(given)["cpu"] == {"cpus": "0-3", "mems": "1"}


def test_windows_resources_have_memory_and_affinity_but_no_scratch_size() -> None:
    given = WindowsContainerResources(
        memory_limit_in_bytes=5, rootfs_size_in_bytes=7, affinity_cpus=(WindowsCpuGroupAffinity(3, 1),)
    )
    assert oci_spec.windows_resources(given) == {"memory": {"limit": 5}, "cpu": {"affinity": [{"mask": 3, "group": 1}]}}


@pytest.mark.parametrize(
    "given",
    [
        WindowsContainerResources(cpu_maximum=65536),
        WindowsContainerResources(cpu_shares=-1),
        WindowsContainerResources(cpu_count=-1),
    ],
)
def test_windows_numbers_that_do_not_fit_are_refused(given: WindowsContainerResources) -> None:
    with pytest.raises(InvalidResourcesError, match="does not fit"):
        oci_spec.windows_resources(given)


@pytest.mark.parametrize("limit", ["922337203685477581m", "9223372036854775808m", "18446744073709555616m", "100E"])
def test_a_limit_beyond_64_bits_is_all_of_the_processors(limit: str) -> None:
    assert of_windows(container("", f"cpu={limit}"), processors=4).cpu_maximum == 10000
