"""The quality-of-service class of a pod and the OOM score of its containers, as in the kubelet.

Only cpu and memory above 0 count for the class, of containers and init containers. If a pod has pod-level resources,
only those count.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.pod import CPU, MEMORY, container_requests
from imagestore.util.quantity import byte_count, quotient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.resources.pod import Container, Pod
    from imagestore.util.quantity import Quantity


class QosClass(enum.Enum):
    """Kubernetes' three classes."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


GUARANTEED_OOM_SCORE: Final = -997
BEST_EFFORT_OOM_SCORE: Final = 1000


def qos_class(pod: Pod) -> QosClass:
    """A pod's class. Missing requests aren't filled in here: the API server does that (``with_defaults``)."""
    own = pod.resources
    parts = [container.resources for container in pod.all_containers] if own is None else [own]
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    is_guaranteed = True
    for part in parts:
        _add(requests, part.requests)
        is_guaranteed = len(_add(limits, part.limits)) == 2 and is_guaranteed
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    return QosClass.GUARANTEED if is_guaranteed and requests == limits else QosClass.BURSTABLE


def oom_score_adjust(pod: Pod, container: Container, *, node_memory_bytes: int) -> int:
    """``oom_score_adj`` of a container: -1000 is never killed, 1000 first.

    A Burstable container that requests a tenth of the node's memory (its capacity) gets 900; a sidecar never more than
    the container with the smallest request.

    Raises:
        InvalidResourcesError: the pod is Burstable and the node's memory is not above 0.
    """
    if pod.is_node_critical:
        return GUARANTEED_OOM_SCORE
    qos = qos_class(pod)
    if qos is QosClass.GUARANTEED:
        return GUARANTEED_OOM_SCORE
    if qos is QosClass.BEST_EFFORT:
        return BEST_EFFORT_OOM_SCORE
    if node_memory_bytes <= 0:
        raise InvalidResourcesError(
            f"node memory {node_memory_bytes}: expected more than 0 bytes", hint="say how much memory the node has"
        )
    return _burstable_score(burstable_request(pod, container), node_memory_bytes)


def burstable_request(pod: Pod, container: Container) -> int:
    """The bytes that the score of a container in a Burstable pod is computed from.

    Its own memory request, or for a sidecar the smallest of the regular containers' if that is larger (a larger
    request means a smaller score); and its part of what the pod requests beyond its containers.
    """
    return _memory_request(counting_container(pod, container)) + remainder(pod)


def counting_container(pod: Pod, container: Container) -> Container:
    """The container whose memory request counts for the score: mostly itself, see burstable_request()."""
    if not container.is_sidecar or not pod.containers:
        return container
    least = min(pod.containers, key=_memory_request)
    return least if _memory_request(least) > _memory_request(container) else container


def _memory_request(container: Container) -> int:
    return byte_count(container.resources.request(MEMORY), "memory request")


def _burstable_score(request: int, node_memory_bytes: int) -> int:
    score = 1000 - quotient(1000 * request, node_memory_bytes)
    lowest = 1000 + GUARANTEED_OOM_SCORE
    if score < lowest:
        return lowest
    return score - 1 if score == BEST_EFFORT_OOM_SCORE else score


def remainder(pod: Pod) -> int:
    """Each container's part of the memory that the pod requests beyond its containers' requests."""
    own = pod.resources
    if own is None or not pod.has_pod_level_requests or own.request(MEMORY).is_zero:
        return 0
    of_containers = container_requests(pod).get(MEMORY)
    spoken_for = 0 if of_containers is None else byte_count(of_containers, "memory requests")
    free = byte_count(own.request(MEMORY), "pod memory request") - spoken_for
    return quotient(free, len(pod.all_containers)) if pod.all_containers else 0


def _add(total: dict[str, Quantity], more: Mapping[str, Quantity]) -> set[str]:
    """Add the resources that count for the class; return their names."""
    counted = {name: more[name] for name in (CPU, MEMORY) if name in more and more[name].sign > 0}
    for name, amount in counted.items():
        total[name] = total[name] + amount if name in total else amount
    return set(counted)
