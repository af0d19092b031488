"""What a pod says of the process of one of its containers: command, arguments, variables, working directory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.documents import object_in, objects_in, pod_in, text_in, texts_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.resources.documents import Document

_KINDS: Final = ("initContainers", "containers")
#: $(NAME), or the escape $$.
_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]*)\)")
#: A container's name (RFC 1123); it becomes a host name and a part of a path.
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_REFUSED: Final = "Kubernetes' API server would refuse this pod"


@dataclass(frozen=True, slots=True)
class PodProcess:
    """The process of a container, where the pod says something of it.

    Attributes:
        name: of the container; empty where only resources are given.
        args: None for those of the image.
        left_out: what isn't in the pod, for people.
    """

    name: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    left_out: tuple[str, ...] = ()


def pod_process(document: Document, name: str) -> PodProcess:
    """Read the container of this name; nothing is said of a process where only resources are given.

    Raises:
        InvalidResourcesError: a member has another type than in Kubernetes' API, or a value that it refuses.
    """
    for container, path in _containers(document):
        if text_in(container, "name", path) == name:
            return _process(container, name, path)
    return PodProcess()


def _containers(document: Document) -> Iterator[tuple[Document, str]]:
    template, path = pod_in(document)
    if "spec" in template:
        spec, path = object_in(template, "spec", path), f"{path}.spec"
    elif "containers" in template:
        spec = template
    else:
        yield template, path
        return
    for kind in _KINDS:
        for number, container in enumerate(objects_in(spec, kind, path)):
            yield container, f"{path}.{kind}[{number}]"


def _process(container: Document, name: str, path: str) -> PodProcess:
    if name and not _NAME.fullmatch(name):
        said = f"{path}.name: {name[:100]!r}: expected at most 63 lower-case letters, digits and hyphens"
        raise InvalidResourcesError(said, hint=_REFUSED)
    env, left_out = _variables(container, path)
    command = tuple(_expanded(each, env) for each in texts_in(container, "command", path))
    args = tuple(_expanded(each, env) for each in texts_in(container, "args", path))
    # As for a kubelet, an empty list is none.
    return PodProcess(name, command, args or None, env, text_in(container, "workingDir", path), tuple(left_out))


def _variables(container: Document, path: str) -> tuple[dict[str, str], list[str]]:
    """The variables whose values are in the pod, and notes about the others."""
    found: dict[str, str] = {}
    left_out = []
    for number, each in enumerate(objects_in(container, "env", path)):
        here = f"{path}.env[{number}]"
        name, value = text_in(each, "name", here), text_in(each, "value", here)
        if not name or "=" in name:
            raise InvalidResourcesError(f"{here}.name: {name[:100]!r} is no variable's name", hint=_REFUSED)
        if object_in(each, "valueFrom", here):
            left_out.append(f"the variable {name}, whose value isn't in the pod")
        else:
            found[name] = _expanded(value, found)
    if objects_in(container, "envFrom", path):
        left_out.append("the variables of envFrom, which aren't in the pod")
    return found, left_out


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """References to variables replaced as the kubelet does (k8s.io/kubernetes third_party/forked/golang/expansion).

    >>> _expanded("$(A)-$$(A)-$(B)-$A", {"A": "1"})
    '1-$(A)-$(B)-$A'
    """
    return _REFERENCE.sub(lambda each: "$" if each[1] is None else variables.get(each[1], each[0]), text)
