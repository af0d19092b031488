"""The pod in a document: a pod itself, or the template of an object that makes pods (Deployment, Job, CronJob, ...).

Rule: an object that names its ``kind`` is what that says. Those that are no pods keep one under ``spec.template``, a
CronJob under ``spec.jobTemplate.spec.template``, a PodTemplate under ``template``. A list of one object, as ``kubectl
get`` prints it, is that object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.util.known_members import did_you_mean, nearest

if TYPE_CHECKING:
    from imagestore.resources.document_members import Document

_TEMPLATES: Final = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ("template",))
#: Kubernetes' own kinds with pods in them, with the version that has each.
VERSIONS: Final = {
    **dict.fromkeys(("Pod", "PodTemplate", "ReplicationController"), "v1"),
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), "apps/v1"),
    **dict.fromkeys(("Job", "CronJob"), "batch/v1"),
    "": "v1",  # List
}
_HINT: Final = "give a pod, or an object with a pod template, such as a Deployment"


def pod_in(document: Document) -> tuple[Document, str]:
    """The object that is a pod, or its parts, with its path.

    Args:
        document: decoded JSON.

    Raises:
        InvalidResourcesError: it is another kind of object, or several.

    >>> pod_in({"kind": "Job", "spec": {"template": {"spec": {"containers": []}}}})
    ({'spec': {'containers': []}}, '$.spec.template')
    """
    kind, items = document.get("kind"), document.get("items")
    if isinstance(items, list) and isinstance(kind, str) and kind.endswith("List"):
        if len(items) != 1 or not isinstance(items[0], dict):
            raise InvalidResourcesError(f"{kind[:100]}: expected one object, found {len(items)}", hint=_HINT)
        found, path = pod_in(items[0])
        return found, f"$.items[0]{path.removeprefix('$')}"
    if kind == "Pod":
        return document, "$"
    for names in _TEMPLATES:
        found = _inside(document, names)
        if isinstance(found.get("spec"), dict):
            return found, ".".join(("$", *names))
    if kind is not None:
        told = f"kind {str(kind)[:100]!r} is no pod, and has no pod template{_slip(document)}"
        raise InvalidResourcesError(told, hint=_HINT)
    return document, "$"


def _slip(document: Document) -> str:
    """What may have kept the pod from being found: a slip in the kind, or in a member on the way to the template."""
    kind = str(document.get("kind"))
    if kind not in VERSIONS:
        return did_you_mean(nearest(kind, filter(None, VERSIONS)))
    for names in _TEMPLATES:
        level = document
        for depth, name in enumerate(names):
            if name in level:
                level = _inside(level, (name,))
            elif found := nearest(name, level):
                return f"; unknown member {'.'.join(('$', *names[:depth], found))[:200]}{did_you_mean(name)}"
            else:
                break
    return ""


def _inside(document: Document, names: tuple[str, ...]) -> Document:
    for name in names:
        inner = document.get(name)
        if not isinstance(inner, dict):
            return {}
        document = inner
    return document
