"""A container's limits as ``WindowsContainerResources``, by today's kubelet or by the CRI proposal of 2018.

Today's kubelet sets the memory limit and ``cpu_maximum``, for both kinds of isolation:

    cpu_maximum = 10 * milli // processors                        within 1..10000, 0 without a limit

The proposal sets all fields, from the limit in thousandths of a CPU (shares from the request if there is no limit):

    cpu_count   = (milli + 1000) // 1000                          as printed: a whole number of CPUs gets one more
    cpu_shares  = milli * (10000 - low) // processors // 1000     within low..10000, low 5000 (process) or 10 (Hyper-V)
    cpu_maximum = 10000 * milli // (processors * 1000)            within 1..10000; process isolation
                  10000 * milli // (cpu_count * 1000)             within 1..10000; Hyper-V: of the guest's processors

The proposal has no formula for shares; this one is from Kubernetes 1.10 to 1.14. Its cpu_maximum divides before it
multiplies, which would give 0 below one CPU for each processor; we multiply first.

Under process isolation the three fields exclude each other; ``by_precedence`` keeps the first of count, shares,
maximum. Under Hyper-V the count sizes the guest and the maximum applies to its processors, so all stay.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.cpu import MILLI_PER_CPU, Mapping
from imagestore.resources.messages import WindowsContainerResources
from imagestore.resources.pod import CPU, MEMORY
from imagestore.util.quantity import INT64, byte_count, clamp, fitting, milli_cpu, quotient

if TYPE_CHECKING:
    from imagestore.resources.node import KubeletSettings, Node
    from imagestore.resources.pod import Container


class Isolation(enum.Enum):
    """How a Windows container is isolated from its host."""

    PROCESS = "process"
    HYPERVISOR = "hypervisor"


#: Bounds of cpu_maximum and cpu_shares; 0 means not set.
MAXIMUM: Final = 10000
#: The smallest shares of the shipped proposal.
MINIMUM_SHARES: Final = {Isolation.PROCESS: 5000, Isolation.HYPERVISOR: 10}


def cpu_maximum(milli: int, processors: int) -> int:
    """``cpu_maximum`` of today's kubelet: hundredths of a percent of all processors of the node; 0 for no limit.

    >>> [cpu_maximum(100, 4), cpu_maximum(1000, 8), cpu_maximum(1, 64), cpu_maximum(10_000, 4), cpu_maximum(0, 4)]
    [250, 1250, 1, 10000, 0]
    """
    return clamp(quotient(10 * milli, _positive(processors)), 1, MAXIMUM) if milli else 0


def proposed_cpu_count(milli: int) -> int:
    """``cpu_count`` of the proposal: one more than the whole CPUs of the limit.

    >>> [proposed_cpu_count(milli) for milli in (0, 1, 999, 1000, 2000)]
    [0, 1, 1, 2, 3]
    """
    return quotient(milli + MILLI_PER_CPU, MILLI_PER_CPU) if milli > 0 else 0


def proposed_cpu_shares(milli: int, processors: int, isolation: Isolation) -> int:
    """``cpu_shares`` of the proposal; 0 for 0.

    >>> proposed_cpu_shares(500, 2, Isolation.HYPERVISOR), proposed_cpu_shares(500, 2, Isolation.PROCESS)
    (2497, 5000)
    """
    low = MINIMUM_SHARES[isolation]
    weight = quotient(quotient(milli * (MAXIMUM - low), _positive(processors)), MILLI_PER_CPU)
    return clamp(weight, low, MAXIMUM) if milli > 0 else 0


def proposed_cpu_maximum(milli: int, processors: int) -> int:
    """``cpu_maximum`` of the proposal; 0 for no limit.

    ``processors``: the node's under process isolation, the container's count under Hyper-V.

    >>> proposed_cpu_maximum(1000, 4), proposed_cpu_maximum(1000, proposed_cpu_count(1000))
    (2500, 5000)
    """
    return clamp(quotient(MAXIMUM * milli, _positive(processors) * MILLI_PER_CPU), 1, MAXIMUM) if milli > 0 else 0


def container_resources(
    container: Container,
    *,
    node: Node,
    settings: KubeletSettings,
    isolation: Isolation = Isolation.PROCESS,
) -> WindowsContainerResources:
    """The message for a container with the API server's defaults; Windows has no pod-level resources.

    ``settings.mapping`` selects the rules; the isolation matters to the proposal only.

    Raises:
        InvalidResourcesError: a number doesn't fit its field.
        InvalidQuantityError: a limit is too large to be computed with.
    """
    # Exact, since cpu_maximum is clamped. In the kubelet the product overflows: 100E becomes 1.
    milli = container.resources.limit(CPU).milli_value()
    memory_limit = byte_count(container.resources.limit(MEMORY), "memory limit")
    if settings.mapping is Mapping.KUBELET:
        return WindowsContainerResources(
            memory_limit_in_bytes=memory_limit, cpu_maximum=cpu_maximum(milli, node.processors)
        )
    count = fitting(proposed_cpu_count(milli), INT64, "cpu count")
    of_guest = isolation is Isolation.HYPERVISOR and count > 0
    weighed = milli or milli_cpu(container.resources.request(CPU), "cpu request")
    return WindowsContainerResources(
        memory_limit_in_bytes=memory_limit,
        cpu_count=count,
        cpu_shares=proposed_cpu_shares(weighed, node.processors, isolation),
        cpu_maximum=proposed_cpu_maximum(milli, count if of_guest else node.processors),
    )


def by_precedence(resources: WindowsContainerResources, isolation: Isolation) -> WindowsContainerResources:
    """Under process isolation keep only the first of count, shares and maximum that is set."""
    if isolation is Isolation.HYPERVISOR:
        return resources
    if resources.cpu_count > 0:
        return replace(resources, cpu_shares=0, cpu_maximum=0)
    return replace(resources, cpu_maximum=0) if resources.cpu_shares > 0 else resources


def exclusive_fields(resources: WindowsContainerResources) -> tuple[str, ...]:
    """Which of cpu_count, cpu_shares and cpu_maximum are set; 0 counts as not set."""
    return tuple(name for name in ("cpu_count", "cpu_shares", "cpu_maximum") if getattr(resources, name))


def _positive(processors: int) -> int:
    if processors <= 0:
        raise InvalidResourcesError(f"processors {processors}: expected at least 1")
    return processors
