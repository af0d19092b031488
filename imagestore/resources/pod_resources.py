"""The resources of a pod for its runtime handler: CRI messages, validated OCI resources, control group files.

The handler's platform selects the Linux or the Windows message, its isolation one of the two Windows forms. A Linux
guest under Hyper-V gets the Linux message, because its control groups are Linux.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError, InvalidQuantityError, InvalidResourcesError
from imagestore.resources import cgroup, explain, linux, oci_spec, placement, pod_reading, windows
from imagestore.resources.node import CgroupVersion, KubeletSettings, Node
from imagestore.resources.pod import CPU, MEMORY, with_defaults
from imagestore.resources.qos import QosClass, qos_class
from imagestore.resources.windows import Isolation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.config import Config
    from imagestore.platforms import Platform
    from imagestore.resources.cgroup import WeightFormula
    from imagestore.resources.explain import ExplainedValue
    from imagestore.resources.linux import PodCgroup
    from imagestore.resources.messages import LinuxContainerResources, WindowsContainerResources
    from imagestore.resources.oci_spec import CpuConflict, Json
    from imagestore.resources.pod import Container, Pod

#: The kubelet's reasons, by the source of the pod's operating system.
_REFUSALS: Final = {
    placement.NODE_SELECTOR: "PodOSSelectorNodeLabelDoesNotMatch",
    placement.NODE_AFFINITY: "NodeAffinity",
}


@dataclass(frozen=True, slots=True)
class Target:
    """The system and handler that a pod's resources are computed for.

    Attributes:
        os: ``linux`` or ``windows``.
        isolation: of a Windows container; None on Linux.
        handler: name of the runtime handler; empty if only the system was named.
    """

    os: str
    isolation: Isolation | None = None
    handler: str = ""

    def __post_init__(self) -> None:
        if self.os not in ("linux", "windows"):
            raise InvalidInputError(f"operating system {self.os!r}: resources are known for linux and windows only")


@dataclass(frozen=True, slots=True)
class Choices:
    """How the runtime converts messages: its ``cpu.weight``, and what it does with several CPU controls on Windows."""

    weight: WeightFormula = cgroup.WeightFormula.CURVE
    conflict: CpuConflict = oci_spec.CpuConflict.REFUSE


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """The resources of one container.

    Attributes:
        name: of the container.
        cri: the CRI message.
        oci: ``{"linux": {"resources": …}}`` or the same for windows; validated against the specification.
        oom_score_adj: for the OCI ``process.oomScoreAdj``; None on Windows.
        cgroup_files: content that a runtime writes on Linux, by file.
        lines: every number with its formula and source.
    """

    name: str
    cri: LinuxContainerResources | WindowsContainerResources
    oci: Json
    oom_score_adj: int | None
    cgroup_files: Mapping[str, str] = field(default_factory=dict, hash=False)
    lines: tuple[ExplainedValue, ...] = ()


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The resources of a pod.

    Attributes:
        target: system and handler.
        pod: with the API server's defaults.
        qos: the pod's class.
        cgroup: the pod's own control group; None on Windows.
        containers: the init containers, then the containers.
    """

    target: Target
    pod: Pod
    qos: QosClass
    cgroup: PodCgroup | None
    containers: tuple[ContainerPlan, ...]


def refusal(pod: Pod, target: Target) -> str:
    """Why a kubelet on the target would refuse the pod; empty if it would accept it."""
    if not pod.os or pod.os == target.os:
        return ""
    reason = _REFUSALS.get(pod.os_source, "PodOSNotSupported")
    return f"the pod is for {pod.os}: a kubelet on {target.os} refuses it ({reason})"


def target_of(config: Config, handler: str, *, host: Platform | None = None) -> Target:
    """The target for a runtime handler of the configuration; empty for the default handler.

    Raises:
        UnknownRuntimeHandlerError: no such handler.
        InvalidPlatformError: the host is Windows and its version can't be read.
        InvalidInputError: the handler's guest is neither Linux nor Windows.
    """
    found = config.handler_platform(handler, host=host)
    os = found.platform.os
    own = found.handler.isolation
    isolation = Isolation(own.value) if own is not None else Isolation.PROCESS
    return Target(os, isolation if os == "windows" else None, found.handler.name)


def plan(
    pod: Pod, target: Target, *, node: Node, settings: KubeletSettings | None = None, choices: Choices | None = None
) -> PodPlan:
    """Compute the resources of a pod, which are filled in with the API server's defaults first.

    Raises:
        InvalidResourcesError: the API server would refuse the pod, or an amount can't be computed or stored.
        DocumentError: the result violates the OCI runtime specification.
    """
    settings, choices = settings or KubeletSettings(), choices or Choices()
    if not pod.containers:
        raise InvalidResourcesError("pod: expected at least one container, found none")
    for each in pod.init_containers + pod.containers:
        _check_amounts(each)
    pod_reading.check(pod)
    pod = with_defaults(pod)
    pod_reading.check(pod)
    ordered = pod.init_containers + pod.containers
    if target.os == "windows":
        isolation = target.isolation or Isolation.PROCESS
        plans = tuple(_windows(each, isolation, node=node, settings=settings, choices=choices) for each in ordered)
        return PodPlan(target, pod, qos_class(settings.seen(pod)), None, plans)
    plans = tuple(_linux(pod, each, node=node, settings=settings, choices=choices) for each in ordered)
    group = linux.pod_cgroup(pod, node=node, settings=settings)
    return PodPlan(target, pod, qos_class(settings.seen(pod)), group, plans)


def check_oci(document: Json) -> Json:
    """The document, validated against the OCI runtime specification; DocumentError lists the faults."""
    from imagestore.oci import validate

    validate(document, "oci-resources", "OCI resources")
    return document


def _linux(pod: Pod, container: Container, *, node: Node, settings: KubeletSettings, choices: Choices) -> ContainerPlan:
    with _named(container):
        message = linux.container_resources(pod, container, node=node, settings=settings)
    resources = oci_spec.linux_resources(message, has_swap_controller=node.has_swap_controller)
    lines = list(explain.linux(pod, container, message, node=node, settings=settings))
    is_v2 = node.cgroup is CgroupVersion.V2
    files = cgroup.v2_files(message, choices.weight) if is_v2 else cgroup.v1_files(message)
    lines.extend(explain.files(files, message, choices.weight))
    return ContainerPlan(
        name=container.name,
        cri=message,
        oci=check_oci({"linux": {"resources": resources}}),
        oom_score_adj=message.oom_score_adj,
        cgroup_files=files,
        lines=tuple(lines),
    )


def _windows(
    container: Container, isolation: Isolation, *, node: Node, settings: KubeletSettings, choices: Choices
) -> ContainerPlan:
    with _named(container):
        message = windows.container_resources(container, node=node, settings=settings, isolation=isolation)
        resources = oci_spec.windows_resources(message, isolation=isolation, conflict=choices.conflict)
    lines = list(explain.windows(container, message, node=node, settings=settings, isolation=isolation))
    lines.extend(explain.windows_oci(message, resources, choices.conflict))
    return ContainerPlan(
        name=container.name,
        cri=message,
        oci=check_oci({"windows": {"resources": resources}}),
        oom_score_adj=None,
        lines=tuple(lines),
    )


@contextlib.contextmanager
def _named(container: Container) -> Iterator[None]:
    """Put the container's name in front of errors."""
    try:
        yield
    except (InvalidQuantityError, InvalidResourcesError) as error:
        if not container.name:
            raise
        raise InvalidResourcesError(f"container {container.name}: {error}", hint=error.hint) from error


def _check_amounts(container: Container) -> None:
    """Refuse amounts that are too large to compute with, before they are added up."""
    with _named(container):
        for amounts in (container.resources.requests, container.resources.limits):
            for name in (CPU, MEMORY):
                if name in amounts:
                    amounts[name].milli_value()
