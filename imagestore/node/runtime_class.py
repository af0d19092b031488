"""From a pod's RuntimeClass name to the runtime handler.

Rule (kubelet, KEP-585 and KEP-4216): no name, or an empty one, means the empty handler; any other name must be the name
of a RuntimeClass object, whose ``handler`` is used. An image service can't tell two classes with one handler apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, RuntimeClassNotFoundError
from imagestore.node.config_members import ConfigMembers
from imagestore.util.members import without_lists

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.node.feature_gates import FeatureGates

# RFC 1123 label, as the API checks it.
_HANDLER: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """``node.k8s.io/v1`` RuntimeClass, as far as images need it.

    Attributes:
        name: used in pods.
        handler: name in the container runtime.
        overhead: what a sandbox takes besides its containers (``overhead.podFixed``), as written.
        node_selector: labels of the nodes that have the handler (``scheduling.nodeSelector``).

    Raises:
        ConfigError: the handler is no RFC 1123 label.
    """

    name: str
    handler: str
    overhead: Mapping[str, object] = field(default_factory=dict, hash=False)
    node_selector: Mapping[str, object] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _HANDLER.fullmatch(self.handler):
            raise ConfigError(
                f"RuntimeClass {self.name[:100]!r}: handler {self.handler[:100]!r}: expected an RFC 1123 label",
                hint="at most 63 lower-case letters, digits and hyphens",
            )


def parse_runtime_class(document: Mapping[str, object]) -> RuntimeClass:
    """Read a RuntimeClass object; ConfigError if it is another kind of object, or a member is missing or wrong."""
    kind, metadata, handler = document.get("kind"), document.get("metadata"), document.get("handler")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if kind != "RuntimeClass" or not isinstance(name, str) or not isinstance(handler, str):
        raise ConfigError(
            f"object of kind {str(kind)[:50]!r}: expected a RuntimeClass with metadata.name and handler",
            hint="use the output of 'kubectl get runtimeclass -o yaml'",
        )
    members = ConfigMembers(document, f"RuntimeClass {name[:100]!r}")
    overhead, scheduling = members.object("overhead"), members.object("scheduling")
    return RuntimeClass(name, handler, overhead.mapping("podFixed"), scheduling.mapping("nodeSelector"))


def admit(spec: dict[str, object], given: RuntimeClass) -> list[str]:
    """Change a pod's decoded spec as the API server's admission does for its class; return the reasons to refuse it.

    Rule (admission plugin RuntimeClass, KEP-688): the class's overhead becomes the pod's, whose own must be equal; the
    class's node selector is added to the pod's, which must not contradict it.
    """
    refused: list[str] = []
    own = spec.get("overhead")
    if not own and given.overhead:
        spec["overhead"] = dict(given.overhead)
    elif own and own != given.overhead:
        refused.append(f"overhead is not that of RuntimeClass {given.name[:100]}: the API server refuses the pod")
    selector = spec.get("nodeSelector")
    chosen = dict(selector) if isinstance(selector, dict) else {}
    for label, value in given.node_selector.items():
        if chosen.setdefault(label, value) != value:
            reason = f"nodeSelector {label[:100]} contradicts RuntimeClass {given.name[:100]}"
            refused.append(f"{reason}: the API server refuses the pod")
    if given.node_selector and isinstance(selector, dict | None):
        spec["nodeSelector"] = chosen
    return refused


def parse_runtime_classes(documents: Iterable[Mapping[str, object]]) -> list[RuntimeClass]:
    """Read RuntimeClass objects, and lists of them as ``kubectl get -o yaml`` prints; see parse_runtime_class()."""
    return [parse_runtime_class(each if isinstance(each, dict) else {}) for each in without_lists(documents)]


def class_named(name: str, classes: Iterable[RuntimeClass]) -> RuntimeClass:
    """The class of this name.

    Raises:
        RuntimeClassNotFoundError: there is none.
        ConfigError: several different ones have this name.
    """
    found = [each for each in classes if each.name == name]
    if not found:
        raise RuntimeClassNotFoundError(name)
    if any(each != found[0] for each in found):
        raise ConfigError(f"RuntimeClass {name[:100]!r} comes twice, and differs", hint="leave one of them")
    return found[0]


def image_handler(name: str | None, classes: Iterable[RuntimeClass], gates: FeatureGates) -> str:
    """The runtime handler for image calls: that of the pod's class if the gate is on, else the empty one.

    Raises:
        RuntimeClassNotFoundError: the gate is on and no class has this name.
        ConfigError: as class_named().
    """
    return class_named(name, classes).handler if name and gates.runtime_class_in_image_cri else ""
