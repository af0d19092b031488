"""A pod's requests and limits, their defaults, and their totals.

Names are those of Kubernetes' core/v1 API. A request of 0 is kept; a missing one becomes the limit by default.

Totals follow Kubernetes' rule for sidecars (KEP-753): containers and sidecars add up; an ordinary init container needs
itself and the sidecars that started before it; for each resource the larger of both counts. Pod-level resources replace
the total of each resource that they name (KEP-2837). The sandbox's overhead is added at the end, to limits only where
there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from imagestore.util.quantity import ZERO
from imagestore.util.quantity import Quantity as Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
HUGE_PAGES_PREFIX: Final = "hugepages-"

SYSTEM_NODE_CRITICAL: Final = "system-node-critical"
SYSTEM_CLUSTER_CRITICAL: Final = "system-cluster-critical"
#: From this priority on a pod is critical.
SYSTEM_CRITICAL_PRIORITY: Final = 2 * 10**9
_SOURCE_ANNOTATION: Final = "kubernetes.io/config.source"
_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"

_Part: TypeAlias = "Callable[[Container], Mapping[str, Quantity]]"


@dataclass(frozen=True, slots=True)
class Requirements:
    """``resources`` of a container or a pod.

    Both are mappings from resource names (``cpu``, ``memory``, ``hugepages-2Mi``, ...) to quantities.
    """

    requests: Mapping[str, Quantity] = field(default_factory=dict, hash=False)
    limits: Mapping[str, Quantity] = field(default_factory=dict, hash=False)

    def request(self, name: str) -> Quantity:
        """A request; 0 when absent."""
        return self.requests.get(name, ZERO)

    def limit(self, name: str) -> Quantity:
        """A limit; 0 when absent."""
        return self.limits.get(name, ZERO)


@dataclass(frozen=True, slots=True)
class Container:
    """A container, or an init container.

    Attributes:
        name: unique in the pod.
        resources: its requests and limits.
        is_init: runs before the pod's containers.
        is_restartable: an init container with ``restartPolicy: Always``, a sidecar.
    """

    name: str = ""
    resources: Requirements = field(default_factory=Requirements)
    is_init: bool = False
    is_restartable: bool = False

    @property
    def is_sidecar(self) -> bool:
        """Whether it starts before the containers and runs along with them."""
        return self.is_init and self.is_restartable


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, without ephemeral containers, which have no resources.

    Attributes:
        containers: at least one in a valid pod.
        init_containers: in their order; each has ``is_init``.
        resources: of the pod itself (pod-level resources), or None.
        overhead: of the sandbox, in addition to the containers, from the RuntimeClass.
        priority: as admission resolved it, or None.
        priority_class: name of the PriorityClass.
        annotations: identify static and mirror pods.
        name: for messages.
        os: operating system from ``os.name``, node selector or required node affinity; empty if none names one.
        os_source: which of these names it; see ``placement``.
        runtime_class: name of its RuntimeClass, which chooses the runtime handler.
    """

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Requirements | None = None
    overhead: Mapping[str, Quantity] = field(default_factory=dict)
    priority: int | None = None
    priority_class: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    name: str = ""
    os: str = ""
    os_source: str = ""
    runtime_class: str = ""

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """The containers, then the init containers."""
        return self.containers + self.init_containers

    @property
    def pod_level(self) -> Requirements | None:
        """The pod's own resources if they have cpu, memory or huge pages; else None."""
        own = self.resources
        if own is None or not any(is_pod_level(name) for name in (*own.requests, *own.limits)):
            return None
        return own

    @property
    def has_pod_level_requests(self) -> bool:
        """Whether the pod's own resources request cpu, memory or huge pages."""
        return self.resources is not None and any(is_pod_level(name) for name in self.resources.requests)

    @property
    def is_critical(self) -> bool:
        """Whether it is a static or mirror pod, or has a system priority.

        The class names count too, because a pod before admission has no resolved priority.
        """
        source = self.annotations.get(_SOURCE_ANNOTATION, "api")
        return (
            source != "api"
            or _MIRROR_ANNOTATION in self.annotations
            or (self.priority is not None and self.priority >= SYSTEM_CRITICAL_PRIORITY)
            or self.priority_class in (SYSTEM_NODE_CRITICAL, SYSTEM_CLUSTER_CRITICAL)
        )

    @property
    def is_node_critical(self) -> bool:
        """Whether its priority class is system-node-critical."""
        return self.priority_class == SYSTEM_NODE_CRITICAL


def is_container_level(name: str) -> bool:
    """Whether the API server accepts the resource for a container: a native one, or one with a domain prefix."""
    return name in (CPU, MEMORY, EPHEMERAL_STORAGE) or name.startswith(HUGE_PAGES_PREFIX) or "/" in name


def is_pod_level(name: str) -> bool:
    """Whether the API server accepts the resource for the pod itself."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES_PREFIX)


def with_defaults(pod: Pod) -> Pod:
    """The pod as the API server stores it: a missing request takes its limit; an explicit 0 stays.

    A missing pod-level request next to pod-level limits becomes the containers' total, else the pod-level limit.
    Huge pages aren't overcommitted: the request is the pod's limit, by default the total of its containers' limits.
    """
    filled = replace(
        pod,
        containers=tuple(_defaulted(container) for container in pod.containers),
        init_containers=tuple(_defaulted(container) for container in pod.init_containers),
    )
    own = pod.resources
    if own is None or not (own.limits or own.requests):
        return filled
    huge = {
        name: amount
        for name, amount in container_limits(filled).items()
        if name.startswith(HUGE_PAGES_PREFIX) and name not in own.requests
    }
    limits = {**huge, **own.limits}
    if not limits:
        return filled
    of_containers = {name: amount for name, amount in container_requests(filled).items() if name in (CPU, MEMORY)}
    requests = {**_pod_level(limits), **of_containers, **own.requests}
    return replace(filled, resources=Requirements(requests, limits))


def container_requests(pod: Pod) -> dict[str, Quantity]:
    """Requests of all containers together; without pod-level resources and overhead."""
    return _aggregate(pod, lambda container: container.resources.requests)


def container_limits(pod: Pod) -> dict[str, Quantity]:
    """Limits of all containers together; without pod-level resources and overhead."""
    return _aggregate(pod, lambda container: container.resources.limits)


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """The total that the scheduler reserves; also the requests of the pod's control group."""
    total = container_requests(pod)
    if pod.resources is not None:
        total.update(_pod_level(pod.resources.requests))
    _add(total, pod.overhead)
    return total


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """The limits of the pod's control group."""
    total = container_limits(pod)
    if pod.resources is not None:
        total.update(_pod_level(pod.resources.limits))
    for name, amount in pod.overhead.items():
        if name in total and not total[name].is_zero:
            total[name] += amount
    return total


def effective_limits(pod: Pod) -> Iterator[Mapping[str, Quantity]]:
    """The limits by which the kubelet decides whether every container of a pod has a limit.

    A container's own; those of an init container together with those of the sidecars before it.
    """
    for container in pod.containers:
        yield container.resources.limits
    for _, needed in _starting(pod, lambda container: container.resources.limits):
        yield needed


def _pod_level(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {name: amount for name, amount in amounts.items() if is_pod_level(name)}


def _defaulted(container: Container) -> Container:
    own = container.resources
    requests = {**own.limits, **own.requests}
    return replace(container, resources=Requirements(requests, own.limits))


def _aggregate(pod: Pod, part: _Part) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for container in pod.containers:
        _add(total, part(container))
    while_starting: dict[str, Quantity] = {}
    for container, needed in _starting(pod, part):
        if container.is_restartable:
            _add(total, part(container))
        _raise(while_starting, needed)
    _raise(total, while_starting)
    return total


def _starting(pod: Pod, part: _Part) -> Iterator[tuple[Container, Mapping[str, Quantity]]]:
    """Each init container with what is needed while it starts: by itself and the sidecars before it."""
    sidecars: dict[str, Quantity] = {}
    for container in pod.init_containers:
        if container.is_restartable:
            _add(sidecars, part(container))
            yield container, dict(sidecars)
        else:
            needed = dict(part(container))
            _add(needed, sidecars)
            yield container, needed


def _add(total: dict[str, Quantity], more: Mapping[str, Quantity]) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _raise(total: dict[str, Quantity], other: Mapping[str, Quantity]) -> None:
    for name, amount in other.items():
        if name not in total or amount > total[name]:
            total[name] = amount
