"""What a check of a configuration says about registries: mirrors, certificates and logins.

A load reads none of it, since a pull needs only what is said of its own host and must not fail for another's; so none
of these findings is an error. But what a pull would be refused for is told here before anybody pulls, and so is what
containerd would use and this store doesn't.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from imagestore.config import hosts, hosts_file, registry_hosts
from imagestore.config.findings import Finding, RefusalError, Severity, dotted
from imagestore.config.location import Location
from imagestore.config.names import IMAGES_PLUGIN
from imagestore.config.tree import child
from imagestore.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.model import Config
    from imagestore.config.tree import Entry, Table

_REGISTRY: Final = ("plugins", IMAGES_PLUGIN, "registry")


def registry_findings(config: Config) -> Iterator[Finding]:
    """Everything that pulls would stumble over or pass over, in no particular order."""
    document = config.document
    if config.settings.registry_config_path:
        for root in hosts.configured_folders(config):
            yield from _folders(root)
        yield from _beside_folders(document)
    else:
        yield from _tables(document)
        if not registry_hosts.mirrors(document):
            for root in hosts.DEFAULT_FOLDERS:
                yield from _folders(root)
    yield from _unread(document)


def _folders(root: str) -> Iterator[Finding]:
    """What the folders of hosts below one root say that can't be used, or isn't known."""
    try:
        with os.scandir(root) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError) and root in hosts.DEFAULT_FOLDERS:
            return  # as a pull passes over it
        reason = error.strerror if isinstance(error, OSError) else "is no folder's name"
        yield Finding(Severity.WARNING, Location(root, 0), "", f"can't be looked into: {reason}; pulls are refused")
        return
    for folder in folders:
        try:
            yield from hosts_file.examine(folder).remarks
        except RefusalError as error:
            yield _would_refuse(error, os.path.basename(folder))


def _tables(document: Table) -> Iterator[Finding]:
    """What the older tables say that can't be used; each place once, though several hosts may come to it."""
    places = set()
    for host in dict.fromkeys((*registry_hosts.mirrors(document), *registry_hosts.certificates(document))):
        try:
            registry_hosts.examine(host, document)
        except RefusalError as error:
            place = (error.finding.location, error.finding.key)
            if place not in places:
                yield _would_refuse(error, host)
            places.add(place)


def _would_refuse(error: RefusalError, host: str) -> Finding:
    finding = error.finding
    whose = "hosts without a folder or table of their own" if host in {"_default", "*"} else host
    return replace(finding, severity=Severity.WARNING, text=f"{finding.text}; pulls from {whose} are refused")


def _beside_folders(document: Table) -> Iterator[Finding]:
    """containerd's own check: with both it doesn't load its plugin."""
    registry = _below(document)
    for name, inner in (("mirrors", ""), ("configs", "tls")):
        for host, entry in child(registry, name).items():
            if inner and not child(child(child(registry, name), host), inner):
                continue
            path = (*_REGISTRY, name, host, *((inner,) if inner else ()))
            text = "isn't used where config_path is set, and containerd refuses to have both"
            yield Finding(Severity.WARNING, entry.location, dotted(path), text, "move it to a hosts.toml")


def _unread(document: Table) -> Iterator[Finding]:
    """Logins and headers that containerd would send."""
    registry = _below(document)
    configs = child(registry, "configs")
    logins: dict[tuple[str, ...], Entry | None]
    logins = {("configs", host, "auth"): child(configs, host).get("auth") for host in configs}
    logins |= {("auths", host): entry for host, entry in child(registry, "auths").items()}
    for path, entry in logins.items():
        if entry is not None:
            text = "isn't read: a login doesn't belong into a file that many read"
            mend = "log in with 'imagestore login', or name a file of logins in REGISTRY_AUTH_FILE"
            yield Finding(Severity.WARNING, entry.location, dotted((*_REGISTRY, *path)), text, mend)
    headers = registry.get("headers")
    if headers is not None and headers.value:
        mend = "write a header table into the hosts.toml of the host that is to get it"
        key = dotted((*_REGISTRY, "headers"))
        yield Finding(Severity.WARNING, headers.location, key, "isn't sent, since every registry would get it", mend)


def _below(document: Table) -> Table:
    table = document
    for name in _REGISTRY:
        table = child(table, name)
    return table
