"""The node's capacity and its kubelet's settings, as far as they affect resources."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.cpu import DEFAULT_PERIOD, Mapping

if TYPE_CHECKING:
    from imagestore.resources.pod import Pod

_PAGE_SIZE: Final = re.compile(r"[1-9][0-9]{0,17}[KMGTP]?B")


class CgroupVersion(enum.Enum):
    """The version of the control groups that a Linux node has mounted."""

    V1 = "v1"
    V2 = "v2"


class SwapBehavior(enum.Enum):
    """The kubelet's ``memorySwap.swapBehavior``; NoSwap is the default."""

    NO_SWAP = "NoSwap"
    LIMITED_SWAP = "LimitedSwap"


class MemoryReservationPolicy(enum.Enum):
    """The kubelet's ``memoryReservationPolicy``, under its gate MemoryQoS.

    ``REQUEST``: memory.min is the request, in every class, as in releases before 1.36.
    """

    NONE = "None"
    TIERED = "TieredReservation"
    REQUEST = "Request"


@dataclass(frozen=True, slots=True)
class Node:
    """A node's capacity.

    Attributes:
        memory_bytes: capacity; 0 if unknown, which is an error for Burstable pods on Linux.
        allocatable_memory_bytes: for pods; 0 if unknown.
        swap_bytes: capacity of swap.
        processors: logical processors in all groups; Windows' numbers are parts of them.
        page_bytes: of the kernel.
        huge_page_sizes: by their names in control groups: ``2MB``, ``1GB``, ``64KB``.
        cgroup: version of the control groups.
        has_swap_controller: whether the memory controller counts swap.
    """

    memory_bytes: int = 0
    allocatable_memory_bytes: int = 0
    swap_bytes: int = 0
    processors: int = 1
    page_bytes: int = 4096
    huge_page_sizes: tuple[str, ...] = ()
    cgroup: CgroupVersion = CgroupVersion.V2
    has_swap_controller: bool = True

    def __post_init__(self) -> None:
        least = {"processors": 1, "page_bytes": 1, "memory_bytes": 0, "allocatable_memory_bytes": 0, "swap_bytes": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if not low <= value < 2**63:
                raise InvalidResourcesError(f"node: {name} is {value}, expected {low} to 2^63-1")
        for size in self.huge_page_sizes:
            if not _PAGE_SIZE.fullmatch(size):
                raise InvalidResourcesError(f"node: huge pages of {size!r}", hint="write 2MB, 1GB or 64KB")


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """The kubelet's settings that affect resources; the defaults are those of Kubernetes 1.36.

    Attributes:
        has_cpu_quota: ``cpuCFSQuota``; if false, CPU limits aren't enforced.
        cpu_period: ``cpuCFSQuotaPeriod`` in microseconds, 1 ms to 1 s.
        single_process_oom_kill: ``singleProcessOOMKill``; None means the default of the control group's version.
        swap_behavior: ``memorySwap.swapBehavior``.
        has_node_swap: gate NodeSwap.
        has_memory_qos: gate MemoryQoS.
        memory_reservation: ``memoryReservationPolicy``.
        memory_throttling_factor: ``memoryThrottlingFactor``.
        has_pod_level_resources: gate PodLevelResources.
        mapping: PROPOSAL for the rules of 1.22 (Linux) or the CRI proposal (Windows).
    """

    has_cpu_quota: bool = True
    cpu_period: int = DEFAULT_PERIOD
    single_process_oom_kill: bool | None = None
    swap_behavior: SwapBehavior = SwapBehavior.NO_SWAP
    has_node_swap: bool = True
    has_memory_qos: bool = False
    memory_reservation: MemoryReservationPolicy = MemoryReservationPolicy.NONE
    memory_throttling_factor: float = 0.9
    has_pod_level_resources: bool = True
    mapping: Mapping = Mapping.KUBELET

    def __post_init__(self) -> None:
        if not 1000 <= self.cpu_period <= 1_000_000:
            raise InvalidResourcesError(f"cpu period {self.cpu_period}: expected 1000 to 1000000 microseconds")
        if not 0 < self.memory_throttling_factor <= 1:
            raise InvalidResourcesError(
                f"memory throttling factor {self.memory_throttling_factor}: expected more than 0 and at most 1"
            )

    def seen(self, pod: Pod) -> Pod:
        """The pod as this kubelet sees it: without pod-level resources if their gate is off."""
        return pod if self.has_pod_level_resources else replace(pod, resources=None)
