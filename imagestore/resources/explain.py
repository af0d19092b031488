"""Every number with its formula and the field that it is computed from.

A formula is arithmetic that evaluates to the number (``//`` divides integers). It is empty if a rule gives the number
without arithmetic; the source then names the rule.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import imagestore.resources.cpu as cpu
from imagestore.resources.cgroup import MAXIMUM_WEIGHT, WeightFormula
from imagestore.resources.cpu import Mapping as Rules
from imagestore.resources.linux import (
    MEMORY_HIGH,
    MEMORY_OOM_GROUP,
    MEMORY_SWAP_MAX,
    limit_source,
    shares_source,
    swap_behavior,
)
from imagestore.resources.node import SwapBehavior
from imagestore.resources.pod import CPU, MEMORY
from imagestore.resources.qos import QosClass, burstable_request, counting_container, qos_class, remainder
from imagestore.resources.windows import MAXIMUM, MINIMUM_SHARES, Isolation, exclusive_fields
from imagestore.util.quantity import byte_count, milli_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.resources.messages import LinuxContainerResources, WindowsContainerResources
    from imagestore.resources.node import KubeletSettings, Node
    from imagestore.resources.oci_spec import CpuConflict
    from imagestore.resources.pod import Container, Pod
    from imagestore.util.quantity import Quantity

_ORIGINS: Final = {
    "cpu.shares": "cpu_shares",
    "cpu.cfs_quota_us": "cpu_quota",
    "cpu.cfs_period_us": "cpu_period",
    "cpu.max": "cpu_quota, cpu_period",
    "cpuset.cpus": "cpuset_cpus",
    "cpuset.mems": "cpuset_mems",
    "memory.limit_in_bytes": "memory_limit_in_bytes",
    "memory.max": "memory_limit_in_bytes",
    "memory.memsw.limit_in_bytes": "memory_swap_limit_in_bytes",
}


@dataclass(frozen=True, slots=True)
class ExplainedValue:
    """One number.

    Attributes:
        field: of the message, or the file.
        value: as written there.
        formula: arithmetic, or empty.
        source: the field that it is computed from, with its quantity, or the rule.
    """

    field: str
    value: str
    formula: str
    source: str

    def to_json(self) -> dict[str, str]:
        """By the attributes' names."""
        return asdict(self)


def linux(
    pod: Pod, container: Container, resources: LinuxContainerResources, *, node: Node, settings: KubeletSettings
) -> Iterator[ExplainedValue]:
    """The values of a container's message, which was computed from the same arguments.

    Raises:
        InvalidResourcesError: a quantity doesn't fit 64 bits.
    """
    pod = settings.seen(pod)
    name, quantity = shares_source(pod, container, settings.mapping)
    milli = milli_cpu(quantity, "cpu request")
    shares = f"max({milli} * 1024 // 1000, {cpu.MINIMUM_SHARES})"
    if settings.mapping is Rules.KUBELET:
        shares = f"min({shares}, {cpu.MAXIMUM_SHARES})"
    yield ExplainedValue("cpu_shares", str(resources.cpu_shares), shares, _given(name, quantity))
    yield from _quota(pod, container, resources)
    memory_limit = _given(*limit_source(pod, container, MEMORY))
    yield ExplainedValue("memory_limit_in_bytes", str(resources.memory_limit_in_bytes), "", memory_limit)
    if resources.memory_swap_limit_in_bytes:
        value = str(resources.memory_swap_limit_in_bytes)
        yield ExplainedValue(
            "memory_swap_limit_in_bytes", value, str(resources.memory_limit_in_bytes), "NoSwap on cgroup v1"
        )
    yield _oom_score(pod, container, resources, node)
    for each in resources.hugepage_limits:
        yield ExplainedValue(
            f"hugepage_limits[{each.page_size}]", str(each.limit), "", "limits.hugepages-<size>; 0 when absent"
        )
    for key, text in resources.unified.items():
        yield _unified(key, text, pod, container, node=node, settings=settings)


def windows(
    container: Container,
    resources: WindowsContainerResources,
    *,
    node: Node,
    settings: KubeletSettings,
    isolation: Isolation,
) -> Iterator[ExplainedValue]:
    """The values of a container's message, which was computed from the same arguments.

    Raises:
        InvalidResourcesError: a quantity doesn't fit 64 bits.
        InvalidQuantityError: a limit is too large to compute with.
    """
    limit = container.resources.limit(CPU)
    milli, processors = limit.milli_value(), node.processors
    source = _given("limits.cpu", limit)
    if settings.mapping is Rules.KUBELET:
        maximum = f"min(max(10 * {milli} // {processors}, 1), {MAXIMUM})" if milli else ""
        yield ExplainedValue("cpu_count", "0", "", "never set by the kubelet")
        yield ExplainedValue("cpu_shares", "0", "", "never set by the kubelet")
        yield ExplainedValue(
            "cpu_maximum", str(resources.cpu_maximum), maximum, f"{source}; node processors {processors}"
        )
    else:
        yield from _proposed(container, resources, processors=processors, isolation=isolation)
    memory_limit = _given("limits.memory", container.resources.limit(MEMORY))
    yield ExplainedValue("memory_limit_in_bytes", str(resources.memory_limit_in_bytes), "", memory_limit)


def windows_oci(
    resources: WindowsContainerResources, written: Mapping[str, object], conflict: CpuConflict
) -> Iterator[ExplainedValue]:
    """The CPU controls of OCI ``windows.resources`` if the message sets more than one; else nothing.

    Args:
        resources: the message.
        written: ``windows.resources`` made from it.
        conflict: the rule that decided.
    """
    both, cpu = exclusive_fields(resources), written.get("cpu")
    if len(both) < 2 or not isinstance(cpu, dict):
        return
    for field in both:
        name = field.removeprefix("cpu_")
        yield ExplainedValue(f"oci cpu.{name}", str(cpu.get(name, "-")), "", f"{field}; conflict: {conflict.value}")


def files(
    contents: Mapping[str, str], resources: LinuxContainerResources, formula: WeightFormula
) -> Iterator[ExplainedValue]:
    """The control group files of a container, as :mod:`imagestore.resources.cgroup` computed them from the message."""
    for name, value in contents.items():
        if name in resources.unified:
            continue  # explained with the message
        if name == "cpu.weight":
            yield ExplainedValue(
                name, value, _weight(resources.cpu_shares, formula), f"cpu_shares, formula {formula.value}"
            )
        elif name == "memory.swap.max":
            difference = f"{resources.memory_swap_limit_in_bytes} - {resources.memory_limit_in_bytes}"
            yield ExplainedValue(name, value, difference, "memory_swap_limit_in_bytes, memory_limit_in_bytes")
        else:
            yield ExplainedValue(name, value, "", _ORIGINS.get(name, "hugepage_limits"))


def _weight(shares: int, formula: WeightFormula) -> str:
    if formula is WeightFormula.LINEAR:
        return f"1 + ({shares} - 2) * 9999 // 262142"
    if cpu.MINIMUM_SHARES < shares < cpu.MAXIMUM_SHARES:
        logarithm = f"log2({shares})"
        return f"ceil(10 ** (({logarithm} * {logarithm} + 125 * {logarithm}) / 612 - 7 / 34))"
    return "1" if shares <= cpu.MINIMUM_SHARES else str(MAXIMUM_WEIGHT)


def _quota(pod: Pod, container: Container, resources: LinuxContainerResources) -> Iterator[ExplainedValue]:
    quota, period = resources.cpu_quota, resources.cpu_period
    name, limit = limit_source(pod, container, CPU)
    if not period:
        yield ExplainedValue("cpu_quota", str(quota), "", "cpuCFSQuota is off: limits of CPU are not enforced")
        return
    formula = f"max({milli_cpu(limit, 'cpu limit')} * {period} // 1000, {cpu.MINIMUM_QUOTA})" if quota > 0 else ""
    source = "exclusive processors: no quota" if quota < 0 else _given(name, limit)
    yield ExplainedValue("cpu_quota", str(quota), formula, source)
    yield ExplainedValue("cpu_period", str(period), "", "the kubelet's cpuCFSQuotaPeriod, in microseconds")


def _oom_score(pod: Pod, container: Container, resources: LinuxContainerResources, node: Node) -> ExplainedValue:
    value = str(resources.oom_score_adj)
    if pod.is_node_critical:
        return ExplainedValue("oom_score_adj", value, "", "priority class system-node-critical")
    qos = qos_class(pod)
    if qos is not QosClass.BURSTABLE:
        return ExplainedValue("oom_score_adj", value, "", f"QoS class {qos.value}")
    request = burstable_request(pod, container)
    formula = f"min(max(1000 - 1000 * {request} // {node.memory_bytes}, 3), 999)"
    source = f"QoS class Burstable; {_score_source(pod, container)}; node memory {node.memory_bytes}"
    return ExplainedValue("oom_score_adj", value, formula, source)


def _score_source(pod: Pod, container: Container) -> str:
    """The fields that burstable_request adds up."""
    counting, rest = counting_container(pod, container), remainder(pod)
    source = _given("requests.memory", counting.resources.request(MEMORY))
    if counting is not container:
        source = f"container {counting.name} {source}"
    if rest and pod.resources is not None:
        of_pod = _given("pod requests.memory", pod.resources.request(MEMORY))
        source += f"; {of_pod}, of which {rest} more for each container"
    return source


def _unified(
    key: str, value: str, pod: Pod, container: Container, *, node: Node, settings: KubeletSettings
) -> ExplainedValue:
    requested = container.resources.request(MEMORY)
    field, source, formula = f"unified[{key}]", _given("requests.memory", requested), ""
    if key == MEMORY_OOM_GROUP:
        source = "the kubelet's singleProcessOOMKill is false"
    elif key == MEMORY_SWAP_MAX:
        if swap_behavior(pod, container, node=node, settings=settings) is SwapBehavior.NO_SWAP:
            source = "NoSwap"
        elif value != "0":
            formula = f"floor({byte_count(requested, 'memory request')} / {node.memory_bytes} * {node.swap_bytes})"
    elif key == MEMORY_HIGH:
        request = byte_count(requested, "memory request")
        upper = byte_count(container.resources.limit(MEMORY), "memory limit") or node.allocatable_memory_bytes
        factor, page = settings.memory_throttling_factor, node.page_bytes
        formula = f"floor(({request} + ({upper} - {request}) * {factor}) / {page}) * {page}"
    elif value == "0":
        source = f"memoryReservationPolicy {settings.memory_reservation.value}, or no request"
    return ExplainedValue(field, value, formula, source)


def _proposed(
    container: Container, resources: WindowsContainerResources, *, processors: int, isolation: Isolation
) -> Iterator[ExplainedValue]:
    limit = container.resources.limit(CPU)
    milli, source = limit.milli_value(), _given("limits.cpu", limit)
    yield ExplainedValue("cpu_count", str(resources.cpu_count), f"({milli} + 1000) // 1000" if milli else "", source)
    requested = container.resources.request(CPU)
    weighed, low = milli or milli_cpu(requested, "cpu request"), MINIMUM_SHARES[isolation]
    shares = f"min(max({weighed} * ({MAXIMUM} - {low}) // {processors} // 1000, {low}), {MAXIMUM})" if weighed else ""
    from_field = source if milli else _given("requests.cpu", requested)
    yield ExplainedValue("cpu_shares", str(resources.cpu_shares), shares, f"{from_field}; {isolation.value} isolation")
    is_guest = isolation is Isolation.HYPERVISOR and resources.cpu_count
    divisor = resources.cpu_count if is_guest else processors
    maximum = f"min(max({MAXIMUM} * {milli} // ({divisor} * 1000), 1), {MAXIMUM})" if milli else ""
    of = f"cpu_count {divisor}" if is_guest else f"node processors {divisor}"
    yield ExplainedValue("cpu_maximum", str(resources.cpu_maximum), maximum, f"{source}; {of}")


def _given(name: str, quantity: Quantity) -> str:
    return f"{name} {quantity}" if not quantity.is_zero else f"{name} absent or 0"
