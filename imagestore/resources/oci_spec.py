"""CRI resource messages as ``linux.resources`` and ``windows.resources`` of the OCI runtime specification.

Linux, as in containerd: zeros are omitted; a memory limit without a swap limit forbids swap; the unified map is merged
key by key; an update keeps what it doesn't name. Windows: count, shares and maximum exclude each other, so more than
one is refused by default (like hcsshim), reduced by precedence (like Docker under process isolation), or kept.
"""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, TypeAlias

from imagestore.errors import InvalidResourcesError
from imagestore.resources.cgroup import check_unified
from imagestore.resources.windows import Isolation, by_precedence, exclusive_fields
from imagestore.util.quantity import INT64, UINT16, UINT64, fitting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.resources.messages import LinuxContainerResources, WindowsContainerResources

Json: TypeAlias = "dict[str, object]"


class HugetlbController(enum.Enum):
    """The node's hugetlb controller, and containerd's settings for it (``disable_hugetlb_controller``, tolerance).

    ``PRESENT``: limits are written. ``TOLERATED``: missing, limits are dropped. ``REQUIRED``: missing, a limit is an
    error. ``DISABLED``: limits are never written.
    """

    PRESENT = "present"
    TOLERATED = "tolerated"
    REQUIRED = "required"
    DISABLED = "disabled"


class CpuConflict(enum.Enum):
    """What to do if more than one of count, shares and maximum is set for a Windows container."""

    REFUSE = "refuse"
    PRECEDENCE = "precedence"
    KEEP = "keep"


def linux_resources(
    resources: LinuxContainerResources,
    *,
    base: Mapping[str, object] | None = None,
    has_swap_controller: bool = True,
    hugetlb: HugetlbController = HugetlbController.PRESENT,
) -> Json:
    """``linux.resources``.

    Args:
        resources: the message.
        base: resources of the container before an update; not modified.
        has_swap_controller: if false, no swap limit is set.
        hugetlb: whether huge pages can be limited.

    Raises:
        InvalidResourcesError: a number doesn't fit its field, a name of the unified map is no file of a control group,
            or huge pages must be limited without a controller.
    """
    result: Json = copy.deepcopy(dict(base or {}))
    _merge(result, "cpu", _cpu(resources))
    _merge(result, "memory", _memory(resources, has_swap_controller=has_swap_controller))
    if resources.hugepage_limits and hugetlb is HugetlbController.REQUIRED:
        raise InvalidResourcesError(
            "huge page limits: the node has no hugetlb controller", hint="tolerate a missing controller, or disable it"
        )
    if resources.hugepage_limits and hugetlb is HugetlbController.PRESENT:
        result["hugepageLimits"] = [
            {"pageSize": each.page_size, "limit": fitting(each.limit, UINT64, f"{each.page_size} limit")}
            for each in resources.hugepage_limits
        ]
    check_unified(resources.unified)
    _merge(result, "unified", dict(resources.unified))
    return result


def windows_resources(
    resources: WindowsContainerResources,
    *,
    isolation: Isolation = Isolation.PROCESS,
    conflict: CpuConflict = CpuConflict.REFUSE,
) -> Json:
    """``windows.resources``, without the size of the scratch disk, which belongs to the snapshot.

    Args:
        resources: the message; a 0 means not set.
        isolation: matters to CpuConflict.PRECEDENCE only.
        conflict: what to do if more than one CPU control is set.

    Raises:
        InvalidResourcesError: more than one CPU control is set and refused, or a number doesn't fit its field (in
            containerd numbers above 65535 wrap).
    """
    if conflict is CpuConflict.PRECEDENCE:
        resources = by_precedence(resources, isolation)
    both = exclusive_fields(resources)
    if conflict is CpuConflict.REFUSE and len(both) > 1:
        values = ", ".join(f"{name} {getattr(resources, name)}" for name in both)
        raise InvalidResourcesError(
            f"windows resources: {values} are mutually exclusive",
            hint="keep one of them, or let the order count, shares, maximum decide: --conflict precedence "
            "(CpuConflict.PRECEDENCE)",
        )
    cpu: Json = {}
    for field, name, kind in (("cpu_count", "count", UINT64), ("cpu_shares", "shares", UINT16)):
        if getattr(resources, field):
            cpu[name] = fitting(getattr(resources, field), kind, field)
    if resources.cpu_maximum:
        cpu["maximum"] = fitting(resources.cpu_maximum, UINT16, "cpu_maximum")
    if resources.affinity_cpus:
        cpu["affinity"] = [{"mask": each.cpu_mask, "group": each.cpu_group} for each in resources.affinity_cpus]
    result: Json = {}
    _merge(result, "cpu", cpu)
    if resources.memory_limit_in_bytes:
        result["memory"] = {"limit": fitting(resources.memory_limit_in_bytes, UINT64, "memory limit")}
    return result


def _cpu(resources: LinuxContainerResources) -> Json:
    cpu: Json = {
        "period": fitting(resources.cpu_period, UINT64, "cpu period"),
        "quota": fitting(resources.cpu_quota, INT64, "cpu quota"),
        "shares": fitting(resources.cpu_shares, UINT64, "cpu shares"),
        "cpus": resources.cpuset_cpus,
        "mems": resources.cpuset_mems,
    }
    return {name: value for name, value in cpu.items() if value}


def _memory(resources: LinuxContainerResources, *, has_swap_controller: bool) -> Json:
    memory: Json = {}
    limit, swap = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
    if limit:
        memory["limit"] = fitting(limit, INT64, "memory limit")
    if has_swap_controller and (swap or limit):
        memory["swap"] = fitting(swap or limit, INT64, "memory+swap limit")
    return memory


def _merge(result: Json, name: str, part: Json) -> None:
    before = result.get(name)
    if part:
        result[name] = {**before, **part} if isinstance(before, dict) else part
