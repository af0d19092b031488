"""What a pod asks for: requests and limits of its containers and of itself, and the little else that counts here.

The names are those of Kubernetes' core/v1 API. Requests and limits are mappings from resource names (``cpu``,
``memory``, ``hugepages-2Mi``, ...) to quantities. Whether a key exists matters: a request of 0 is kept, a missing one
takes the limit's place when defaults are filled in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.resources.quantity import ZERO, Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@dataclass(frozen=True, slots=True)
class Requirements:
    """``resources`` of a container or a pod.

    Attributes:
        requests: what must be there.
        limits: what must not be exceeded.
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
    """A pod. Ephemeral containers have no resources, so they don't occur.

    Attributes:
        containers: at least one in a valid pod.
        init_containers: in their order; each has ``is_init``.
        resources: of the pod itself (pod-level resources), or None.
        overhead: what the sandbox takes besides the containers, from the RuntimeClass.
        priority: as admission resolved it, or None.
        priority_class: name of the PriorityClass.
        annotations: tell static and mirror pods.
        name: for messages.
        os: operating system that its spec (``os.name``), or else its node selector or required node affinity, names;
            empty where none does.
        os_source: which of these does; see ``placement``.
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
        """The pod's own resources if they name anything that a pod can have: cpu, memory, huge pages."""
        own = self.resources
        if own is None or not any(is_pod_level(name) for name in (*own.requests, *own.limits)):
            return None
        return own

    @property
    def has_pod_level_requests(self) -> bool:
        """Whether the pod's own resources have a request that a pod can have."""
        return self.resources is not None and any(is_pod_level(name) for name in self.resources.requests)

    @property
    def is_critical(self) -> bool:
        """Whether it is a static or mirror pod, or has the priority of the system's own pods.

        The class names count too, so that a pod is judged right before admission has resolved its priority.
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
        """Whether the node can't do without it."""
        return self.priority_class == SYSTEM_NODE_CRITICAL


def is_container_level(name: str) -> bool:
    """Whether the API server knows this as a resource of a container: its own ones, or one with a domain in front."""
    return name in (CPU, MEMORY, EPHEMERAL_STORAGE) or name.startswith(HUGE_PAGES_PREFIX) or "/" in name


def is_pod_level(name: str) -> bool:
    """Whether a pod itself can have this resource."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES_PREFIX)
