"""The pod in a document: a pod itself, or the template of an object that makes pods (Deployment, Job, CronJob, ...).

Rule: an object that names its ``kind`` is what that says. Those that are no pods keep one under ``spec.template``, a
CronJob under ``spec.jobTemplate.spec.template``, a PodTemplate under ``template``. A list of one object, as ``kubectl
get`` prints it, is that object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from imagestore.errors import InvalidResourcesError

if TYPE_CHECKING:
    from collections.abc import Mapping

Document: TypeAlias = "Mapping[str, object]"

_TEMPLATES: Final = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ("template",))
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
        raise InvalidResourcesError(f"kind {str(kind)[:100]!r} is no pod, and has no pod template", hint=_HINT)
    return document, "$"


def _inside(document: Document, names: tuple[str, ...]) -> Document:
    for name in names:
        inner = document.get(name)
        if not isinstance(inner, dict):
            return {}
        document = inner
    return document
