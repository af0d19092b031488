"""Checks of hosts.toml folders: files that pulls are refused for, and folders that no reference leads to."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import imagestore.config.hosts as hosts
import imagestore.config.hosts_file as hosts_file
from imagestore.config.connection import load_certificates
from imagestore.config.findings import Finding, RefusalError, Severity, dotted, show
from imagestore.config.hosts import find_folder
from imagestore.config.registry_hosts import is_local, registry_table
from imagestore.config.tree import Location
from imagestore.errors import ConfigError, InvalidReferenceError
from imagestore.oci.reference import Reference, api_host
from imagestore.util.known_members import nearest
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.config.connection import RegistryHosts
    from imagestore.config.model import Config


_HOSTS_FILE: Final = "hosts.toml"
#: Wrong names of hosts.toml that aren't similar to it.
_OTHER_NAMES: Final = re.compile(r"\.?_?(?:hosts?|.+\.hosts)(?:\.toml)?(?:\.[a-z0-9]{2,5})?|.+\.to?ml", re.IGNORECASE)
#: Suffixes of other files: backups and certificates.
_OTHER_ENDS: Final = (
    *(".bak", ".backup", ".old", ".orig", ".off", ".save", ".saved", ".disabled", ".swp", "~"),
    *(".crt", ".cert", ".key", ".pem", ".csr", ".md"),
)
#: Suffixes of files next to the folders whose names look like hosts'.
_OF_OTHER_FILES: Final = frozenset({".md", ".txt", ".crt", ".cert", ".pem", ".key", ".bak", ".sh", ".json", ".yaml"})


def folder_findings(config: Config, roots: Sequence[str]) -> Iterator[Finding]:
    """What pulls would be refused for in these folders, or would not read."""
    yield from _missing_roots(config)
    for root in dict.fromkeys(roots):
        try:
            names = sorted(os.listdir(root))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            if isinstance(error, PermissionError) and root in hosts.DEFAULT_FOLDERS:
                continue  # a pull skips it, too
            reason = error.strerror if isinstance(error, OSError) else "is no folder's name"
            text = f"can't be looked into: {reason}; what is in it wasn't checked"
            yield Finding(Severity.WARNING, Location(root, 0), "", text)
            continue
        for name in names:
            # A Kubernetes volume has names with a dot in front; they are no hosts'.
            if not name.startswith(".") and name != "lost+found":
                yield from _entry(root, name, roots)


def _missing_roots(config: Config) -> Iterator[Finding]:
    """Folders of config_path that don't exist; of containerd's own defaults one is enough."""
    held = registry_table(config.document).get("config_path")
    if held is None:
        return
    folders = hosts.configured_folders(config)
    missing = [folder for folder in folders if _is_missing(folder)]
    is_some = len(missing) < len(folders)
    for folder in missing:
        if is_some and folder in hosts.DEFAULT_FOLDERS:
            continue
        severity = Severity.NOTE if set(folders) <= set(hosts.DEFAULT_FOLDERS) else Severity.WARNING
        text = f"{show(folder)} is no folder: what is meant to be in it has no effect"
        hint = "make the folder, or correct the path (folders are separated by colons)"
        yield Finding(severity, held.location, dotted(held.path), text, hint)


def _is_missing(folder: str) -> bool:
    try:
        os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False  # reported where it is read
    return False


def _entry(root: str, name: str, roots: Sequence[str]) -> Iterator[Finding]:
    path, host = os.path.join(root, name), host_of_folder(name)
    is_folder = os.path.isdir(path)
    if not is_folder and not os.path.islink(path):
        stem, extension = os.path.splitext(name)
        named = stem if extension == ".toml" else name
        is_host = "." in named and host_of(named) and extension not in _OF_OTHER_FILES
        if name == _HOSTS_FILE or is_host:
            text = "isn't read: references lead to folders, not to files"
            hint = f"put it into a folder named by its registry, as {_HOSTS_FILE}"
            yield Finding(Severity.WARNING, Location(path, 0), "", text, hint)
        return
    if not host:
        if is_folder:
            yield _unreached(path, name)
        return
    try:
        folder = find_folder(host, roots)
    except ConfigError as error:
        yield Finding(Severity.ERROR, Location(root, 0), "", f"{error}; pulls from {whose(host)} are refused")
        return
    if folder != path:
        if is_folder and folder and not os.path.samefile(folder, path):
            text = f"isn't read: for {whose(host)} {folder} comes before it"
            yield Finding(Severity.WARNING, Location(path, 0), "", text, "keep one of the two")
        return
    if is_other_name_of_hub(name):
        yield _unreached(path, name)
    yield from _host_folder(folder, host)


def _unreached(path: str, name: str) -> Finding:
    meant = meant_folder(name)
    text = f"no reference leads to a folder of this name: {show(name)} isn't how references write a registry"
    if host_of(name):
        text = f"references to Docker Hub say docker.io and don't lead here: only those that say {show(name)} do"
    hint = f"rename it to {meant}" if meant else "name it by the registry as references write it: host, or host_port_"
    return Finding(Severity.WARNING, Location(path, 0), "", text, hint)


def _host_folder(folder: str, host: str) -> Iterator[Finding]:
    try:
        found = hosts_file.read(folder)
    except RefusalError as error:
        yield would_refuse(error, host)
        return
    yield from found.remarks
    yield from _misnamed(folder)
    yield from unusable_files(found, host)
    with os.scandir(folder) as entries:
        inner = sorted(entry.name for entry in entries if os.path.exists(os.path.join(entry.path, _HOSTS_FILE)))
    for name in inner:
        text = f"isn't read: a folder is for a registry, not for a part of one such as {show(name)}"
        path = os.path.join(folder, name, _HOSTS_FILE)
        yield Finding(Severity.WARNING, Location(path, 0), "", text, f"move what it says to {folder}/{_HOSTS_FILE}")


def _misnamed(folder: str) -> Iterator[Finding]:
    """In a folder without hosts.toml: the file that was probably meant to be it."""
    path = os.path.join(folder, _HOSTS_FILE)
    if os.path.exists(path):
        return
    if os.path.islink(path):
        text = "is a link that leads nowhere: without the file there are no mirrors"
        yield Finding(Severity.WARNING, Location(path, 0), "", text, "make the link lead to the file, or remove it")
        return
    for name in sorted(os.listdir(folder)):
        is_meant = _OTHER_NAMES.fullmatch(name) or nearest(name, [_HOSTS_FILE], likeness=0.75)
        if is_meant and not name.lower().endswith(_OTHER_ENDS) and not os.path.isdir(os.path.join(folder, name)):
            text = f"isn't read: the file of hosts is called {_HOSTS_FILE}, so what this one says has no effect"
            hint = f"rename it to {_HOSTS_FILE}"
            if name.lower().endswith((".yaml", ".yml", ".json")):
                hint = f"write it as TOML, and name it {_HOSTS_FILE}"
            yield Finding(Severity.WARNING, Location(os.path.join(folder, name), 0), "", text, hint)


def unusable_files(found: RegistryHosts, host: str) -> Iterator[Finding]:
    """Certificate files that a pull would be refused for; over plain http none is used."""
    for each in (*found.mirrors, found.server):
        settings = each.connection
        is_plain = each.base.startswith("http://") or (not each.base and is_local(host) and not host.endswith(":443"))
        if is_plain or not (settings.ca_files or settings.client_pairs):
            continue
        for location, fault in load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings):
            text = f"{str(fault).removeprefix(f'{location}: ')}; pulls from {whose(host)} are refused"
            yield Finding(Severity.ERROR, location, "", text, fault.hint)


def would_refuse(error: RefusalError, host: str) -> Finding:
    """The finding of an error for which a pull from a host is refused."""
    finding = error.finding
    return replace(finding, severity=Severity.ERROR, text=f"{finding.text}; pulls from {whose(host)} are refused")


def whose(host: str) -> str:
    """A host in words."""
    return "hosts without a folder or table of their own" if host in {DEFAULT, "*"} else without_login(host)


DEFAULT: Final = "_default"
_HUB: Final = "docker.io"
#: Docker Hub's other names; in references all of them are docker.io.
_HUB_NAMES: Final = frozenset(
    {api_host(_HUB), "index.docker.io", "hub.docker.com", "www.docker.com", "auth.docker.io", "docker", "dockerhub"}
)
_PORTED: Final = re.compile(r"(?P<host>.+)_(?P<port>[0-9]+)_")
_SCHEME: Final = re.compile(r"https?[:_/]+", re.IGNORECASE)
_LOOSE_PORT: Final = re.compile(r"(?P<host>.*[^_:.-])[_:.-]+(?P<port>[0-9]{2,5})[_:]*")


def host_of_folder(name: str) -> str:
    """The host of a folder's name; empty if no reference can name it."""
    if name == DEFAULT:
        return name
    found = _PORTED.fullmatch(name)
    return host_of(f"{found['host']}:{found['port']}" if found is not None else name)


def host_of(name: str) -> str:
    """The name, if references can name a registry so; else empty.

    >>> host_of("registry.example:5000"), host_of("https://registry.example"), host_of("index.docker.io")
    ('registry.example:5000', '', '')
    """
    try:
        return name if Reference.parse(f"{name}/x").host == name else ""
    except InvalidReferenceError:
        return ""


def is_other_name_of_hub(name: str) -> bool:
    """Whether this is a name of Docker Hub other than docker.io, which references have."""
    return name.lower() in _HUB_NAMES


def meant_host(name: str) -> str:
    """The registry, with its port, that was probably meant by a name that no reference has; else empty.

    >>> meant_host("https://ghcr.io"), meant_host("localhost__32000"), meant_host("registry-1.docker.io/v2/")
    ('ghcr.io', 'localhost:32000', 'docker.io')
    """
    address = name.rpartition("@")[2]  # a login may stand before it
    scheme = _SCHEME.match(address)
    bare = address[scheme.end() if scheme is not None else 0 :].partition("/")[0].strip(" .:_").lower()
    if is_other_name_of_hub(bare):
        return _HUB
    found = _LOOSE_PORT.fullmatch(bare)
    ported = host_of(f"{found['host']}:{found['port']}") if found is not None else ""
    plain = "" if bare == name else host_of(bare)
    return plain or ported


def meant_folder(name: str) -> str:
    """The name of the folder that was probably meant; else empty."""
    if name.strip("_.*- ").lower() in ("default", "") and name != DEFAULT:
        return DEFAULT
    host, colon, port = meant_host(name).rpartition(":")
    return f"{host}_{port}_" if colon and port.isdecimal() else f"{host}{colon}{port}"
