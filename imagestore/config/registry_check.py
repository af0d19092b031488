"""What a check of a configuration says about registries: mirrors, certificates and logins.

A load reads none of it, since a pull needs only what is said of its own host and must not fail for another's; so none
of these findings is an error. But what a pull would be refused for is told here before anybody pulls, and so is what
containerd would use and this store doesn't.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.config import hosts, hosts_file, registry_hosts
from imagestore.config.findings import Finding, RefusalError, Severity, dotted
from imagestore.config.hosts import find_folder, used_folders
from imagestore.config.location import Location
from imagestore.config.names import IMAGES_PLUGIN
from imagestore.config.tree import child
from imagestore.errors import ConfigError, InvalidReferenceError
from imagestore.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.config.connection import RegistryHosts
    from imagestore.config.model import Config
    from imagestore.config.tree import Entry, Table

_PORTED: Final = re.compile(r"(?P<host>.+)_(?P<port>[0-9]+)_")
_REGISTRY: Final = ("plugins", IMAGES_PLUGIN, "registry")


def registry_findings(config: Config) -> Iterator[Finding]:
    """Everything that pulls would stumble over or pass over, in no particular order."""
    document = config.document
    folders = used_folders(config)
    for root in dict.fromkeys(folders):
        yield from _folders(root, folders)
    if config.settings.registry_config_path:
        yield from _beside_folders(document)
    else:
        yield from _tables(config)
    yield from _unread(document)


def _folders(root: str, roots: Sequence[str]) -> Iterator[Finding]:
    """What folders of hosts below a root say that can't be used, or isn't known; those that a pull would come to."""
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError) and root in hosts.DEFAULT_FOLDERS:
            return  # a pull passes over it too
        reason = error.strerror if isinstance(error, OSError) else "is no folder's name"
        text = f"can't be looked into: {reason}; what is in it wasn't checked"
        yield Finding(Severity.WARNING, Location(root, 0), "", text)
        return
    for name in names:
        host = _host(name)
        if not host:
            continue
        try:
            folder = find_folder(host, roots)
        except ConfigError as error:
            yield Finding(Severity.WARNING, Location(root, 0), "", f"{error}; pulls from {_whose(host)} are refused")
            continue
        if folder != os.path.join(root, name):
            continue  # no folder, or another one comes before it
        try:
            found = hosts_file.examine(folder)
            yield from found.remarks
            yield from _missing_files(found, host)
        except RefusalError as error:
            yield _would_refuse(error, host)


def _host(name: str) -> str:
    """The host that a folder's name stands for; empty when no reference can name it."""
    if name == "_default":
        return name
    found = _PORTED.fullmatch(name)
    host = f"{found['host']}:{found['port']}" if found is not None else name
    try:
        return host if Reference.parse(f"{host}/x").host == host else ""
    except InvalidReferenceError:
        return ""


def _tables(config: Config) -> Iterator[Finding]:
    """What the older tables say that can't be used; each place once, though several hosts may come to it."""
    document = config.document
    places, folders = set(), used_folders(config)
    for host in dict.fromkeys((*registry_hosts.mirrors(document), *registry_hosts.certificates(document))):
        try:
            if not (folders and find_folder(host, folders)):
                yield from _missing_files(registry_hosts.examine(host, document), host)
        except ConfigError:
            continue  # of its folder, which is told
        except RefusalError as error:
            place = (error.finding.location, error.finding.key)
            if place not in places:
                yield _would_refuse(error, host)
            places.add(place)


def _missing_files(found: RegistryHosts, host: str) -> Iterator[Finding]:
    """Files of certificates that aren't there; what is in the others is looked at by 'imagestore hosts'."""
    for each in (*found.mirrors, found.server):
        settings = each.connection
        for path in filter(None, (*settings.ca_files, *(file for pair in settings.client_pairs for file in pair))):
            try:
                os.stat(path)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "is no file's name"
                text = f"{settings.named(path)}{reason}; pulls from {_whose(host)} are refused"
                yield Finding(Severity.WARNING, Location(path, 0), "", text)


def _would_refuse(error: RefusalError, host: str) -> Finding:
    finding = error.finding
    return replace(finding, severity=Severity.WARNING, text=f"{finding.text}; pulls from {_whose(host)} are refused")


def _whose(host: str) -> str:
    return "hosts without a folder or table of their own" if host in {"_default", "*"} else host


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
