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
from imagestore.resources.documents import Document, object_in, objects_in, pod_in, text_in, wrong
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
    document, path = pod_in(document)
    if "spec" in document:
        metadata = object_in(document, "metadata", path)
        return _pod(object_in(document, "spec", path), metadata, f"{path}.spec")
    if "containers" in document:
        return _pod(document, {}, path)
    if "resources" in document or "image" in document:
        return Pod((_container(document, path, is_init=False),))
    if "requests" in document or "limits" in document:
        return Pod((Container(resources=_requirements(document, path)),))
    known = ("spec", "containers", "resources", "requests", "limits")
    slips = ((name, nearest(name, known)) for name in document)
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


def _pod(spec: Document, metadata: Document, path: str) -> Pod:
    priority = spec.get("priority")
    if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
        raise wrong(f"{path}.priority", "an integer", priority)
    given = object_in(metadata, "annotations", "$.metadata")
    annotations = {name: text_in(given, name, "$.metadata.annotations") for name in given}
    os, os_source = placement.required_os(placement.os_constraints(spec, path))
    return Pod(
        containers=_containers(spec, "containers", path, is_init=False),
        init_containers=_containers(spec, "initContainers", path, is_init=True),
        resources=None if spec.get("resources") is None else _requirements(object_in(spec, "resources", path), path),
        overhead=_amounts(object_in(spec, "overhead", path), f"{path}.overhead"),
        priority=priority,
        priority_class=text_in(spec, "priorityClassName", path),
        annotations=annotations,
        name=text_in(metadata, "name", "$.metadata"),
        os=os,
        os_source=os_source,
        runtime_class=text_in(spec, "runtimeClassName", path),
    )


def _containers(spec: Document, name: str, path: str, *, is_init: bool) -> tuple[Container, ...]:
    found = objects_in(spec, name, path)
    if len(found) > MAXIMUM_CONTAINERS:
        raise InvalidResourcesError(f"{path}.{name}: {len(found)} containers, more than {MAXIMUM_CONTAINERS}")
    return tuple(_container(item, f"{path}.{name}[{number}]", is_init=is_init) for number, item in enumerate(found))


def _container(document: Document, path: str, *, is_init: bool) -> Container:
    return Container(
        name=text_in(document, "name", path),
        resources=_requirements(object_in(document, "resources", path), f"{path}.resources"),
        is_init=is_init,
        is_restartable=text_in(document, "restartPolicy", path) == "Always",
    )


def _requirements(document: Document, path: str) -> Requirements:
    return Requirements(
        _amounts(object_in(document, "requests", path), f"{path}.requests"),
        _amounts(object_in(document, "limits", path), f"{path}.limits"),
    )


def _amounts(document: Document, path: str) -> Mapping[str, Quantity]:
    found: dict[str, Quantity] = {}
    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise wrong(f"{path}.{name}", "a quantity", value)
        try:
            stored = from_json(value).round_up(MILLI)  # as the API server does
            found[name] = replace(stored, written="" if value is None else str(value).strip())
        except InvalidQuantityError as error:
            raise InvalidQuantityError(error.text, f"{path}.{name}: {error.reason}", hint=error.hint) from error
    return found
