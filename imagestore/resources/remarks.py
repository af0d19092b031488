"""What is doubtful about a pod's document, though numbers can be worked out: members and amounts that mean nothing.

Rules: the API server prunes unknown members, so a slip such as ``limit`` costs the limit without an error. It warns of
amounts of bytes with a fraction, which ``128m`` is. Only members that could be meant for one that changes a number are
named: every other member is passed over.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from imagestore.resources.quantity import MILLI
from imagestore.resources.spec import EPHEMERAL_STORAGE, MEMORY
from imagestore.resources.workloads import pod_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from imagestore.resources.quantity import Quantity
    from imagestore.resources.spec import Pod, Requirements
    from imagestore.resources.workloads import Document

_AMOUNTS: Final = ("requests", "limits")
_RESOURCES: Final = (*_AMOUNTS, "claims")
#: Members of a container, and of a pod's spec, that change numbers.
_OF_CONTAINER: Final = ("resources", "restartPolicy")
_OF_SPEC: Final = (
    *("containers", "initContainers", "nodeSelector", "os", "overhead", "priority", "priorityClassName"),
    *("resources", "runtimeClassName"),
)
#: Other members of core/v1 whose names are near to one of those.
_OTHERS: Final = {
    *("resizePolicy", "restartPolicyRules", "restartPolicy", "resourceClaims", "ephemeralContainers", "nodeName"),
    *("preemptionPolicy", "dnsPolicy"),
}
_NEAR: Final = 0.75
_BYTES: Final = (MEMORY, EPHEMERAL_STORAGE)
_MEBIBYTES_MEANT: Final = 1_000_000


def remarks(document: Document, pod: Pod) -> Iterator[str]:
    """What to say about a document.

    Args:
        document: decoded JSON.
        pod: what reading made of it.
    """
    found, path = pod_in(document)
    if path != "$":
        kind = document.get("kind", "object")
        yield f"{str(kind)[:100]}: the numbers are those of one pod of it, {path}"
    yield from _unknown_members(found, path)
    yield from _fractions(pod)


def _unknown_members(document: Document, path: str) -> Iterator[str]:
    if "spec" in document:
        yield from _of_spec(document["spec"], f"{path}.spec")
    elif "containers" in document:
        yield from _of_spec(document, path)
    elif "resources" in document or "image" in document:
        yield from _of_container(document, path)
    else:
        yield from _of_resources(document, path)


def _of_spec(spec: object, path: str) -> Iterator[str]:
    if not isinstance(spec, dict):
        return
    yield from _near(spec, _OF_SPEC, path)
    yield from _of_resources(spec.get("resources"), f"{path}.resources")
    for name in ("initContainers", "containers"):
        containers = spec.get(name)
        for number, each in enumerate(containers if isinstance(containers, list) else ()):
            yield from _of_container(each, f"{path}.{name}[{number}]")


def _of_container(container: object, path: str) -> Iterator[str]:
    if isinstance(container, dict):
        yield from _near(container, _OF_CONTAINER, path)
        yield from _of_resources(container.get("resources"), f"{path}.resources")


def _of_resources(resources: object, path: str) -> Iterator[str]:
    for name in resources if isinstance(resources, dict) else ():
        if name not in _RESOURCES:
            yield _unknown(f"{path}.{name}", _nearest(name, _RESOURCES))


def _near(value: Document, known: tuple[str, ...], path: str) -> Iterator[str]:
    """Members that are none, and were probably meant for one that counts here."""
    for name in value:
        if name in known or name in _OTHERS:
            continue
        if name in _AMOUNTS:
            yield _unknown(f"{path}.{name}", f"resources.{name}")
        elif meant := _nearest(name, known):
            yield _unknown(f"{path}.{name}", meant)


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_NEAR)
    return by_lower[found[0]] if found else ""


def _unknown(path: str, meant: str) -> str:
    return f"{path[:300]}: unknown member, passed over" + (f"; did you mean {meant}?" if meant else "")


def _fractions(pod: Pod) -> Iterator[str]:
    for container in pod.all_containers:
        yield from _fractions_of(container.resources, f"container {container.name}" if container.name else "container")
    if pod.resources is not None:
        yield from _fractions_of(pod.resources, "pod")
    yield from _fractions_in(pod.overhead, "pod: overhead")


def _fractions_of(resources: Requirements, what: str) -> Iterator[str]:
    yield from _fractions_in(resources.requests, f"{what}: requests")
    yield from _fractions_in(resources.limits, f"{what}: limits")


def _fractions_in(amounts: Mapping[str, Quantity], what: str) -> Iterator[str]:
    for name in _BYTES:
        amount = amounts.get(name)
        if amount is not None and amount != amount.round_up(0):
            thousandths = amount.scaled(MILLI)
            meant = f"; did you mean {thousandths}Mi?" if 0 < thousandths < _MEBIBYTES_MEANT else ""
            yield f"{what}.{name} is {amount}, which has a fraction of a byte (m is a thousandth){meant}"
