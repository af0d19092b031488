"""Mirrors in the main configuration: ``registry.mirrors."<host>".endpoint`` and ``registry.configs."<host>".tls``.

containerd deprecates both in favour of ``hosts.toml`` and ignores them once ``config_path`` is set; so do we. ``*``
stands for every host without a table of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.config.connection import ConnectionSettings
from imagestore.config.findings import RefusalError, dotted, refusal, show, without_secrets
from imagestore.config.hosts import HostConfig, RegistryHosts
from imagestore.config.hosts_file import base_url
from imagestore.config.names import IMAGES_PLUGIN
from imagestore.config.tree import child
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from imagestore.config.tree import Entry, Table

_PATH: Final = ("plugins", IMAGES_PLUGIN, "registry", "mirrors")
_CAPABILITIES: Final = frozenset({"pull", "resolve"})
_WILDCARD: Final = "*"


def read(host: str, document: Table) -> RegistryHosts:
    """What the main configuration says about a registry host.

    Args:
        host: as in a reference, with its port.
        document: the merged and migrated configuration.

    Raises:
        ConfigError: names file, line and key.
    """
    known = mirrors(document)
    name = host if host in known else _WILDCARD
    entry = child(known, name).get("endpoint")
    try:
        endpoints = _endpoints(entry, name) if entry is not None else []
        found = tuple(_host(url, entry, name, document) for url in endpoints if entry is not None)
        return RegistryHosts(found, HostConfig(connection=_tls(host, document)))
    except RefusalError as error:
        raise ConfigError(str(error.finding), hint=error.finding.mend) from error


def mirrors(document: Table) -> Table:
    """The configured mirrors by registry host."""
    table = document
    for name in _PATH:
        table = child(table, name)
    return table


def _endpoints(entry: Entry, name: str) -> list[str]:
    value = entry.value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refusal(entry.location, dotted((*_PATH, name, "endpoint")), "expected a list of URLs")
    return [item for item in value if isinstance(item, str)]


def _host(url: str, entry: Entry, name: str, document: Table) -> HostConfig:
    def refuse(text: str, mend: str = "") -> Exception:
        return refusal(
            entry.location, dotted((*_PATH, name, "endpoint")), f"{show(without_secrets(url))}: {text}", mend
        )

    # A path is taken as it stands here; only without one the API's own is meant.
    base = base_url(url, override_path=True, refuse=refuse)
    if base.count("/") == 2:
        base += "/v2"
    return HostConfig(base, _CAPABILITIES, (), _tls(base.split("/")[2], document), str(entry.location))


def _tls(host: str, document: Table) -> ConnectionSettings:
    configs = document
    for name in (*_PATH[:-1], "configs"):
        configs = child(configs, name)
    table = child(child(configs, host), "tls")

    def text(key: str) -> str:
        entry = table.get(key)
        if entry is not None and not isinstance(entry.value, str):
            raise refusal(entry.location, dotted((*_PATH[:-1], "configs", host, "tls", key)), "expected a file name")
        return str(entry.value) if entry is not None else ""

    skip = table.get("insecure_skip_verify")
    authority, certificate, key = text("ca_file"), text("cert_file"), text("key_file")
    return ConnectionSettings(
        ca_files=(authority,) if authority else (),
        client_pairs=((certificate, key),) if certificate else (),
        skip_verify=skip is not None and skip.value is True,
    )
