"""CPU numbers and control groups of both versions: tables."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidResourcesError
from imagestore.resources import cgroup
from imagestore.resources.cgroup import WeightFormula
from imagestore.resources.cpu import (
    Mapping,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    quota_to_milli_cpu,
    shares_to_milli_cpu,
)
from imagestore.resources.messages import HugepageLimit, LinuxContainerResources

SHARES = [
    (-1, 2),
    (0, 2),
    (1, 2),
    (2, 2),
    (3, 3),
    (10, 10),
    (100, 102),
    (250, 256),
    (500, 512),
    (999, 1022),
    (1000, 1024),
    (1500, 1536),
    (2000, 2048),
    (255_999, 262142),
    (256_000, 262144),
    (256_001, 262144),
    (10**15, 262144),
]
QUOTAS = [
    (0, 100_000, 0),
    (1, 100_000, 1000),
    (9, 100_000, 1000),
    (10, 100_000, 1000),
    (11, 100_000, 1100),
    (100, 100_000, 10_000),
    (250, 100_000, 25_000),
    (1000, 100_000, 100_000),
    (1500, 100_000, 150_000),
    (5, 1000, 1000),
    (500, 5000, 2500),
    (200, 5000, 1000),
    (1000, 5000, 5000),
    (333, 10_001, 3330),
    (-100, 100_000, 1000),
    (30_000, 1_000_000, 30_000_000),
]
WEIGHTS = [
    (0, 0, 0),
    (1, 1, 1),
    (2, 1, 1),
    (3, 2, 1),
    (4, 2, 1),
    (10, 4, 1),
    (102, 17, 4),
    (256, 35, 10),
    (512, 59, 20),
    (1024, 100, 39),
    (1025, 101, 40),
    (1536, 138, 59),
    (2048, 174, 79),
    (10240, 639, 391),
    (262143, 10000, 9999),
    (262144, 10000, 10000),
]


@pytest.mark.parametrize(("milli", "shares"), SHARES)
def test_shares_stay_within_the_kernels_bounds(milli: int, shares: int) -> None:
    assert milli_cpu_to_shares(milli) == shares


def test_shares_had_no_maximum_before() -> None:
    assert milli_cpu_to_shares(300_000, mapping=Mapping.PROPOSAL) == 307_200
    assert milli_cpu_to_shares(0, mapping=Mapping.PROPOSAL) == 2


@pytest.mark.parametrize(("milli", "period", "quota"), QUOTAS)
def test_a_quota_is_the_limits_part_of_the_period_and_at_least_a_millisecond(
    milli: int, period: int, quota: int
) -> None:
    assert milli_cpu_to_quota(milli, period) == quota


@pytest.mark.parametrize(
    ("shares", "milli"), [(0, 0), (1, 0), (2, 2), (102, 100), (256, 250), (1024, 1000), (262144, 256000)]
)
def test_shares_read_back_are_rounded_up(shares: int, milli: int) -> None:
    assert shares_to_milli_cpu(shares) == milli


@pytest.mark.parametrize(
    ("quota", "period", "milli"),
    [(-1, 100_000, 0), (0, 100_000, 0), (1000, 100_000, 10), (33_333, 100_000, 333), (2500, 5000, 500)],
)
def test_a_quota_read_back_is_cut(quota: int, period: int, milli: int) -> None:
    assert quota_to_milli_cpu(quota, period) == milli


@pytest.mark.parametrize("period", [0, -1])
def test_a_quota_without_a_period_means_nothing(period: int) -> None:
    with pytest.raises(InvalidResourcesError, match="more than 0"):
        quota_to_milli_cpu(1000, period)


@pytest.mark.parametrize(("shares", "curve", "linear"), WEIGHTS)
def test_both_formulas_of_the_weight(shares: int, curve: int, linear: int) -> None:
    assert cgroup.shares_to_weight(shares) == curve
    assert cgroup.shares_to_weight(shares, WeightFormula.LINEAR) == linear


@pytest.mark.parametrize("formula", WeightFormula)
def test_negative_shares_are_refused(formula: WeightFormula) -> None:
    with pytest.raises(InvalidResourcesError, match="0 or more"):
        cgroup.shares_to_weight(-1, formula)


@pytest.mark.parametrize(
    ("memory_swap", "memory", "swap"),
    [
        (0, 0, 0),
        (0, 100, 0),
        (-1, 0, -1),
        (-1, 100, -1),
        (-1, -1, -1),
        (0, -1, -1),
        (300, -1, 300),
        (300, 100, 200),
        (100, 100, 0),
    ],
)
def test_the_swap_limit_of_version_2_leaves_memory_out(memory_swap: int, memory: int, swap: int) -> None:
    assert cgroup.swap_max(memory_swap, memory) == swap


@pytest.mark.parametrize(
    ("memory_swap", "memory", "said"),
    [
        (100, 0, "without a memory limit"),
        (100, -2, "expected -1"),
        (100, 101, "at least the memory limit"),
        (-2, 100, "at least"),
    ],
)
def test_limits_of_memory_and_swap_that_contradict_each_other_are_refused(
    memory_swap: int, memory: int, said: str
) -> None:
    with pytest.raises(InvalidResourcesError, match=said):
        cgroup.swap_max(memory_swap, memory)


@pytest.mark.parametrize(
    ("text", "quota", "period"),
    [
        ("max", 0, 100_000),
        ("max 100000", 0, 100_000),
        ("max 5000", 0, 5000),
        ("50000", 50_000, 100_000),
        ("50000 250000", 50_000, 250_000),
        ("  50000\t250000 ", 50_000, 250_000),
        ("-1 1000", -1, 1000),
        ("+5 1000", 5, 1000),
        ("0 0", 0, 0),
        (f"{2**63 - 1} {2**64 - 1}", 2**63 - 1, 2**64 - 1),
    ],
)
def test_cpu_max_is_read(text: str, quota: int, period: int) -> None:
    assert cgroup.parse_cpu_max(text) == (quota, period)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "value invalid"),
        (" ", "value invalid"),
        ("1 2 3", "value invalid"),
        ("x", "quota value conversion"),
        ("MAX", "quota value"),
        ("1.5", "quota value"),
        ("1 max", "period value conversion"),
        ("1 -5", "period value"),
        ("1 +5", "period value"),
        (f"{2**63}", "quota value"),
        (f"1 {2**64}", "period value"),
        ("1_0", "quota value"),
        ("\u0661", "quota value"),
    ],
)
def test_cpu_max_that_cant_be_read_says_which_number(text: str, said: str) -> None:
    with pytest.raises(InvalidResourcesError, match=f'unified resource "cpu.max" {said}'):
        cgroup.parse_cpu_max(text)


@pytest.mark.parametrize(
    ("quota", "period", "text"),
    [
        (0, 0, ""),
        (50_000, 0, "50000 100000"),
        (50_000, 5000, "50000 5000"),
        (-1, 0, "max 100000"),
        (0, 5000, "max 5000"),
    ],
)
def test_cpu_max_is_written(quota: int, period: int, text: str) -> None:
    assert cgroup.format_cpu_max(quota, period) == text


@pytest.mark.parametrize("name", ["a/b.c", "/cpu.max", "../x.y", "nodot", ".hidden", ""])
def test_a_unified_name_is_a_file_of_a_controller(name: str) -> None:
    with pytest.raises(InvalidResourcesError, match="unified resource"):
        cgroup.check_unified({name: "1"})


def test_unified_values_lose_their_blanks() -> None:
    assert cgroup.check_unified({"cpu.max": " max 1000\n"}) == {"cpu.max": "max 1000"}


FULL = LinuxContainerResources(
    cpu_period=100_000,
    cpu_quota=25_000,
    cpu_shares=256,
    memory_limit_in_bytes=1 << 30,
    memory_swap_limit_in_bytes=3 << 29,
    cpuset_cpus="0-3",
    cpuset_mems="0",
    hugepage_limits=(HugepageLimit("2MB", 1 << 22), HugepageLimit("1GB", 0)),
    unified={"memory.high": "966365184"},
)


def test_every_file_of_version_1() -> None:
    assert cgroup.v1_files(FULL) == {
        "cpu.shares": "256",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "25000",
        "memory.limit_in_bytes": "1073741824",
        "memory.memsw.limit_in_bytes": "1610612736",
        "hugetlb.2MB.limit_in_bytes": "4194304",
        "hugetlb.1GB.limit_in_bytes": "0",
        "cpuset.cpus": "0-3",
        "cpuset.mems": "0",
    }


def test_every_file_of_version_2() -> None:
    assert cgroup.v2_files(FULL) == {
        "cpu.weight": "35",
        "cpu.max": "25000 100000",
        "memory.max": "1073741824",
        "memory.swap.max": "536870912",
        "hugetlb.2MB.max": "4194304",
        "hugetlb.2MB.rsvd.max": "4194304",
        "hugetlb.1GB.max": "0",
        "hugetlb.1GB.rsvd.max": "0",
        "cpuset.cpus": "0-3",
        "cpuset.mems": "0",
        "memory.high": "966365184",
    }
    assert cgroup.v2_files(FULL, WeightFormula.LINEAR)["cpu.weight"] == "10"


@pytest.mark.parametrize(
    ("memory", "memory_swap", "files"),
    [
        (0, 0, {}),
        (-1, -1, {"memory.max": "max", "memory.swap.max": "max"}),
        (-1, 0, {"memory.max": "max", "memory.swap.max": "max"}),
        (100, 100, {"memory.max": "100", "memory.swap.max": "0"}),
        (100, 0, {"memory.max": "100"}),
        (100, -1, {"memory.max": "100", "memory.swap.max": "max"}),
    ],
)
def test_memory_of_version_2(memory: int, memory_swap: int, files: dict[str, str]) -> None:
    found = LinuxContainerResources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=memory_swap)
    assert cgroup.v2_files(found) == files


def test_the_unified_map_wins() -> None:
    found = LinuxContainerResources(cpu_shares=1024, unified={"cpu.weight": "7", "cpu.idle": "1"})
    assert cgroup.v2_files(found) == {"cpu.weight": "7", "cpu.idle": "1"}
