"""Mirrors in the main configuration: ``registry.mirrors."<host>".endpoint`` and ``registry.configs."<host>".tls``.

containerd deprecates both in favour of ``hosts.toml`` and ignores them if ``config_path`` is set; so does imagestore.
``*`` means every host without a table of its own. The registry itself comes last, unless it is one of the endpoints.
Certificates go by the endpoint's host, ``registry-1.docker.io`` for ``docker.io``.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from imagestore.config.connection import ConnectionSettings, HostConfig, RegistryHosts
from imagestore.config.findings import dotted, refusal, show
from imagestore.config.hosts_file import base_url
from imagestore.config.known import IMAGES_PLUGIN
from imagestore.config.tree import child
from imagestore.oci.reference import api_host

if TYPE_CHECKING:
    from imagestore.config.tree import Entry, Table

_PATH: Final = ("plugins", IMAGES_PLUGIN, "registry")
_CAPABILITIES: Final = frozenset({"pull", "resolve"})
_WILDCARD: Final = "*"


def read(host: str, document: Table) -> RegistryHosts:
    """What the merged and migrated configuration says about a registry host, named with its port.

    Raises:
        RefusalError: names file, line and key.
    """
    known = mirrors(document)
    name = host if host in known else _WILDCARD
    entry = child(known, name).get("endpoint")
    endpoints = _endpoints(entry) if entry is not None else []
    found = tuple(_host(url, entry, document) for url in endpoints if entry is not None)
    own = next((each for each in found if each.base.split("/")[2] == api_host(host)), None)
    if own is not None:
        # Users configure plain http by an endpoint that names the registry itself.
        return RegistryHosts(found, HostConfig(own.base, connection=own.connection, location=own.location))
    name = api_host(host) if api_host(host) in certificates(document) else host
    return RegistryHosts(found, HostConfig(connection=_tls(name, document)))


def mirrors(document: Table) -> Table:
    """The configured mirrors by registry host."""
    return child(registry_table(document), "mirrors")


def certificates(document: Table) -> Table:
    """The configured hosts that have a table of certificates."""
    found = child(registry_table(document), "configs")
    return {host: entry for host, entry in found.items() if child(child(found, host), "tls")}


def registry_table(document: Table) -> Table:
    """The images section's table ``registry``."""
    table = document
    for each in _PATH:
        table = child(table, each)
    return table


def _endpoints(entry: Entry) -> list[str]:
    value = entry.value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refusal(entry.location, dotted(entry.path), "expected a list of URLs")
    return [item for item in value if isinstance(item, str)]


def _host(url: str, entry: Entry, document: Table) -> HostConfig:
    def _refuse(text: str, hint: str = "") -> Exception:
        return refusal(entry.location, dotted(entry.path), f"{show(url)}: {text}", hint)

    # A path is used unchanged; without one, the API's path /v2 is used.
    base = base_url(_with_scheme(url), override_path=True, refuse=_refuse)
    if base.count("/") == 2:
        base += "/v2"
    return HostConfig(base, _CAPABILITIES, (), _tls(base.split("/")[2], document), str(entry.location))


def _with_scheme(url: str) -> str:
    """As containerd completes it: plain http on this machine itself, else https."""
    if "://" in url:
        return url
    return f"{'http' if is_local(url.partition('/')[0].rpartition('@')[2]) else 'https'}://{url}"


def is_local(host: str) -> bool:
    """Whether a host, perhaps with a port, is localhost or a loopback address."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _tls(host: str, document: Table) -> ConnectionSettings:
    table = child(child(child(registry_table(document), "configs"), host), "tls")

    def _text(key: str) -> str:
        entry = table.get(key)
        if entry is not None and not isinstance(entry.value, str):
            raise refusal(entry.location, dotted(entry.path), "expected a file name")
        return str(entry.value) if entry is not None else ""

    skip = table.get("insecure_skip_verify")
    places = {str(entry.value): entry.location for key, entry in table.items() if key in ("ca_file", "cert_file")}
    authority, certificate, key = _text("ca_file"), _text("cert_file"), _text("key_file")
    if key and not certificate:
        entry = table["key_file"]
        raise refusal(entry.location, dotted(entry.path), "expected the certificate's cert_file next to it")
    return ConnectionSettings(
        ca_files=(authority,) if authority else (),
        client_pairs=((certificate, key),) if certificate else (),
        skip_verify=skip is not None and skip.value is True,
        places=places,
    )
