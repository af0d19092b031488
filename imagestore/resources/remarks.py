"""What is doubtful about a pod's document, though numbers can be worked out: words and amounts that mean nothing.

Rules: the API server prunes unknown members, so a slip such as ``limit`` costs the limit without an error. It warns of
amounts of bytes with a fraction, which ``128m`` is. It knows a kind in one version only. It warns of no pod that
asks for nodes which can't be.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.resources import placement
from imagestore.resources.document_members import object_in
from imagestore.resources.pod import EPHEMERAL_STORAGE, MEMORY
from imagestore.resources.workloads import VERSIONS, pod_in
from imagestore.util.known_members import Table, did_you_mean, leaves, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.resources.document_members import Document
    from imagestore.resources.pod import Pod, Requirements
    from imagestore.resources.quantity import Quantity


_AMOUNTS: Final = ("requests", "limits")
_BYTES: Final = (MEMORY, EPHEMERAL_STORAGE)
#: An amount that was probably meant in mebibytes.
_MILLI: Final = re.compile(r"\+?([1-9][0-9]{0,5})m")
_FRACTIONS: Final = {"m": "thousandth", "u": "millionth", "n": "billionth"}


def remarks(document: Document, pod: Pod) -> Iterator[str]:
    """What to say about a document.

    Args:
        document: decoded JSON.
        pod: what reading made of it.
    """
    yield from _versions(document, "$")
    found, path = pod_in(document)
    if path != "$":
        kind = document.get("kind", "object")
        yield f"{str(kind)[:100]}: the numbers are those of one pod of it, {path}"
    yield from _unknown_members(found, path)
    spec = object_in(found, "spec", path) if "spec" in found else found
    yield from placement.contradictions(placement.words(spec, path))
    yield from _fractions(pod)


def _versions(document: Document, path: str) -> Iterator[str]:
    """Versions in which no Kubernetes has the kind, of an object, and of the one in a list."""
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
            written = amount.as_written
            part = _FRACTIONS.get(written[-1:])
            suffix = f" ({written[-1]} is a {part})" if part else ""
            milli = _MILLI.fullmatch(written)
            meant = did_you_mean(f"{milli[1]}Mi" if milli else "")
            yield f"{what}.{name} is {written}, which has a fraction of a byte{suffix}{meant}"


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
