"""What the kubelet computes for Linux: a container's ``LinuxContainerResources``, and the control group of its pod.

The CPU request decides the shares, also one of "0"; without a request, the limit does. Limits that only the pod has
count for its containers too. Under ``Mapping.PROPOSAL`` (Kubernetes 1.22) a request of 0 counts as none, and shares
have no maximum.

The pod's control group contains those of its containers. It gets shares from the sum of requests, but a quota and a
memory limit only if every container or the pod itself has that limit. An init container counts as limited if a sidecar
that started before it is. BestEffort pods get the smallest shares and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import imagestore.resources.cpu as cpu
import imagestore.resources.hugepages as hugepages
from imagestore.errors import InvalidResourcesError
from imagestore.resources.messages import LinuxContainerResources
from imagestore.resources.node import CgroupVersion, MemoryReservationPolicy, SwapBehavior
from imagestore.resources.pod import CPU, MEMORY, effective_limits, pod_limits, pod_requests
from imagestore.resources.qos import QosClass, oom_score_adjust, qos_class
from imagestore.util.quantity import INT64, ZERO, byte_count, fitting, milli_cpu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.resources.node import KubeletSettings, Node
    from imagestore.resources.pod import Container, Pod
    from imagestore.util.quantity import Quantity

MEMORY_MIN: Final = "memory.min"
MEMORY_LOW: Final = "memory.low"
MEMORY_HIGH: Final = "memory.high"
MEMORY_SWAP_MAX: Final = "memory.swap.max"
MEMORY_OOM_GROUP: Final = "memory.oom.group"


def limit_source(pod: Pod, container: Container, name: str) -> tuple[str, Quantity]:
    """The field and the quantity of a container's limit: its own, or the pod's if it has none (or 0)."""
    own = container.resources.limit(name)
    if own.is_zero and pod.pod_level is not None:
        of_pod = pod.pod_level.limit(name)
        if not of_pod.is_zero:
            return f"pod limits.{name}", of_pod
    return f"limits.{name}", own


def shares_source(pod: Pod, container: Container, mapping: cpu.Mapping) -> tuple[str, Quantity]:
    """The field that decides a container's shares, and the quantity in it."""
    requests = container.resources.requests
    is_given = CPU in requests and (mapping is cpu.Mapping.KUBELET or not requests[CPU].is_zero)
    if is_given:
        return "requests.cpu", requests[CPU]
    return limit_source(pod, container, CPU)


def container_resources(
    pod: Pod, container: Container, *, node: Node, settings: KubeletSettings, has_exclusive_cpus: bool = False
) -> LinuxContainerResources:
    """The message that the kubelet sends for a container.

    Args:
        pod: with the API server's defaults.
        container: one of the pod's.
        node: where it runs.
        settings: of the kubelet.
        has_exclusive_cpus: the static CPU policy gave it exclusive processors, so it has no quota.

    Raises:
        InvalidResourcesError: a number doesn't fit its field, or the node's memory isn't known.
    """
    pod = settings.seen(pod)
    _, shares_quantity = shares_source(pod, container, settings.mapping)
    memory_limit = byte_count(limit_source(pod, container, MEMORY)[1], "memory limit")
    quota, period = _quota(pod, container, settings, has_exclusive_cpus=has_exclusive_cpus)
    of_pod = {} if pod.pod_level is None else pod.pod_level.limits
    return LinuxContainerResources(
        cpu_period=period,
        cpu_quota=quota,
        cpu_shares=fitting(
            cpu.milli_cpu_to_shares(milli_cpu(shares_quantity, "cpu request"), mapping=settings.mapping),
            INT64,
            "cpu shares",
        ),
        memory_limit_in_bytes=memory_limit,
        oom_score_adj=oom_score_adjust(pod, container, node_memory_bytes=node.memory_bytes),
        hugepage_limits=hugepages.limits(node.huge_page_sizes, of_pod, container.resources.limits),
        unified=_unified(pod, container, node=node, settings=settings),
        memory_swap_limit_in_bytes=(
            memory_limit if node.cgroup is CgroupVersion.V1 and node.has_swap_controller else 0
        ),
    )


def _quota(pod: Pod, container: Container, settings: KubeletSettings, *, has_exclusive_cpus: bool) -> tuple[int, int]:
    if not settings.has_cpu_quota:
        return 0, 0
    if has_exclusive_cpus:
        return -1, settings.cpu_period
    milli = milli_cpu(limit_source(pod, container, CPU)[1], "cpu limit")
    return fitting(cpu.milli_cpu_to_quota(milli, settings.cpu_period), INT64, "cpu quota"), settings.cpu_period


def _unified(pod: Pod, container: Container, *, node: Node, settings: KubeletSettings) -> Mapping[str, str]:
    if node.cgroup is not CgroupVersion.V2:
        return {}
    unified: dict[str, str] = {}
    if not settings.single_process_oom_kill:
        unified[MEMORY_OOM_GROUP] = "1"
    if node.has_swap_controller:
        unified[MEMORY_SWAP_MAX] = str(swap_max(pod, container, node=node, settings=settings))
    if settings.has_memory_qos:
        unified.update(protection(pod, container, settings=settings))
        high = throttle_limit(container, node=node, settings=settings)
        if high:
            unified[MEMORY_HIGH] = str(high)
    return unified


def swap_behavior(pod: Pod, container: Container, *, node: Node, settings: KubeletSettings) -> SwapBehavior:
    """Whether a container may swap: only under LimitedSwap, on version 2 control groups, in an ordinary Burstable pod,
    and with a memory request that isn't its limit.
    """
    if (
        settings.swap_behavior is not SwapBehavior.LIMITED_SWAP
        or not settings.has_node_swap
        or not node.has_swap_controller
        or node.cgroup is not CgroupVersion.V2
        or pod.is_critical
        or qos_class(pod) is not QosClass.BURSTABLE
        or container.resources.request(MEMORY) == container.resources.limit(MEMORY)
    ):
        return SwapBehavior.NO_SWAP
    return SwapBehavior.LIMITED_SWAP


def swap_share(request: int, *, node_memory_bytes: int, node_swap_bytes: int) -> int:
    """The part of the node's swap for a memory request, in bytes.

    Computed in floating point and then truncated, like the kubelet, so that the last byte is the same.

    Raises:
        InvalidResourcesError: the node has no memory, or less than requested.

    >>> swap_share(2**30, node_memory_bytes=4 * 2**30, node_swap_bytes=2**30)
    268435456
    """
    if node_memory_bytes <= 0:
        raise InvalidResourcesError(f"node memory {node_memory_bytes}: expected more than 0 bytes")
    if request > node_memory_bytes:
        raise InvalidResourcesError(f"memory request {request}: larger than the node's {node_memory_bytes} bytes")
    return int(float(request) / float(node_memory_bytes) * float(node_swap_bytes))


def swap_max(pod: Pod, container: Container, *, node: Node, settings: KubeletSettings) -> int:
    """``memory.swap.max`` of a container in bytes; 0 also if no share can be computed, as in the kubelet."""
    if swap_behavior(pod, container, node=node, settings=settings) is SwapBehavior.NO_SWAP:
        return 0
    request = byte_count(container.resources.request(MEMORY), "memory request")
    if not 0 < node.memory_bytes >= request:
        return 0
    return swap_share(request, node_memory_bytes=node.memory_bytes, node_swap_bytes=node.swap_bytes)


def protection(pod: Pod, container: Container, *, settings: KubeletSettings) -> dict[str, str]:
    """``memory.min`` and ``memory.low`` of a container under the gate MemoryQoS.

    Guaranteed pods get the first, others the second, under the policy TieredReservation. Otherwise both are "0".
    """
    request = byte_count(container.resources.request(MEMORY), "memory request")
    policy = settings.memory_reservation
    if policy is MemoryReservationPolicy.REQUEST:
        return {MEMORY_MIN: str(request)} if request else {}
    if policy is MemoryReservationPolicy.TIERED and request:
        return {MEMORY_MIN if qos_class(pod) is QosClass.GUARANTEED else MEMORY_LOW: str(request)}
    return {MEMORY_MIN: "0", MEMORY_LOW: "0"}


def throttle_limit(container: Container, *, node: Node, settings: KubeletSettings) -> int:
    """``memory.high`` of a container in bytes; 0 if it has none.

    ``floor((request + factor * (limit - request)) / page) * page``; the default limit is the node's allocatable memory.
    """
    request = byte_count(container.resources.request(MEMORY), "memory request")
    limit = byte_count(container.resources.limit(MEMORY), "memory limit")
    if request == limit:
        return 0
    upper = limit or node.allocatable_memory_bytes
    if upper <= 0:
        return 0
    high = float(request) + (float(upper) - float(request)) * settings.memory_throttling_factor
    pages = math.floor(high / float(node.page_bytes))
    return pages * node.page_bytes if pages * node.page_bytes > request else 0


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """A pod's numbers; None means that nothing is written.

    Attributes:
        cpu_shares: weight.
        cpu_quota: microseconds; 0 or -1 for no limit.
        cpu_period: microseconds.
        memory_bytes: limit.
        huge_page_limits: bytes for each page size in bytes.
        unified: files of a version 2 control group.
    """

    cpu_shares: int
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory_bytes: int | None = None
    huge_page_limits: Mapping[int, int] = field(default_factory=dict, hash=False)
    unified: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, object]:
        """The written numbers by attribute name; huge pages by their names in control groups."""
        found: dict[str, object] = {"cpu_shares": self.cpu_shares}
        for name in ("cpu_quota", "cpu_period", "memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        found["huge_page_limits"] = hugepages.by_name(self.huge_page_limits)
        found["unified"] = dict(self.unified)
        return found


def pod_cgroup(pod: Pod, *, node: Node, settings: KubeletSettings) -> PodCgroup:
    """The control group of a pod.

    Args:
        pod: with the API server's defaults.
        node: where it runs.
        settings: of the kubelet; without ``has_cpu_quota`` a quota is -1.

    Raises:
        InvalidResourcesError: a number doesn't fit its field.
        InvalidQuantityError: a huge page size can't be read.
    """
    pod = settings.seen(pod)
    requests, limits = pod_requests(pod), pod_limits(pod)
    huge = hugepages.totals_by_size(requests)
    qos = qos_class(pod)
    unified = _pod_unified(byte_count(requests.get(MEMORY, ZERO), "memory requests"), qos, node=node, settings=settings)
    if qos is QosClass.BEST_EFFORT:
        return PodCgroup(cpu.MINIMUM_SHARES, huge_page_limits=huge, unified=unified)
    quota = cpu.milli_cpu_to_quota(milli_cpu(limits.get(CPU, ZERO), "cpu limits"), settings.cpu_period)
    has_quota = qos is QosClass.GUARANTEED or _is_declared(pod, CPU)
    has_memory = qos is QosClass.GUARANTEED or _is_declared(pod, MEMORY)
    shares = cpu.milli_cpu_to_shares(milli_cpu(requests.get(CPU, ZERO), "cpu requests"), mapping=settings.mapping)
    return PodCgroup(
        cpu_shares=shares,
        cpu_quota=(fitting(quota, INT64, "cpu quota") if settings.has_cpu_quota else -1) if has_quota else None,
        cpu_period=settings.cpu_period if has_quota else None,
        memory_bytes=byte_count(limits.get(MEMORY, ZERO), "memory limits") if has_memory else None,
        huge_page_limits=huge,
        unified=unified,
    )


def _is_declared(pod: Pod, name: str) -> bool:
    if pod.pod_level is not None and not pod.pod_level.limit(name).is_zero:
        return True
    return all(not limits.get(name, ZERO).is_zero for limits in effective_limits(pod))


def _pod_unified(requested_bytes: int, qos: QosClass, *, node: Node, settings: KubeletSettings) -> Mapping[str, str]:
    if node.cgroup is not CgroupVersion.V2 or not settings.has_memory_qos or requested_bytes <= 0:
        return {}
    if settings.memory_reservation is MemoryReservationPolicy.REQUEST:
        return {MEMORY_MIN: str(requested_bytes)}
    if settings.memory_reservation is MemoryReservationPolicy.TIERED:
        name = MEMORY_MIN if qos is QosClass.GUARANTEED else MEMORY_LOW
        return {name: str(requested_bytes)}
    return {}
