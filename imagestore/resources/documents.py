"""Decoded Kubernetes objects: members of the API's type, and the pod in an object that makes pods (Deployment, Job).

Rule: an object that has a ``kind`` is of that kind. Kinds that make pods have a pod template in ``spec.template``, a
CronJob in ``spec.jobTemplate.spec.template``, a PodTemplate in ``template``. A list of one object, as ``kubectl get``
prints it, counts as that object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from imagestore.errors import InvalidResourcesError
from imagestore.util.known_members import did_you_mean, nearest
from imagestore.util.members import Members, without_lists

Document: TypeAlias = Mapping[str, object]

_TEMPLATES: Final = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ("template",))
#: Kubernetes' own kinds with pods in them, with the version that has each.
VERSIONS: Final = {
    **dict.fromkeys(("Pod", "PodTemplate", "ReplicationController"), "v1"),
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), "apps/v1"),
    **dict.fromkeys(("Job", "CronJob"), "batch/v1"),
    "": "v1",  # List
}
_HINT: Final = "give a pod, or an object with a pod template, such as a Deployment"


def members_of(document: object, path: str = "$") -> Members:
    """The members of an object of Kubernetes' API; InvalidResourcesError for one of another type than there."""
    return Members(document, path, wrong)


def wrong(path: str, text: str) -> InvalidResourcesError:
    """The error about a member."""
    return InvalidResourcesError(f"{path}: {text}")


def spec_of(pod: Members) -> Members:
    """The spec of a pod; the object itself if it has none."""
    return pod.object("spec") if "spec" in pod.values else pod


def pod_in(document: Document, path: str = "$") -> Members:
    """The object that is a pod or part of one, in a document at this path.

    Raises:
        InvalidResourcesError: the document is another kind of object, or a list of several.

    >>> pod_in({"kind": "Job", "spec": {"template": {"spec": {"containers": []}}}}).path
    '$.spec.template'
    """
    kind, items = document.get("kind"), document.get("items")
    if isinstance(items, list) and isinstance(kind, str) and kind.endswith("List"):
        if len(items) != 1 or not isinstance(items[0], dict):
            raise InvalidResourcesError(f"{kind[:100]}: expected one object, found {len(items)}", hint=_HINT)
        return pod_in(items[0], f"{path}.items[0]")
    if kind == "Pod":
        return members_of(document, path)
    for names in _TEMPLATES:
        found = _inside(document, names)
        if isinstance(found.get("spec"), dict):
            return members_of(found, ".".join((path, *names)))
    if kind is not None:
        fault = f"kind {str(kind)[:100]!r} is no pod, and has no pod template{_slip(document)}"
        raise InvalidResourcesError(fault, hint=_HINT)
    return members_of(document, path)


def objects_of(documents: Sequence[Document]) -> list[Document]:
    """The objects of one file, those of lists too.

    Raises:
        InvalidResourcesError: an item isn't an object.
    """
    return [members_of(each, "item of a list").values for each in without_lists(documents)]


def is_passed_over(document: Document) -> bool:
    """Whether an object has a kind without pods, such as a Service; a misspelled kind with pods doesn't count."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind in VERSIONS or nearest(kind, filter(None, VERSIONS)):
        return False
    return not any(isinstance(_inside(document, names).get("spec"), dict) for names in _TEMPLATES)


def name_of(document: Document) -> str:
    """Kind and name of an object, for messages; empty if it has neither.

    >>> name_of({"kind": "Deployment", "metadata": {"name": "web"}})
    'Deployment web'
    """
    metadata = document.get("metadata")
    named = (document.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None)
    return " ".join(each[:100] for each in named if isinstance(each, str))


def _slip(document: Document) -> str:
    """A hint why no pod was found: a misspelled kind, or a misspelled member on the path to the template."""
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
