"""For which operating system a pod is, by what it says of the nodes that may run it.

Rules: ``spec.os.name`` counts first. A node's kubelet gives it the labels ``kubernetes.io/os`` and, still,
``beta.kubernetes.io/os``, so a node selector or a *required* node affinity by one of them may leave nodes of one system
only. The terms of an affinity are alternatives, the expressions in one must all hold; a term without any matches no
node. What is preferred leaves every node. A pod whose words leave no node at all contradicts itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from imagestore.resources.documents import object_in, objects_in, text_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.resources.documents import Document

OPERATING_SYSTEMS: Final = ("linux", "windows")
OS_NAME: Final = "os.name"
NODE_SELECTOR: Final = "nodeSelector"
NODE_AFFINITY: Final = "nodeAffinity"
_LABELS: Final = ("kubernetes.io/os", "beta.kubernetes.io/os")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class Word(NamedTuple):
    """One thing that a pod says of its nodes.

    Attributes:
        source: OS_NAME, NODE_SELECTOR or NODE_AFFINITY.
        text: for messages.
        systems: those of the nodes that it leaves.
    """

    source: str
    text: str
    systems: frozenset[str]


def words(spec: Document, path: str) -> list[Word]:
    """All that a pod's spec says of its operating system, what counts most first.

    Args:
        spec: decoded.
        path: of it, for errors.

    Raises:
        InvalidResourcesError: a member has another type than Kubernetes' API says.
    """
    found = []
    name = text_in(object_in(spec, "os", path), "name", f"{path}.os")
    if name:
        found.append(Word(OS_NAME, f"os.name {name[:100]}", frozenset({name})))
    selector = object_in(spec, "nodeSelector", path)
    for label in _LABELS:
        value = selector.get(label)
        if isinstance(value, str):
            found.append(Word(NODE_SELECTOR, f"nodeSelector {label}: {value[:100]}", _known({value})))
    affinity = object_in(object_in(spec, "affinity", path), "nodeAffinity", f"{path}.affinity")
    here = f"{path}.affinity.nodeAffinity"
    required = object_in(affinity, _REQUIRED, here)
    terms = objects_in(required, "nodeSelectorTerms", f"{here}.{_REQUIRED}")
    if terms:
        systems = frozenset(os for os in OPERATING_SYSTEMS if any(_matches(term, os, here) for term in terms))
        if systems != frozenset(OPERATING_SYSTEMS):
            text = f"required nodeAffinity ({', '.join(systems)})" if systems else "required nodeAffinity"
            found.append(Word(NODE_AFFINITY, text, systems))
    return found


def system(said: Sequence[Word]) -> tuple[str, str]:
    """The one operating system that a pod is for, and the source of the word that says so; both empty for any.

    Args:
        said: what its spec says.
    """
    for word in said:
        if word.source == OS_NAME:
            return next(iter(word.systems)), OS_NAME
    left = _left(said)
    if not said or len(left) != 1:
        return "", ""
    return next(iter(left)), next(word.source for word in said if word.systems == left)


def contradictions(said: Sequence[Word]) -> Iterator[str]:
    """Why no node can run the pod; nothing where one can, or where the API server refuses the pod's os.name."""
    nowhere = [word for word in said if not word.systems]
    for word in nowhere:
        yield f"{word.text} matches no node, neither of linux nor of windows: no node can run this pod"
    if not nowhere and not _left(said) and all(word.systems.intersection(OPERATING_SYSTEMS) for word in said):
        yield f"{' and '.join(word.text for word in said)} contradict each other: no node can run this pod"


def _left(said: Sequence[Word]) -> frozenset[str]:
    return frozenset(OPERATING_SYSTEMS).intersection(*(word.systems for word in said))


def _known(systems: set[str]) -> frozenset[str]:
    return frozenset(systems.intersection(OPERATING_SYSTEMS))


def _matches(term: Document, os: str, path: str) -> bool:
    """Whether a node of this system can match; expressions of other labels may well hold."""
    expressions = objects_in(term, "matchExpressions", path)
    if not expressions and not term.get("matchFields"):
        return False
    return all(_holds(each, os) for each in expressions if each.get("key") in _LABELS)


def _holds(expression: Document, os: str) -> bool:
    values = expression.get("values")
    among = isinstance(values, list) and os in values
    match expression.get("operator"):
        case "In":
            return among
        case "NotIn":
            return not among
        case "DoesNotExist" | "Gt" | "Lt":  # each node has the label, and it is no number
            return False
        case _:
            return True
