"""Keys and names in the older tables of registries that containerd reads nothing from.

``registry.mirrors.<host>``, ``registry.configs.<host>`` with ``tls`` and ``auth``, and ``registry.auths.<address>``
(containerd, docs/cri/registry.md). A load reads none of them, so nothing here is an error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.config import known
from imagestore.config.findings import Finding, Severity, dotted, show
from imagestore.config.host_names import host_of, is_other_name_of_hub, meant_host
from imagestore.config.section import Section
from imagestore.config.tree import child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.tree import Entry, Table


def key_findings(registry: Table) -> Iterator[Finding]:
    """What the tables say that has no effect.

    Args:
        registry: the table ``registry`` of the images section.
    """
    found: list[Finding] = []
    for host, entry in child(registry, "mirrors").items():
        Section(entry, entry.path, known.REGISTRY_MIRROR, found)
        if host != "*":
            yield from _mirror_name(host, entry)
    for host, entry in child(registry, "configs").items():
        table = Section(entry, entry.path, known.REGISTRY_CONFIG, found)
        table.section("tls", known.REGISTRY_TLS)
        table.section("auth", known.REGISTRY_LOGIN)
        yield from _address(host, entry)
    for entry in child(registry, "auths").values():
        Section(entry, entry.path, known.REGISTRY_LOGIN, found)
    for finding in found:
        text = f"{finding.text}; it isn't used" if finding.severity is Severity.ERROR else finding.text
        yield replace(finding, severity=Severity.WARNING, text=text)


def _mirror_name(name: str, entry: Entry) -> Iterator[Finding]:
    """A name of mirrors is compared with the registry's in references."""
    if host_of(name) and not is_other_name_of_hub(name):
        return
    yield _unreached(name, entry, "no reference names a registry so")


def _address(name: str, entry: Entry) -> Iterator[Finding]:
    """A name of certificates is compared with the host, and port, of an endpoint's URL."""
    if name == name.lower() and not any(mark in name for mark in "/*@ ") and name.strip("."):
        return
    yield _unreached(name, entry, "no endpoint has this host")


def _unreached(name: str, entry: Entry, why: str) -> Finding:
    meant = meant_host(name)
    mend = f"write {dotted([*entry.path[:-1], meant])}" if meant else "write the host, with its port unless it is usual"
    shown = dotted([*entry.path[:-1], name])
    text = f"{why}: {show(name)} is no host, so this has no effect"
    if host_of(name):
        text = f"{why}: Docker Hub is docker.io in references"
    return Finding(Severity.WARNING, entry.location, shown, text, mend)
