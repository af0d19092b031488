"""This project's plugin table ``io.imagestore.registry.v1``.

It says what the operator allows and limits about registries, which has no place in containerd's tables. It widens trust
or bounds work, so each key is off or at its default unless it is written. What can't be read is an error: a slip must
not change what is trusted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import Severity, show
from imagestore.config.model import RegistrySettings
from imagestore.config.redaction import kind_of

if TYPE_CHECKING:
    from imagestore.config.section import Section

#: More connections to one host would harm it.
_MOST_HOST_CONNECTIONS: Final = 64
_MOST_RANGES: Final = 16
_NAME: Final = r"(?:[a-z0-9_-]+\.)*[a-z0-9_-]+|\[[0-9a-f:.]+\]"
_HOST: Final = re.compile(rf"(?:{_NAME})(?::[0-9]{{1,5}})?")
_HOST_ALONE: Final = re.compile(_NAME)
_REALM_TRUSTS: Final = ("warn", "strict")


def read_registry_plugin(section: Section) -> RegistrySettings:
    """Read ``io.imagestore.registry.v1``; everything that can't be used becomes a finding."""
    return RegistrySettings(
        mirror_credentials=_mirror_credentials(section),
        foreign_layer_hosts=frozenset(
            host for host in section.texts("foreign_layer_hosts") if _is_host(section, "foreign_layer_hosts", host)
        ),
        trusted_realms=_trusted_realms(section),
        is_realm_strict=_is_strict(section),
        bytes_per_second=section.count("bytes_per_second"),
        parallel_ranges=section.count("parallel_ranges", _MOST_RANGES),
        connections_per_host=section.count("connections_per_host", _MOST_HOST_CONNECTIONS),
    )


def _mirror_credentials(section: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    table = section.section("mirror_credentials")
    for mirror, entry in table.table.items():
        if not isinstance(entry.value, str):
            text = f"expected the registry whose credentials the mirror may see, got {kind_of(entry.value)}"
            table.report(Severity.ERROR, mirror, text, 'write "mirror.example" = "docker.io"')
        elif _is_host(table, mirror, mirror) and _is_host(table, mirror, entry.value):
            found[mirror] = entry.value
    return found


def _trusted_realms(section: Section) -> frozenset[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    table = section.section("trusted_realms")
    for registry in table.table:
        hosts = table.texts(registry)
        if not hosts:
            hint = 'write "registry.example" = ["auth.example"]'
            table.report(Severity.ERROR, registry, "expected a list of hosts of token services", hint)
        for host in hosts:
            if all(_is_host(table, registry, name, form=_HOST_ALONE) for name in (registry, host)):
                found.add((registry.strip("[]"), host.strip("[]")))
    return frozenset(found)


def _is_strict(section: Section) -> bool:
    text = section.text("realm_trust")
    if text and text not in _REALM_TRUSTS:
        expected = " or ".join(show(each) for each in _REALM_TRUSTS)
        section.report(Severity.ERROR, "realm_trust", f"expected {expected}, got {show(text)}")
    return text == "strict"


def _is_host(section: Section, name: str, text: str, *, form: re.Pattern[str] = _HOST) -> bool:
    if form.fullmatch(text):
        return True
    port = "without a port" if form is _HOST_ALONE else "with its port unless that is the scheme's own"
    hint = f"write the host alone, in lower case, {port}"
    section.report(Severity.ERROR, name, f"expected a host, got {kind_of(text)}", hint)
    return False
