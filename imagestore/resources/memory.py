"""Swap and memory protection of a container, as the kubelet sets them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.integers import byte_count
from imagestore.resources.node import CgroupVersion, MemoryReservationPolicy, SwapBehavior
from imagestore.resources.pod import MEMORY
from imagestore.resources.qos import QosClass, qos_class

if TYPE_CHECKING:
    from imagestore.resources.node import KubeletSettings, Node
    from imagestore.resources.pod import Container, Pod

MEMORY_MIN: Final = "memory.min"
MEMORY_LOW: Final = "memory.low"
MEMORY_HIGH: Final = "memory.high"
MEMORY_SWAP_MAX: Final = "memory.swap.max"
MEMORY_OOM_GROUP: Final = "memory.oom.group"


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
    """The part of the node's swap that belongs to a memory request, in bytes.

    Divided as floating-point numbers, then cut: the kubelet's own steps, so that the last byte is the same.

    Args:
        request: bytes.
        node_memory_bytes: capacity.
        node_swap_bytes: capacity.

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
    """``memory.swap.max`` of a container in bytes; 0 also where no share can be computed, as the kubelet decides."""
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
    """``memory.high`` of a container in bytes; 0 when it gets none.

    A multiple of the page size between the request and the limit (or what the node can allocate, without one), at the
    throttling factor: ``floor((request + factor * (limit - request)) / page) * page``.
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
