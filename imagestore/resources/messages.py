"""CRI's resource messages (``runtime.v1``) as dataclasses; 0 means not set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class HugepageLimit:
    """Limit of one page size.

    Attributes:
        page_size: such as ``2MB``.
        limit: bytes.
    """

    page_size: str
    limit: int


@dataclass(frozen=True, slots=True)
class LinuxContainerResources:
    """The message of this name.

    Attributes:
        cpu_period: microseconds.
        cpu_quota: microseconds; -1 for no limit.
        cpu_shares: relative weight.
        memory_limit_in_bytes: memory.
        oom_score_adj: -1000 to 1000.
        cpuset_cpus: list of processors, such as ``0-3,7``.
        cpuset_mems: list of memory nodes.
        hugepage_limits: one for each page size.
        unified: files of a version 2 control group and their contents.
        memory_swap_limit_in_bytes: memory and swap together.
    """

    cpu_period: int = 0
    cpu_quota: int = 0
    cpu_shares: int = 0
    memory_limit_in_bytes: int = 0
    oom_score_adj: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    hugepage_limits: tuple[HugepageLimit, ...] = ()
    unified: Mapping[str, str] = field(default_factory=dict, hash=False)
    memory_swap_limit_in_bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """The message with the protocol's field names, zero values included."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WindowsCpuGroupAffinity:
    """Processors of one group.

    Attributes:
        cpu_mask: bit n for processor n of the group.
        cpu_group: number of the group.
    """

    cpu_mask: int
    cpu_group: int


@dataclass(frozen=True, slots=True)
class WindowsContainerResources:
    """The message of this name.

    Attributes:
        cpu_shares: weight, 1 to 10000.
        cpu_count: processors.
        cpu_maximum: hundredths of a percent of all processors, 1 to 10000.
        memory_limit_in_bytes: memory.
        rootfs_size_in_bytes: size of the scratch disk.
        affinity_cpus: processors to run on, by group.
    """

    cpu_shares: int = 0
    cpu_count: int = 0
    cpu_maximum: int = 0
    memory_limit_in_bytes: int = 0
    rootfs_size_in_bytes: int = 0
    affinity_cpus: tuple[WindowsCpuGroupAffinity, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The message with the protocol's field names, zero values included."""
        return asdict(self)
