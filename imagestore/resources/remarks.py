"""What is doubtful about a pod's document, though numbers can be worked out: words and amounts that mean nothing.

Rules: the API server prunes unknown members, so a slip such as ``limit`` costs the limit without an error. It knows a
kind in one version only. No component warns of a pod that asks for nodes which can't be.
``amount_remarks`` is about amounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import imagestore.resources.placement as placement
from imagestore.resources.amount_remarks import amount_remarks
from imagestore.resources.document_members import object_in
from imagestore.resources.workloads import VERSIONS, pod_in
from imagestore.util.known_members import Table, did_you_mean, leaves, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.resources.document_members import Document
    from imagestore.resources.pod import Pod


_AMOUNTS: Final = ("requests", "limits")


def remarks(document: Document, pod: Pod, *, is_about_numbers: bool = True) -> Iterator[str]:
    """What to say about a document.

    Args:
        document: decoded JSON.
        pod: what reading made of it.
        is_about_numbers: whether they are shown; then it is said whose they are.
    """
    yield from _versions(document, "$")
    found, path = pod_in(document)
    if path != "$" and is_about_numbers:
        kind = document.get("kind", "object")
        yield f"{str(kind)[:100]}: the numbers are those of one pod of it, {path}"
    yield from _unknown_members(found, path)
    spec = object_in(found, "spec", path) if "spec" in found else found
    yield from placement.contradictions(placement.words(spec, path))
    yield from amount_remarks(pod)


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
