"""Properties of the systemd unit that a runtime with the systemd driver makes for a container on version 2.

As runc's systemd manager: what systemd knows becomes a property, everything else of the unified map is written to files
alone. Microseconds; infinity is 2^64-1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.cgroup import UNLIMITED, check_unified, parse_cpu_max
from imagestore.resources.cpu import DEFAULT_PERIOD
from imagestore.resources.integers import UINT64

if TYPE_CHECKING:
    from collections.abc import Mapping

INFINITY: Final = 2**64 - 1
_NATURAL: Final = re.compile(r"[0-9]{1,40}")
_RANGE: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
#: systemd keeps quotas as whole percents: 1 % of a second.
_STEP: Final = 10_000
_PERIOD_SINCE: Final = 242
_ALLOWED_SINCE: Final = 244
_IDLE_SINCE: Final = 252
_MAXIMUM_BIT: Final = 8192
_MEMORY: Final = {
    "memory.min": "MemoryMin",
    "memory.low": "MemoryLow",
    "memory.high": "MemoryHigh",
    "memory.max": "MemoryMax",
    "memory.swap.max": "MemorySwapMax",
    "pids.max": "TasksMax",
}
_SETS: Final = {"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}


def cpu_quota_per_second(quota: int, period: int) -> int:
    """``CPUQuotaPerSecUSec``: the quota for one second, up to the next whole percent; infinity without a quota.

    Args:
        quota: microseconds; 0 or less for none.
        period: microseconds; 0 for the default.

    >>> [cpu_quota_per_second(quota, 100000) for quota in (25000, 33333)], cpu_quota_per_second(-1, 0) == INFINITY
    ([250000, 340000], True)
    """
    if quota <= 0:
        return INFINITY
    per_second = quota * 1_000_000 // (period or DEFAULT_PERIOD)
    return -(-per_second // _STEP) * _STEP


def cpu_properties(quota: int, period: int, *, systemd_version: int) -> dict[str, int]:
    """The properties for a quota and a period; none when both are 0.

    Args:
        quota: microseconds; -1 or 0 for no limit.
        period: microseconds; 0 for the default.
        systemd_version: before 242 it has no property for the period.
    """
    found = {}
    if period and systemd_version >= _PERIOD_SINCE:
        found["CPUQuotaPeriodUSec"] = period
    if quota or period:
        found["CPUQuotaPerSecUSec"] = cpu_quota_per_second(quota, period)
    return found


def unified_properties(unified: Mapping[str, str], *, systemd_version: int) -> dict[str, int | bytes]:
    """The properties for a unified map; what systemd doesn't know is left out.

    Args:
        unified: files and contents.
        systemd_version: some properties are newer than others.

    Raises:
        InvalidResourcesError: a value that can't be read.
    """
    found: dict[str, int | bytes] = {}
    values = check_unified(unified)
    for name, value in values.items():
        if name == "cpu.weight":
            found.setdefault("CPUWeight", _number(name, value))
        elif name == "cpu.idle" and value == "1" and systemd_version >= _IDLE_SINCE:
            found["CPUWeight"] = 0
        elif name == "cpu.max":
            found |= cpu_properties(*parse_cpu_max(value), systemd_version=systemd_version)
        elif name in _SETS and systemd_version >= _ALLOWED_SINCE:
            found[_SETS[name]] = bits(value)
        elif name in _MEMORY:
            number = INFINITY if value == UNLIMITED else _number(name, value)
            found[_MEMORY[name]] = number or 1 if name == "pids.max" else number
    return found


def bits(text: str) -> bytes:
    """A list of numbers such as ``0-3,7`` as a mask, lowest byte first.

    Raises:
        InvalidResourcesError: it can't be read, is empty, or has a number from 8192 on.

    >>> bits("0-3,8").hex()
    '0f01'
    """
    mask = 0
    for part in text.strip().split(","):
        found = _RANGE.fullmatch(part.strip())
        if part.strip() == "":
            continue
        first = int(found[1]) if found else 1
        last = int(found[2] or found[1]) if found else 0
        if first > last or last >= _MAXIMUM_BIT:
            raise InvalidResourcesError(f"list {text!r}: expected numbers and ranges such as 0-3,7, found {part!r}")
        mask |= (1 << last + 1) - (1 << first)
    if not mask:
        raise InvalidResourcesError(f"list {text!r}: expected at least one number")
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _number(name: str, value: str) -> int:
    if _NATURAL.fullmatch(value) is None or int(value) not in UINT64:
        raise InvalidResourcesError(f"unified resource {name!r}: expected a number of 64 bits, found {value!r}")
    return int(value)
