"""A pod, a pod's spec, a container or bare ``resources`` from decoded JSON, and what the API server would refuse.

Only members that affect resources are read and checked. A quantity of null is 0, not a missing one, as in the API
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import imagestore.resources.hugepages as hugepages
import imagestore.resources.placement as placement
from imagestore.errors import InvalidQuantityError, InvalidResourcesError
from imagestore.resources.documents import Document, members_of, pod_in
from imagestore.resources.pod import (
    CPU,
    HUGE_PAGES_PREFIX,
    MEMORY,
    Container,
    Pod,
    Requirements,
    container_requests,
    is_container_level,
    is_pod_level,
    with_defaults,
)
from imagestore.util.known_members import did_you_mean, nearest
from imagestore.util.members import Members, kind_of
from imagestore.util.quantity import MILLI, Quantity, from_json

if TYPE_CHECKING:
    from collections.abc import Iterator


MAXIMUM_CONTAINERS: Final = 1000


def pod_from_json(document: Document) -> Pod:
    """Read a pod (``spec``), its spec (``containers``), one container, or its ``requests`` and ``limits`` alone.

    For an object with a pod template, such as a Deployment, the template's pod is read.

    Raises:
        InvalidResourcesError: a member has another type than in Kubernetes' API, or the document has no pod.
        InvalidQuantityError: a quantity can't be read.

    >>> pod_from_json({"limits": {"cpu": "500m"}}).containers[0].resources.limit("cpu").milli_value()
    500
    """
    found = pod_in(document)
    names = found.values
    if "spec" in names:
        return _pod(found.object("spec"), found.object("metadata"))
    if "containers" in names:
        return _pod(found, members_of(None))
    if "resources" in names or "image" in names:
        return Pod((_container(found, is_init=False),))
    if "requests" in names or "limits" in names:
        return Pod((Container(resources=_requirements(found)),))
    known = ("spec", "containers", "resources", "requests", "limits")
    slips = ((name, nearest(name, known)) for name in names)
    slip = next((f"; {name[:100]!r} is none{did_you_mean(meant)}" for name, meant in slips if meant), "")
    raise InvalidResourcesError(
        f"document: expected a pod, a pod spec, a container or its resources{slip}",
        hint="it needs one of the members spec, containers, resources, requests and limits",
    )


def faults(pod: Pod) -> Iterator[str]:
    """What the API server would refuse: negative quantities, requests above limits, impossible huge pages.

    Huge pages can't be overcommitted, come in whole pages, and only next to cpu or memory. Filling in defaults may add
    faults.
    """
    if pod.os and pod.os not in placement.OPERATING_SYSTEMS:
        yield f"pod: os.name is {pod.os[:100]!r}, expected linux or windows"
    for kind, containers in (("container", pod.containers), ("init container", pod.init_containers)):
        for number, container in enumerate(containers):
            yield from _faults_of(container.resources, f"{kind} {container.name or number}")
            for name in {**container.resources.requests, **container.resources.limits}:
                if not is_container_level(name):
                    known = "cpu, memory, ephemeral-storage, hugepages-SIZE or a name with a domain"
                    yield f"{kind} {container.name or number}: {name[:100]!r} is no resource, expected {known}"
    yield from _faults_of_amounts({"overhead": pod.overhead}, "pod")
    if pod.resources is not None:
        yield from _faults_of(pod.resources, "pod")
        for name in {**pod.resources.requests, **pod.resources.limits}:
            if not is_pod_level(name):
                yield f"pod: {name} can't be a resource of the pod itself, only of its containers"
        yield from _faults_of_pod_level(pod, pod.resources)


def _faults_of_pod_level(pod: Pod, own: Requirements) -> Iterator[str]:
    """A pod must request at least the total of its containers, and no container may have a higher limit than it."""
    for name, amount in container_requests(with_defaults(pod)).items():
        if name in own.requests and amount > own.requests[name]:
            yield f"pod: requests.{name} is {own.requests[name].as_written}, less than its containers' {amount}"
    for number, container in enumerate(pod.containers):
        for name, amount in container.resources.limits.items():
            if name in own.limits and amount > own.limits[name]:
                what = f"container {container.name or number}"
                yield f"{what}: limits.{name} is {amount.as_written}, more than its pod's {own.limits[name].as_written}"


def check(pod: Pod) -> None:
    """Refuse what the API server would refuse.

    Raises:
        InvalidResourcesError: names the first fault, and how many more there are.
    """
    found = list(faults(pod))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InvalidResourcesError(found[0] + more, hint="Kubernetes' API server would refuse this pod")


def _faults_of(resources: Requirements, what: str) -> Iterator[str]:
    yield from _faults_of_amounts({"requests": resources.requests, "limits": resources.limits}, what)
    for name, amount in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and amount > limit:
            yield f"{what}: requests.{name} is {amount.as_written}, more than its limit {limit.as_written}"
        if name.startswith(HUGE_PAGES_PREFIX) and limit != amount:
            wanted = "which is missing" if limit is None else limit.as_written
            yield f"{what}: requests.{name} is {amount.as_written}, expected the limit, {wanted}"


def _faults_of_amounts(parts: Mapping[str, Mapping[str, Quantity]], what: str) -> Iterator[str]:
    alone = ""
    for part, amounts in parts.items():
        for name, amount in amounts.items():
            is_huge = name.startswith(HUGE_PAGES_PREFIX)
            expected = "0 or more" if amount.sign < 0 else hugepages.expected(name, amount) if is_huge else ""
            if expected:
                yield f"{what}: {part}.{name} is {amount.as_written}, expected {expected}"
            if is_huge and not alone:
                alone = f"{what}: {part}.{name} has neither cpu nor memory next to it, expected one of them too"
    if alone and not any(name in amounts for amounts in parts.values() for name in (CPU, MEMORY)):
        yield alone


def _pod(spec: Members, metadata: Members) -> Pod:
    os, os_source = placement.required_os(placement.os_constraints(spec))
    return Pod(
        containers=_containers(spec, "containers", is_init=False),
        init_containers=_containers(spec, "initContainers", is_init=True),
        resources=_requirements(spec.object("resources")) if "resources" in spec else None,
        overhead=_amounts(spec.object("overhead")),
        priority=spec.integer("priority"),
        priority_class=spec.text("priorityClassName"),
        annotations=metadata.labels("annotations"),
        name=metadata.text("name"),
        os=os,
        os_source=os_source,
        runtime_class=spec.text("runtimeClassName"),
    )


def _containers(spec: Members, name: str, *, is_init: bool) -> tuple[Container, ...]:
    return tuple(_container(each, is_init=is_init) for each in spec.objects(name, MAXIMUM_CONTAINERS))


def _container(found: Members, *, is_init: bool) -> Container:
    return Container(
        name=found.text("name"),
        resources=_requirements(found.object("resources")),
        is_init=is_init,
        is_restartable=found.text("restartPolicy") == "Always",
    )


def _requirements(found: Members) -> Requirements:
    return Requirements(_amounts(found.object("requests")), _amounts(found.object("limits")))


def _amounts(given: Members) -> Mapping[str, Quantity]:
    found: dict[str, Quantity] = {}
    for name, value in given.values.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            given.refuse(name, f"expected a quantity, got {kind_of(value)}")
        try:
            stored = from_json(value).round_up(MILLI)  # as the API server does
            found[name] = replace(stored, written="" if value is None else str(value).strip())
        except InvalidQuantityError as error:
            raise InvalidQuantityError(error.text, f"{given.at(name)}: {error.reason}", hint=error.hint) from error
    return found
