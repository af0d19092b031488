"""What a whole pod asks for, and the requests it gets by default.

Totals follow Kubernetes' rule for sidecars (KEP-753): containers and sidecars add up; an ordinary init container needs
itself and the sidecars that started before it; the larger of both counts, for each resource. Pod-level resources
replace the total of each resource they name (KEP-2837). The overhead of the sandbox is added at the end, to limits only
where there is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from imagestore.resources.pod import HUGE_PAGES_PREFIX, Requirements, is_pod_level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from imagestore.resources.pod import Container, Pod
    from imagestore.resources.quantity import Quantity

_Part: TypeAlias = "Callable[[Container], Mapping[str, Quantity]]"


def with_defaults(pod: Pod) -> Pod:
    """The pod as the API server stores it: a missing request takes its limit; an explicit 0 stays.

    A pod-level request that is missing next to pod-level limits takes the containers' total, else the pod-level limit.
    Huge pages aren't overcommitted: the pod's limit, by default what its containers may have, is its request.
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
    of_containers = {
        name: amount
        for name, amount in container_requests(filled).items()
        if is_pod_level(name) and not name.startswith(HUGE_PAGES_PREFIX)
    }
    by_limit = {name: amount for name, amount in limits.items() if is_pod_level(name)}
    requests = {**by_limit, **of_containers, **own.requests}
    return replace(filled, resources=Requirements(dict(requests), dict(limits)))


def container_requests(pod: Pod) -> dict[str, Quantity]:
    """Requests of all containers together; without pod-level resources and overhead."""
    return _aggregate(pod, lambda container: container.resources.requests)


def container_limits(pod: Pod) -> dict[str, Quantity]:
    """Limits of all containers together; without pod-level resources and overhead."""
    return _aggregate(pod, lambda container: container.resources.limits)


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """What the scheduler reserves and the pod's cgroup is sized by."""
    total = container_requests(pod)
    if pod.has_pod_level_requests and pod.resources is not None:
        total.update({name: amount for name, amount in pod.resources.requests.items() if is_pod_level(name)})
    _add(total, pod.overhead)
    return total


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """What the pod must not exceed."""
    total = container_limits(pod)
    own = pod.pod_level
    if own is not None:
        total.update({name: amount for name, amount in own.limits.items() if is_pod_level(name)})
    for name, amount in pod.overhead.items():
        if name in total and not total[name].is_zero:
            total[name] += amount
    return total


def effective_limits(pod: Pod) -> Iterator[Mapping[str, Quantity]]:
    """The limits that count for each container: its own; an init container's with those of the sidecars before it.

    The kubelet asks these, not the container's own, whether every container of a pod has a limit.
    """
    for container in pod.containers:
        yield container.resources.limits
    for _, needed in _starting(pod, lambda container: container.resources.limits):
        yield needed


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
