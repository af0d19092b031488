"""The operating system of the nodes that may run a pod.

Rules: ``spec.os.name`` counts first. The kubelet labels its node with ``kubernetes.io/os`` and
``beta.kubernetes.io/os``, so a node selector or a *required* node affinity by one of them can exclude a system. The
terms of an affinity are alternatives; all expressions of a term must hold; a term without expressions matches no node.
Preferred affinities exclude nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.util.members import Members

OPERATING_SYSTEMS: Final = ("linux", "windows")
OS_NAME: Final = "os.name"
NODE_SELECTOR: Final = "nodeSelector"
NODE_AFFINITY: Final = "nodeAffinity"
_LABELS: Final = ("kubernetes.io/os", "beta.kubernetes.io/os")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class OsConstraint(NamedTuple):
    """One member of a pod that restricts the operating system of its nodes.

    Attributes:
        source: OS_NAME, NODE_SELECTOR or NODE_AFFINITY.
        text: for messages.
        systems: the ones it allows.
    """

    source: str
    text: str
    systems: frozenset[str]


def os_constraints(spec: Members) -> list[OsConstraint]:
    """The constraints in a pod's spec, the most important first; raises what the members raise."""
    found = []
    name = spec.object("os").text("name")
    if name:
        found.append(OsConstraint(OS_NAME, f"os.name {name[:100]}", frozenset({name})))
    selector = spec.mapping("nodeSelector")
    for label in _LABELS:
        value = selector.get(label)
        if isinstance(value, str):
            found.append(
                OsConstraint(
                    NODE_SELECTOR, f"nodeSelector {label}: {value[:100]}", frozenset(OPERATING_SYSTEMS) & {value}
                )
            )
    terms = [*spec.object("affinity").object("nodeAffinity").object(_REQUIRED).objects("nodeSelectorTerms")]
    if terms:
        systems = frozenset(os for os in OPERATING_SYSTEMS if any(_matches(term, os) for term in terms))
        if systems != frozenset(OPERATING_SYSTEMS):
            text = f"required nodeAffinity ({', '.join(systems)})" if systems else "required nodeAffinity"
            found.append(OsConstraint(NODE_AFFINITY, text, systems))
    return found


def required_os(constraints: Sequence[OsConstraint]) -> tuple[str, str]:
    """The one operating system that a pod can run on, and the source of that constraint; both empty for any."""
    for each in constraints:
        if each.source == OS_NAME:
            return next(iter(each.systems)), OS_NAME
    allowed = _allowed(constraints)
    if not constraints or len(allowed) != 1:
        return "", ""
    return next(iter(allowed)), next(each.source for each in constraints if each.systems == allowed)


def contradictions(constraints: Sequence[OsConstraint]) -> Iterator[str]:
    """Why no node can run the pod; nothing if one can, or if the API server refuses the pod's os.name."""
    impossible = [each for each in constraints if not each.systems]
    for each in impossible:
        yield f"{each.text} matches no node, neither of linux nor of windows: no node can run this pod"
    is_known = all(each.systems.intersection(OPERATING_SYSTEMS) for each in constraints)
    if not impossible and not _allowed(constraints) and is_known:
        yield f"{' and '.join(each.text for each in constraints)} contradict each other: no node can run this pod"


def _allowed(constraints: Sequence[OsConstraint]) -> frozenset[str]:
    return frozenset(OPERATING_SYSTEMS).intersection(*(each.systems for each in constraints))


def _matches(term: Members, os: str) -> bool:
    """Whether a node of this system can match, if expressions of other labels hold."""
    expressions = [*term.objects("matchExpressions")]
    if not expressions and not term.values.get("matchFields"):
        return False
    return all(_holds(each, os) for each in expressions if each.text("key") in _LABELS)


def _holds(expression: Members, os: str) -> bool:
    among = os in expression.texts("values")
    match expression.text("operator"):
        case "In":
            return among
        case "NotIn":
            return not among
        case "DoesNotExist" | "Gt" | "Lt":  # each node has the label, and it is no number
            return False
        case _:
            return True
