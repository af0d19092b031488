"""Back from a runtime's numbers to quantities, as the kubelet reports the resources of a running container.

Precision is lost on the way: 1m of CPU becomes 2 shares and is reported as 2m. What can't be told from the numbers
(no limit, no shares) is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.resources.cpu import quota_to_milli_cpu, shares_to_milli_cpu
from imagestore.resources.integers import quotient
from imagestore.resources.quantity import MILLI, Format, Quantity

if TYPE_CHECKING:
    from imagestore.resources.messages import LinuxContainerResources, WindowsContainerResources


@dataclass(frozen=True, slots=True)
class Reported:
    """Quantities of a running container.

    Attributes:
        cpu_request: from the shares; never known on Windows.
        cpu_limit: from quota and period, or Windows' maximum.
        memory_limit: in bytes.
    """

    cpu_request: Quantity | None = None
    cpu_limit: Quantity | None = None
    memory_limit: Quantity | None = None


def from_linux(resources: LinuxContainerResources) -> Reported:
    """What the numbers of a Linux container mean."""
    period = resources.cpu_period
    limit = quota_to_milli_cpu(resources.cpu_quota, period) if period > 0 else 0
    return Reported(
        cpu_request=_milli(shares_to_milli_cpu(resources.cpu_shares)),
        cpu_limit=_milli(limit),
        memory_limit=_bytes(resources.memory_limit_in_bytes),
    )


def from_windows(resources: WindowsContainerResources, *, processors: int) -> Reported:
    """What the numbers of a Windows container mean.

    Args:
        resources: the message.
        processors: of the node.
    """
    return Reported(
        cpu_limit=_milli(quotient(resources.cpu_maximum * processors, 10)),
        memory_limit=_bytes(resources.memory_limit_in_bytes),
    )


def _milli(value: int) -> Quantity | None:
    return Quantity(value, MILLI) if value > 0 else None


def _bytes(value: int) -> Quantity | None:
    return Quantity(value, 0, Format.BINARY_SI) if value > 0 else None
