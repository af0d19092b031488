"""Conversion between thousandths of a CPU and the numbers of Linux' CPU controller, as in the kubelet.

Times are microseconds; division truncates towards zero.
"""

from __future__ import annotations

import enum
from typing import Final

from imagestore.errors import InvalidResourcesError
from imagestore.util.quantity import clamp, quotient


class Mapping(enum.Enum):
    """Which rules turn requests and limits into numbers.

    ``KUBELET``: today's. ``PROPOSAL``: the CRI proposal of 2018 for Windows, and Kubernetes 1.22 for Linux.
    """

    KUBELET = "kubelet"
    PROPOSAL = "proposal"


#: Bounds of cpu.shares in the Linux kernel.
MINIMUM_SHARES: Final = 2
MAXIMUM_SHARES: Final = 262144
SHARES_PER_CPU: Final = 1024
MILLI_PER_CPU: Final = 1000
#: The kernel's default period, 100 ms.
DEFAULT_PERIOD: Final = 100_000
#: The kernel takes no quota below 1 ms.
MINIMUM_QUOTA: Final = 1000


def milli_cpu_to_shares(milli: int, *, mapping: Mapping = Mapping.KUBELET) -> int:
    """``cpu.shares`` for thousandths of a CPU; 0 gives the minimum; PROPOSAL has no maximum.

    >>> [milli_cpu_to_shares(milli) for milli in (0, 1, 100, 250, 1000, 256_000, 300_000)]
    [2, 2, 102, 256, 1024, 262144, 262144]
    """
    shares = quotient(milli * SHARES_PER_CPU, MILLI_PER_CPU)
    if mapping is Mapping.PROPOSAL:
        return max(shares, MINIMUM_SHARES)
    return clamp(shares, MINIMUM_SHARES, MAXIMUM_SHARES)


def milli_cpu_to_quota(milli: int, period: int = DEFAULT_PERIOD) -> int:
    """``cpu.cfs_quota_us`` for thousandths of a CPU: at least 1 ms, and 0 (no limit) for 0.

    >>> [milli_cpu_to_quota(milli) for milli in (0, 1, 10, 100, 1500)], milli_cpu_to_quota(500, 5000)
    ([0, 1000, 1000, 10000, 150000], 2500)
    """
    return max(quotient(milli * period, MILLI_PER_CPU), MINIMUM_QUOTA) if milli else 0


def shares_to_milli_cpu(shares: int) -> int:
    """The CPU request in thousandths for these shares, rounded up; 0 below the minimum.

    >>> [shares_to_milli_cpu(shares) for shares in (0, 1, 2, 102, 1024)]
    [0, 0, 2, 100, 1000]
    """
    return -(-shares * MILLI_PER_CPU // SHARES_PER_CPU) if shares >= MINIMUM_SHARES else 0


def quota_to_milli_cpu(quota: int, period: int) -> int:
    """The CPU limit in thousandths for this quota; 0 for -1, which is no limit.

    Raises:
        InvalidResourcesError: the period is not above 0.

    >>> quota_to_milli_cpu(10_000, 100_000), quota_to_milli_cpu(-1, 100_000)
    (100, 0)
    """
    if period <= 0:
        raise InvalidResourcesError(f"cpu period {period}: expected more than 0 microseconds")
    return 0 if quota == -1 else quotient(quota * MILLI_PER_CPU, period)
