"""Thousandths of a CPU to the numbers of Linux' CPU controller and back, as the kubelet converts them.

All values are integers, times are microseconds, division is cut towards zero.
"""

from __future__ import annotations

import enum
from typing import Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.quantity import clamp, quotient


class Mapping(enum.Enum):
    """Whose rules turn requests and limits into numbers, where they changed.

    ``KUBELET``: today's. ``PROPOSAL``: those of the designs this library started from: the CRI proposal for Windows
    (2018), and for Linux the kubelet of Kubernetes 1.22.
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
    """``cpu.shares`` for thousandths of a CPU.

    Args:
        milli: thousandths; 0 gives the minimum.
        mapping: PROPOSAL knows no maximum.

    >>> [milli_cpu_to_shares(milli) for milli in (0, 1, 100, 250, 1000, 256_000, 300_000)]
    [2, 2, 102, 256, 1024, 262144, 262144]
    """
    shares = quotient(milli * SHARES_PER_CPU, MILLI_PER_CPU)
    if mapping is Mapping.PROPOSAL:
        return max(shares, MINIMUM_SHARES)
    return clamp(shares, MINIMUM_SHARES, MAXIMUM_SHARES)


def milli_cpu_to_quota(milli: int, period: int = DEFAULT_PERIOD) -> int:
    """``cpu.cfs_quota_us`` for thousandths of a CPU: at least 1 ms, and 0 (no limit) for 0.

    Args:
        milli: thousandths.
        period: microseconds.

    >>> [milli_cpu_to_quota(milli) for milli in (0, 1, 10, 100, 1500)], milli_cpu_to_quota(500, 5000)
    ([0, 1000, 1000, 10000, 150000], 2500)
    """
    return max(quotient(milli * period, MILLI_PER_CPU), MINIMUM_QUOTA) if milli else 0


def shares_to_milli_cpu(shares: int) -> int:
    """Thousandths of a CPU that a request had for these shares, rounded up; 0 below the minimum.

    >>> [shares_to_milli_cpu(shares) for shares in (0, 1, 2, 102, 1024)]
    [0, 0, 2, 100, 1000]
    """
    return -(-shares * MILLI_PER_CPU // SHARES_PER_CPU) if shares >= MINIMUM_SHARES else 0


def quota_to_milli_cpu(quota: int, period: int) -> int:
    """Thousandths of a CPU that a limit had for this quota; 0 for -1, which is no limit.

    Args:
        quota: microseconds, or -1.
        period: microseconds.

    Raises:
        InvalidResourcesError: the period is not above 0.

    >>> quota_to_milli_cpu(10_000, 100_000), quota_to_milli_cpu(-1, 100_000)
    (100, 0)
    """
    if period <= 0:
        raise InvalidResourcesError(f"cpu period {period}: expected more than 0 microseconds")
    return 0 if quota == -1 else quotient(quota * MILLI_PER_CPU, period)
