"""The publisher's plugin table, ``io.imagestore.publish.v1``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.config import Kind, Plugin, Severity, Shape, show

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.config import Section
    from imagestore.platforms import Platform

_SOCKET: Final = re.compile(r"(?:unix://)?/[!-~]+")
_CONTENT_MODES: Final = ("auto", "link", "copy")
_LEAST_REPAIR_SECONDS: Final = 1.0
_KEYS: Final = {
    "address": Kind.TEXT,
    "namespace": Kind.TEXT,
    "content": Kind.TEXT,
    "repair_interval": Kind.TEXT,
}


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Into which containerd images are published, and how.

    Attributes:
        address: ``unix:///PATH`` of its socket; empty if nothing is published.
        namespace: where its CRI plugin looks.
        content: ``auto`` (layers aren't kept there), ``link`` or ``copy`` (they are).
        repair_seconds: between two complete comparisons.
    """

    address: str = ""
    namespace: str = "k8s.io"
    content: str = "auto"
    repair_seconds: float = 600.0


def _read(section: Section, _handlers: Collection[str], _host: Platform) -> PublishSettings:
    default = PublishSettings()
    content = section.text("content") or default.content
    if content not in _CONTENT_MODES:
        expected = ", ".join(show(each) for each in _CONTENT_MODES)
        section.report(Severity.ERROR, "content", f"expected one of {expected}, got {show(content)}")
    namespace = section.text("namespace") or default.namespace
    if namespace != default.namespace:
        text = f"expected {show(default.namespace)}, the only namespace in which CRI looks, got {show(namespace)}"
        section.report(Severity.ERROR, "namespace", text, "leave it out")
    address = section.text("address")
    if address and not _SOCKET.fullmatch(address):
        text = f"expected a unix socket, got {show(address)}"
        section.report(Severity.ERROR, "address", text, "write unix:///run/containerd/containerd.sock")
    repair_seconds = section.seconds("repair_interval", default.repair_seconds)
    if repair_seconds < _LEAST_REPAIR_SECONDS:
        text = f"expected at least {_LEAST_REPAIR_SECONDS:.0f}s, got {show(section.text('repair_interval'))}"
        section.report(Severity.ERROR, "repair_interval", text)
    return PublishSettings(address, namespace, content, repair_seconds)


#: The publisher's table.
PUBLISH_PLUGIN: Final = Plugin("io.imagestore.publish.v1", Shape(_KEYS), _read)
