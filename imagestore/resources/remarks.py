"""Doubtful members and amounts of a pod's document, although numbers can be computed from it.

The API server drops unknown members, so a slip such as ``limit`` removes the limit without an error. It knows each kind
in one version only. No component warns of a pod that no node can run.

Amounts that Kubernetes accepts although a unit is probably missing or wrong:

- A fraction of a byte: ``128m`` is 0.128 bytes. The API server warns of it too.
- Less than 1 MiB: Docker refuses memory limits below 6 MiB, CRI-O those below 12 MiB.
- 100 processors or more for one container: thousandths are usual (``500m``).
- More than 1 PiB: no machine has that memory or disk.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import imagestore.resources.placement as placement
from imagestore.resources.documents import VERSIONS, pod_in, spec_of
from imagestore.resources.pod import CPU, EPHEMERAL_STORAGE, MEMORY
from imagestore.util.known_members import Table, did_you_mean, leaves, unknown
from imagestore.util.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.resources.documents import Document
    from imagestore.resources.pod import Pod, Requirements

LEAST_BYTES: Final = Quantity(2**20)
MOST_BYTES: Final = Quantity(2**50)
MOST_PROCESSORS: Final = Quantity(100)
#: Below this number a unit that was left out is probably gibibytes: 8 is 8Gi, and 512 is 512Mi.
_GIBIBYTES: Final = 32
_BYTES: Final = (MEMORY, EPHEMERAL_STORAGE)
_NUMBER: Final = re.compile(r"\+?([1-9][0-9]{0,5})([a-zA-Z]{0,2})")
_FRACTIONS: Final = {"m": "thousandth", "u": "millionth", "n": "billionth"}
_AMOUNTS: Final = ("requests", "limits")


def remarks(document: Document, pod: Pod, *, is_about_numbers: bool = True) -> Iterator[str]:
    """What is doubtful about a document and the pod that was read from it.

    ``is_about_numbers``: numbers are shown, so name the pod that they belong to.
    """
    yield from _versions(document, "$")
    found = pod_in(document)
    if found.path != "$" and is_about_numbers:
        kind = document.get("kind", "object")
        yield f"{str(kind)[:100]}: the numbers are those of one pod of it, {found.path}"
    yield from _unknown_members(found.values, found.path)
    yield from placement.contradictions(placement.os_constraints(spec_of(found)))
    yield from amount_remarks(pod)


def _versions(document: Document, path: str) -> Iterator[str]:
    """An API version that doesn't have the object's kind; also for the object in a list."""
    kind, version = document.get("kind"), document.get("apiVersion")
    known = VERSIONS.get(kind.removesuffix("List")) if isinstance(kind, str) else None
    if known is not None and version is not None and version != known:
        yield f"{path}.apiVersion is {str(version)[:100]!r}: Kubernetes has {kind} in {known}"
    items = document.get("items")
    if isinstance(items, list) and items and isinstance(items[0], dict):
        yield from _versions(items[0], f"{path}.items[0]")


def _unknown_members(document: Document, path: str) -> Iterator[str]:
    table = _table(document)
    for each in unknown(document, table, path):
        above = each.path.removesuffix(f".{each.name}")
        meant = each.meant
        if each.name in _AMOUNTS:
            meant = f"resources.{each.name}"
        elif table is POD and above == path and each.name in SPEC:
            meant = f"spec.{each.name}"
        yield f"{each.path[:300]}: unknown member, passed over{did_you_mean(meant)}"


def _table(document: Document) -> Table:
    if "spec" in document:
        return POD
    if "containers" in document:
        return SPEC
    return CONTAINER if "resources" in document or "image" in document else RESOURCES


def amount_remarks(pod: Pod) -> Iterator[str]:
    """What is doubtful about the amounts of a pod; at most one remark for each amount."""
    for container in pod.all_containers:
        yield from _of(container.resources, f"container {container.name}" if container.name else "container")
    if pod.resources is not None:
        yield from _of(pod.resources, "pod")
    yield from _in(pod.overhead, "pod: overhead")


def _of(resources: Requirements, what: str) -> Iterator[str]:
    yield from _in(resources.requests, f"{what}: requests")
    yield from _in(resources.limits, f"{what}: limits")


def _in(amounts: Mapping[str, Quantity], what: str) -> Iterator[str]:
    for name in _BYTES:
        amount = amounts.get(name)
        if amount is None or amount.sign <= 0:
            continue
        problem = _fraction(amount) or _bytes(amount)
        if problem:
            yield f"{what}.{name} is {amount.as_written}, {problem}"
    processors = amounts.get(CPU)
    if processors is not None and not processors < MOST_PROCESSORS:
        yield f"{what}.{CPU} is {processors.as_written}, {_processors(processors)}"


def _fraction(amount: Quantity) -> str:
    if amount == amount.round_up(0):
        return ""
    written = amount.as_written
    part = _FRACTIONS.get(written[-1:])
    suffix = f" ({written[-1]} is a {part})" if part else ""
    return f"which has a fraction of a byte{suffix}{did_you_mean(_meant(amount, 'm', 'Mi'))}"


def _bytes(amount: Quantity) -> str:
    if amount > MOST_BYTES:
        return "more than any machine has"
    if not amount < LEAST_BYTES:
        return ""
    bare = _meant(amount, "", "")
    if bare:
        meant = f"{bare}{'Gi' if int(bare) < _GIBIBYTES else 'Mi'}"
        return f"which is bytes without a unit{did_you_mean(meant)}"
    meant = next(filter(None, (_meant(amount, unit, "Mi") for unit in ("m", "k", "Ki"))), "")
    return f"less than 1Mi{did_you_mean(meant)}"


def _processors(amount: Quantity) -> str:
    if bare := _meant(amount, "", "m"):
        return f"which is whole processors without a unit{did_you_mean(bare)}"
    return f"more than a container can use{did_you_mean(_meant(amount, 'M', 'm'))}"  # M is a million, m a thousandth


def _meant(amount: Quantity, written: str, instead: str) -> str:
    """The amount with the unit ``instead``; empty unless its unit is ``written``."""
    found = _NUMBER.fullmatch(amount.as_written)
    return f"{found[1]}{instead}" if found is not None and found[2] == written else ""


RESOURCES: Final[Table] = {**leaves("limits requests"), "claims": [leaves("name request")]}
CONTAINER: Final[Table] = {
    **leaves(
        """
        args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy
        restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath
        terminationMessagePolicy tty volumeDevices volumeMounts workingDir
        """
    ),
    "resources": RESOURCES,
}
_REQUIREMENT: Final = leaves("key operator values")
_TERM: Final[Table] = {"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}
_NODE_AFFINITY: Final[Table] = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]},
    "preferredDuringSchedulingIgnoredDuringExecution": [{"preference": _TERM, "weight": None}],
}
SPEC: Final[Table] = {
    **leaves(
        """
        activeDeadlineSeconds automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks hostAliases hostIPC
        hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets nodeName nodeSelector overhead
        preemptionPolicy priority priorityClassName readinessGates resourceClaims restartPolicy runtimeClassName
        schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName
        setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
        topologySpreadConstraints volumes workloadRef
        """
    ),
    "affinity": {**leaves("podAffinity podAntiAffinity"), "nodeAffinity": _NODE_AFFINITY},
    "containers": [CONTAINER],
    "ephemeralContainers": [{**CONTAINER, "targetContainerName": None}],
    "initContainers": [CONTAINER],
    "os": leaves("name"),
    "resources": RESOURCES,
}
_METADATA: Final = leaves(
    """
    annotations clusterName creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
    generation labels managedFields name namespace ownerReferences resourceVersion selfLink uid
    """
)
POD: Final[Table] = {**leaves("apiVersion kind status"), "metadata": _METADATA, "spec": SPEC}
