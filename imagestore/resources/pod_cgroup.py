"""The control group of a whole pod, which its containers' are below: what the kubelet itself writes there.

Shares from the sum of requests. A quota and a memory limit only where every container has a limit (or the pod itself),
since a container without one may use what it likes. For the kubelet an init container has one also where a sidecar
that started before it has. BestEffort pods get the smallest shares and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import imagestore.resources.cpu as cpu
import imagestore.resources.hugepages as hugepages
import imagestore.resources.memory as memory
import imagestore.resources.totals as totals
from imagestore.resources.integers import INT64, byte_count, fitting, milli_cpu
from imagestore.resources.node import CgroupVersion, MemoryReservationPolicy
from imagestore.resources.pod import CPU, MEMORY
from imagestore.resources.qos import QosClass, qos_class
from imagestore.resources.quantity import ZERO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.resources.node import KubeletSettings, Node
    from imagestore.resources.pod import Pod


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """A pod's numbers; None where nothing is written.

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
        """What is written, by the attributes' names; huge pages of sizes that control groups can name."""
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
    requests, limits = totals.pod_requests(pod), totals.pod_limits(pod)
    huge = dict(hugepages.totals_by_size(requests))
    qos = qos_class(pod)
    unified = _unified(byte_count(requests.get(MEMORY, ZERO), "memory requests"), qos, node=node, settings=settings)
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
    return all(not limits.get(name, ZERO).is_zero for limits in totals.effective_limits(pod))


def _unified(requested_bytes: int, qos: QosClass, *, node: Node, settings: KubeletSettings) -> Mapping[str, str]:
    if node.cgroup is not CgroupVersion.V2 or not settings.has_memory_qos or requested_bytes <= 0:
        return {}
    if settings.memory_reservation is MemoryReservationPolicy.REQUEST:
        return {memory.MEMORY_MIN: str(requested_bytes)}
    if settings.memory_reservation is MemoryReservationPolicy.TIERED:
        name = memory.MEMORY_MIN if qos is QosClass.GUARANTEED else memory.MEMORY_LOW
        return {name: str(requested_bytes)}
    return {}
