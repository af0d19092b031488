"""A container's requests and limits as ``LinuxContainerResources``, the way the kubelet fills it.

The CPU request decides the shares, also one of "0"; without any, the limit does. Limits that only the pod has count for
its containers too. Under ``Mapping.PROPOSAL`` (Kubernetes 1.22) a request of 0 counts as none, and shares have no
maximum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import imagestore.resources.cpu as cpu
import imagestore.resources.hugepages as hugepages
import imagestore.resources.memory as memory
from imagestore.resources.integers import INT64, byte_count, fitting, milli_cpu
from imagestore.resources.messages import LinuxContainerResources
from imagestore.resources.node import CgroupVersion
from imagestore.resources.pod import CPU, MEMORY
from imagestore.resources.qos import oom_score_adjust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.resources.node import KubeletSettings, Node
    from imagestore.resources.pod import Container, Pod
    from imagestore.resources.quantity import Quantity


def limit_source(pod: Pod, container: Container, name: str) -> tuple[str, Quantity]:
    """The field of a container's limit, and its quantity: its own; where it has none (or 0), the pod's."""
    own = container.resources.limit(name)
    if own.is_zero and pod.pod_level is not None:
        of_pod = pod.pod_level.limit(name)
        if not of_pod.is_zero:
            return f"pod limits.{name}", of_pod
    return f"limits.{name}", own


def shares_source(pod: Pod, container: Container, mapping: cpu.Mapping) -> tuple[str, Quantity]:
    """The field that decides a container's shares, and its quantity."""
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
        pod: whose it is, with the API server's defaults.
        container: one of the pod's.
        node: where it runs.
        settings: of the kubelet.
        has_exclusive_cpus: the static CPU policy gave it processors of its own, so that no quota is set.

    Raises:
        InvalidResourcesError: a number doesn't fit its field, or the node's memory isn't known.
    """
    pod = settings.seen(pod)
    _, shares_quantity = shares_source(pod, container, settings.mapping)
    memory_limit = byte_count(limit_source(pod, container, MEMORY)[1], "memory limit")
    quota, period = _quota(pod, container, settings, has_exclusive_cpus=has_exclusive_cpus)
    pod_limits = {} if pod.pod_level is None else pod.pod_level.limits
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
        hugepage_limits=hugepages.limits(node.huge_page_sizes, pod_limits, container.resources.limits),
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
        unified[memory.MEMORY_OOM_GROUP] = "1"
    if node.has_swap_controller:
        unified[memory.MEMORY_SWAP_MAX] = str(memory.swap_max(pod, container, node=node, settings=settings))
    if settings.has_memory_qos:
        unified.update(memory.protection(pod, container, settings=settings))
        high = memory.throttle_limit(container, node=node, settings=settings)
        if high:
            unified[memory.MEMORY_HIGH] = str(high)
    return dict(unified)
