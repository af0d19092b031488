"""The files that a Linux runtime writes into control groups of both versions, as in runc's cgroups library.

The OCI runtime specification has the values of version 1. On version 2, ``cpu.shares`` becomes ``cpu.weight``, quota
and period become one line ``cpu.max``, and the swap limit excludes memory. Two formulas for the weight are in use:

    LINEAR (runc and crun until 2025)    1 + (shares - 2) * 9999 // 262142                        1024 -> 39
    CURVE  (cgroups library 0.0.3)       ceil(10 ** ((l*l + 125*l) / 612 - 7/34)), l = log2       1024 -> 100
"""

from __future__ import annotations

import enum
import math
import re
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.cpu import DEFAULT_PERIOD, MAXIMUM_SHARES, MINIMUM_SHARES
from imagestore.util.quantity import INT64, UINT64, quotient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.resources.messages import LinuxContainerResources


class WeightFormula(enum.Enum):
    """How ``cpu.weight`` comes from ``cpu.shares``."""

    LINEAR = "linear"
    CURVE = "curve"


MAXIMUM_WEIGHT: Final = 10000
UNLIMITED: Final = "max"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NATURAL: Final = re.compile(r"[0-9]{1,40}")


def shares_to_weight(shares: int, formula: WeightFormula = WeightFormula.CURVE) -> int:
    """``cpu.weight`` for ``cpu.shares``, by the runtime's formula; 0 (not set) for 0.

    Raises:
        InvalidResourcesError: shares are negative.

    >>> [shares_to_weight(shares) for shares in (0, 2, 102, 512, 1024, 262144)]
    [0, 1, 17, 59, 100, 10000]
    >>> [shares_to_weight(shares, WeightFormula.LINEAR) for shares in (0, 2, 1024, 262144)]
    [0, 1, 39, 10000]
    """
    if shares < 0:
        raise InvalidResourcesError(f"cpu shares {shares}: expected 0 or more")
    if shares == 0:
        return 0
    if formula is WeightFormula.LINEAR:
        return 1 + quotient((shares - MINIMUM_SHARES) * (MAXIMUM_WEIGHT - 1), MAXIMUM_SHARES - MINIMUM_SHARES)
    if shares <= MINIMUM_SHARES:
        return 1
    if shares >= MAXIMUM_SHARES:
        return MAXIMUM_WEIGHT
    logarithm = math.log2(shares)
    return math.ceil(math.pow(10, (logarithm * logarithm + 125 * logarithm) / 612.0 - 7.0 / 34.0))


def swap_max(memory_swap: int, memory: int) -> int:
    """The swap limit of version 2 from the limits of version 1 for memory with swap and for memory, in bytes.

    -1 means unlimited, 0 not set.

    Raises:
        InvalidResourcesError: memory_swap is set without memory, or is smaller.

    >>> swap_max(300, 100), swap_max(-1, 100), swap_max(0, 100), swap_max(0, -1), swap_max(300, -1)
    (200, -1, 0, -1, 300)
    """
    if memory == -1 and memory_swap == 0:
        return -1
    if memory_swap in (-1, 0) or memory == -1:
        return memory_swap
    if memory == 0:
        raise InvalidResourcesError(f"memory+swap limit {memory_swap}: can't be set without a memory limit")
    if memory < 0:
        raise InvalidResourcesError(f"memory limit {memory}: expected -1, or more than 0")
    if memory_swap < memory:
        raise InvalidResourcesError(f"memory+swap limit {memory_swap}: expected at least the memory limit, {memory}")
    return memory_swap - memory


def parse_cpu_max(text: str) -> tuple[int, int]:
    """Quota and period of a ``cpu.max`` line, in microseconds; a quota of 0 is no limit.

    Raises:
        InvalidResourcesError: the line isn't one or two numbers of 64 bits. (Runtimes name the wrong one of the two.)

    >>> parse_cpu_max("max"), parse_cpu_max("50000 100000"), parse_cpu_max("20000")
    ((0, 100000), (50000, 100000), (20000, 100000))
    """
    fields = text.split()
    if not 1 <= len(fields) <= 2:
        raise InvalidResourcesError(
            f'unified resource "cpu.max" value invalid: "{text}"', hint="expected a quota (or max), a blank, a period"
        )
    quota = 0 if fields[0] == UNLIMITED else _number(fields[0], "quota", _INTEGER, INT64)
    return quota, _number(fields[1], "period", _NATURAL, UINT64) if len(fields) == 2 else DEFAULT_PERIOD


def format_cpu_max(quota: int, period: int) -> str:
    """The ``cpu.max`` line for quota and period in microseconds; empty if neither is set.

    >>> format_cpu_max(50000, 0), format_cpu_max(-1, 5000), format_cpu_max(0, 0)
    ('50000 100000', 'max 5000', '')
    """
    if quota == 0 and period == 0:
        return ""
    return f"{quota if quota > 0 else UNLIMITED} {period or DEFAULT_PERIOD}"


def check_unified(unified: Mapping[str, str]) -> dict[str, str]:
    """The unified map with stripped values; InvalidResourcesError if a name is no file of a control group."""
    for name in unified:
        if "/" in name:
            raise InvalidResourcesError(f"unified resource {name!r}: must be a file name, found a slash")
        if name.find(".") <= 0:
            raise InvalidResourcesError(f"unified resource {name!r}: expected controller.parameter")
    return {name: value.strip() for name, value in unified.items()}


def v1_files(resources: LinuxContainerResources) -> dict[str, str]:
    """The files of version 1 control groups for a container, without the unified map, and their contents."""
    numbers = {
        "cpu.shares": resources.cpu_shares,
        "cpu.cfs_period_us": resources.cpu_period,
        "cpu.cfs_quota_us": resources.cpu_quota,
        "memory.limit_in_bytes": resources.memory_limit_in_bytes,
        "memory.memsw.limit_in_bytes": resources.memory_swap_limit_in_bytes,
    }
    files = {name: str(number) for name, number in numbers.items() if number}
    for each in resources.hugepage_limits:
        files[f"hugetlb.{each.page_size}.limit_in_bytes"] = str(each.limit)
    return files | _sets(resources)


def v2_files(resources: LinuxContainerResources, formula: WeightFormula = WeightFormula.CURVE) -> dict[str, str]:
    """The files of a version 2 control group for a container, and their contents.

    The unified map overrides converted values.

    Raises:
        InvalidResourcesError: the memory limits contradict each other, or the unified map can't be written.
    """
    weight = shares_to_weight(resources.cpu_shares, formula)
    files = {"cpu.weight": str(weight)} if weight else {}
    cpu_max = format_cpu_max(resources.cpu_quota, resources.cpu_period)
    if cpu_max:
        files["cpu.max"] = cpu_max
    files |= _v2_memory(resources.memory_swap_limit_in_bytes, resources.memory_limit_in_bytes)
    for each in resources.hugepage_limits:
        files[f"hugetlb.{each.page_size}.max"] = files[f"hugetlb.{each.page_size}.rsvd.max"] = str(each.limit)
    files |= _sets(resources)
    return files | check_unified(resources.unified)


def _v2_memory(memory_swap: int, memory: int) -> dict[str, str]:
    swap = swap_max(memory_swap, memory)
    files = {}
    if swap or memory_swap > 0:  # 0 although memory_swap is set: the limits are equal, so no swap is allowed
        files["memory.swap.max"] = UNLIMITED if swap == -1 else str(swap)
    if memory:
        files["memory.max"] = UNLIMITED if memory == -1 else str(memory)
    return files


def _sets(resources: LinuxContainerResources) -> dict[str, str]:
    named = {"cpuset.cpus": resources.cpuset_cpus, "cpuset.mems": resources.cpuset_mems}
    return {name: value for name, value in named.items() if value}


def _number(text: str, name: str, grammar: re.Pattern[str], kind: range) -> int:
    if grammar.fullmatch(text) is None or int(text) not in kind:
        raise InvalidResourcesError(
            f'unified resource "cpu.max" {name} value conversion error: expected a number of 64 bits, found {text!r}'
        )
    return int(text)
