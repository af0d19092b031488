"""A pod, a pod's spec, a container or bare ``resources``, from decoded JSON; and what the API server would refuse.

Only what changes a number is read; every other member is passed over, as the kubelet would have had it validated. A
quantity of null is one of 0: the API server stores it so, and doesn't take it for a missing one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidQuantityError, InvalidResourcesError
from imagestore.resources import huge_pages
from imagestore.resources.quantity import MILLI, Quantity, from_json
from imagestore.resources.spec import (
    CPU,
    HUGE_PAGES_PREFIX,
    MEMORY,
    Container,
    Pod,
    Requirements,
    is_container_level,
    is_pod_level,
)
from imagestore.resources.totals import container_requests, with_defaults
from imagestore.resources.workloads import pod_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.resources.workloads import Document

MAXIMUM_CONTAINERS: Final = 1000
OPERATING_SYSTEMS: Final = ("linux", "windows")


def pod_from_json(document: Document) -> Pod:
    """Read a pod (``spec``), its spec (``containers``), one container, or its ``requests`` and ``limits`` alone.

    Of an object with a pod template, such as a Deployment, the template's pod is read.

    Args:
        document: decoded JSON.

    Raises:
        InvalidResourcesError: a member has another type than Kubernetes' API says, nothing of a pod is there, or the
            object is of another kind.
        InvalidQuantityError: a quantity can't be read.

    >>> pod_from_json({"limits": {"cpu": "500m"}}).containers[0].resources.limit("cpu").milli_value()
    500
    """
    document, path = pod_in(document)
    if "spec" in document:
        metadata = _object(document, "metadata", path)
        return _pod(_object(document, "spec", path), metadata, f"{path}.spec")
    if "containers" in document:
        return _pod(document, {}, path)
    if "resources" in document or "image" in document:
        return Pod((_container(document, path, is_init=False),))
    if "requests" in document or "limits" in document:
        return Pod((Container(resources=_requirements(document, path)),))
    raise InvalidResourcesError(
        "document: expected a pod, a pod spec, a container or its resources",
        hint="it needs one of the members spec, containers, resources, requests and limits",
    )


def faults(pod: Pod) -> Iterator[str]:
    """What the API server would refuse: negative quantities, requests above limits, huge pages that can't be had.

    Huge pages are overcommitted nowhere, come in whole pages, and only beside cpu or memory.

    Args:
        pod: before or after defaults were filled in, which may bring further ones.
    """
    if pod.os and pod.os not in OPERATING_SYSTEMS:
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
        yield from _faults_beside_containers(pod, pod.resources)


def _faults_beside_containers(pod: Pod, own: Requirements) -> Iterator[str]:
    """The pod must ask for what its containers ask for together, and none of these may have more than it."""
    for name, amount in container_requests(with_defaults(pod)).items():
        if name in own.requests and amount > own.requests[name]:
            yield f"pod: requests.{name} is {own.requests[name]}, less than its containers' {amount}"
    for number, container in enumerate(pod.containers):
        for name, amount in container.resources.limits.items():
            if name in own.limits and amount > own.limits[name]:
                what = f"container {container.name or number}"
                yield f"{what}: limits.{name} is {amount}, more than its pod's {own.limits[name]}"


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
            yield f"{what}: requests.{name} is {amount}, more than its limit {limit}"
        if name.startswith(HUGE_PAGES_PREFIX) and limit != amount:
            yield f"{what}: requests.{name} is {amount}, expected the limit, {limit or 'which is missing'}"


def _faults_of_amounts(parts: Mapping[str, Mapping[str, Quantity]], what: str) -> Iterator[str]:
    alone = ""
    for part, amounts in parts.items():
        for name, amount in amounts.items():
            is_huge = name.startswith(HUGE_PAGES_PREFIX)
            expected = "0 or more" if amount.sign < 0 else huge_pages.expected(name, amount) if is_huge else ""
            if expected:
                yield f"{what}: {part}.{name} is {amount}, expected {expected}"
            if is_huge and not alone:
                alone = f"{what}: {part}.{name} has neither cpu nor memory beside it, expected one of them too"
    if alone and not any(name in amounts for amounts in parts.values() for name in (CPU, MEMORY)):
        yield alone


def _pod(spec: Document, metadata: Document, path: str) -> Pod:
    priority = spec.get("priority")
    if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
        raise _wrong(f"{path}.priority", "an integer", priority)
    given = _object(metadata, "annotations", "$.metadata")
    annotations = {name: _text(given, name, "$.metadata.annotations") for name in given}
    system = _text(_object(spec, "os", path), "name", f"{path}.os")
    return Pod(
        containers=_containers(spec, "containers", path, is_init=False),
        init_containers=_containers(spec, "initContainers", path, is_init=True),
        resources=None if spec.get("resources") is None else _requirements(_object(spec, "resources", path), path),
        overhead=_amounts(_object(spec, "overhead", path), f"{path}.overhead"),
        priority=priority,
        priority_class=_text(spec, "priorityClassName", path),
        annotations=dict(annotations),
        name=_text(metadata, "name", "$.metadata"),
        os=system or _selected_os(_object(spec, "nodeSelector", path)),
        runtime_class=_text(spec, "runtimeClassName", path),
    )


def _selected_os(selector: Document) -> str:
    """The operating system of the nodes that a selector allows, if it is one that pods can have."""
    found = selector.get("kubernetes.io/os")
    return found if isinstance(found, str) and found in OPERATING_SYSTEMS else ""


def _containers(spec: Document, name: str, path: str, *, is_init: bool) -> tuple[Container, ...]:
    value = spec.get(name) or []
    if not isinstance(value, list):
        raise _wrong(f"{path}.{name}", "an array", value)
    if len(value) > MAXIMUM_CONTAINERS:
        raise InvalidResourcesError(f"{path}.{name}: {len(value)} containers, more than {MAXIMUM_CONTAINERS}")
    found = []
    for number, item in enumerate(value):
        here = f"{path}.{name}[{number}]"
        if not isinstance(item, dict):
            raise _wrong(here, "an object", item)
        found.append(_container(item, here, is_init=is_init))
    return tuple(found)


def _container(document: Document, path: str, *, is_init: bool) -> Container:
    return Container(
        name=_text(document, "name", path),
        resources=_requirements(_object(document, "resources", path), f"{path}.resources"),
        is_init=is_init,
        is_restartable=_text(document, "restartPolicy", path) == "Always",
    )


def _requirements(document: Document, path: str) -> Requirements:
    return Requirements(
        _amounts(_object(document, "requests", path), f"{path}.requests"),
        _amounts(_object(document, "limits", path), f"{path}.limits"),
    )


def _amounts(document: Document, path: str) -> Mapping[str, Quantity]:
    found: dict[str, Quantity] = {}
    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise _wrong(f"{path}.{name}", "a quantity", value)
        try:
            found[name] = from_json(value).round_up(MILLI)  # as the API server stores it
        except InvalidQuantityError as error:
            raise InvalidQuantityError(error.text, f"{path}.{name}: {error.reason}", hint=error.hint) from error
    return dict(found)


def _object(document: Document, name: str, path: str) -> Document:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(f"{path}.{name}", "an object", value)
    return value


def _text(document: Document, name: str, path: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(f"{path}.{name}", "a string", value)
    return value


def _wrong(path: str, expected: str, found: object) -> InvalidResourcesError:
    return InvalidResourcesError(f"{path}: expected {expected}, found {type(found).__name__}")
