"""What a pod says of the process of one of its containers: command, arguments, variables, working directory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidResourcesError
from imagestore.resources.documents import pod_in, spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.resources.documents import Document
    from imagestore.util.members import Members

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
    for container in _containers(pod_in(document)):
        if container.text("name") == name:
            return _process(container, name)
    return PodProcess()


def _containers(pod: Members) -> Iterator[Members]:
    if not {"spec", "containers"}.intersection(pod.values):
        yield pod
        return
    for kind in _KINDS:
        yield from spec_of(pod).objects(kind)


def _process(container: Members, name: str) -> PodProcess:
    if name and not _NAME.fullmatch(name):
        said = f"{container.at('name')}: {name[:100]!r}: expected at most 63 lower-case letters, digits and hyphens"
        raise InvalidResourcesError(said, hint=_REFUSED)
    env, left_out = _variables(container)
    command = tuple(_expanded(each, env) for each in container.texts("command"))
    args = tuple(_expanded(each, env) for each in container.texts("args"))
    # As for a kubelet, an empty list is none.
    return PodProcess(name, command, args or None, env, container.text("workingDir"), tuple(left_out))


def _variables(container: Members) -> tuple[dict[str, str], list[str]]:
    """The variables whose values are in the pod, and notes about the others."""
    found: dict[str, str] = {}
    left_out = []
    for each in container.objects("env"):
        name, value = each.text("name"), each.text("value")
        if not name or "=" in name:
            raise InvalidResourcesError(f"{each.at('name')}: {name[:100]!r} is no variable's name", hint=_REFUSED)
        if each.object("valueFrom").values:
            left_out.append(f"the variable {name}, whose value isn't in the pod")
        else:
            found[name] = _expanded(value, found)
    if [*container.objects("envFrom")]:
        left_out.append("the variables of envFrom, which aren't in the pod")
    return found, left_out


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """References to variables replaced as the kubelet does (k8s.io/kubernetes third_party/forked/golang/expansion).

    >>> _expanded("$(A)-$$(A)-$(B)-$A", {"A": "1"})
    '1-$(A)-$(B)-$A'
    """
    return _REFERENCE.sub(lambda each: "$" if each[1] is None else variables.get(each[1], each[0]), text)
