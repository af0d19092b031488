"""Checks of a whole configuration: every handler's platform, and mirrors, certificates and logins of registries.

What contradicts the host or Microsoft's matrices is a warning, since the file may be meant for another node. Loading
reads nothing about registries, since a pull needs only what is said about its own host and must not fail for another
one. What a pull would be refused for is an error here. A key without effect, or that containerd would use and this
store doesn't, is a warning.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import imagestore.config.known as known
import imagestore.config.registry_hosts as registry_hosts
from imagestore.config.findings import Finding, RefusalError, Severity, dotted, show
from imagestore.config.folder_check import (
    folder_findings,
    host_of,
    is_other_name_of_hub,
    meant_host,
    unusable_files,
    would_refuse,
)
from imagestore.config.hosts import find_folder, used_folders
from imagestore.config.key_names import REGISTRY
from imagestore.config.loading import read
from imagestore.config.section import Section
from imagestore.config.source import read_bytes
from imagestore.config.tree import child
from imagestore.errors import ConfigError
from imagestore.oci.reference import DOCKER_HUB, api_host
from imagestore.platforms import host as host_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from imagestore.config.model import Config
    from imagestore.config.plugin import Plugin
    from imagestore.config.runtimes import HandlerPlatform
    from imagestore.config.tree import Entry, Table
    from imagestore.platforms.platform import Platform

_LOG_IN: Final = "log in with 'imagestore login', or name a file of logins in REGISTRY_AUTH_FILE"
#: The members of a host's table, by the table of hosts.
_OF_HOSTS: Final = {"mirrors": frozenset(known.REGISTRY_MIRROR), "configs": frozenset(known.REGISTRY_CONFIG)}
_MEMBERS: Final = frozenset().union(*_OF_HOSTS.values(), known.REGISTRY_TLS, known.REGISTRY_LOGIN)
#: Stands for the host in advice.
_HOST: Final = "<host>"


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found.

    Attributes:
        host: the node's platform it was checked for.
        config: None when it can't be loaded.
        handlers: every handler with its platform, in file order; empty when it can't be loaded.
        findings: errors first, then warnings, then notes, each in file order.
    """

    host: Platform
    config: Config | None
    handlers: tuple[HandlerPlatform, ...]
    findings: tuple[Finding, ...]

    @property
    def has_errors(self) -> bool:
        """Whether loading the file, or a folder of a registry's host, is refused."""
        return self.config is None or any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def has_warnings(self) -> bool:
        """Whether there is more to say than notes."""
        return any(finding.severity is not Severity.NOTE for finding in self.findings)


def check(path: str | os.PathLike[str], *, host: Platform | None = None, plugins: Sequence[Plugin[Any]] = ()) -> Report:
    """Check a configuration file and everything it imports, for a node (by default this machine).

    Faults in the files don't raise. The report has an error if loading them, with the tables of these plugins, would be
    refused.

    Raises:
        InvalidPlatformError: ``host`` is Windows with a version that can't be read.
    """
    host = host or host_module.detect()
    name = os.fspath(path)
    try:
        raw = read_bytes(name)
    except RefusalError as error:
        return Report(host, None, (), (error.finding,))
    config, findings = read(raw, name, host, plugins)
    return _report(host, config, findings)


def check_config(config: Config) -> Report:
    """Check a configuration that is loaded already.

    Raises:
        InvalidPlatformError: its host is Windows with a version that can't be read.
    """
    return _report(config.host, config, config.findings)


def _report(host: Platform, config: Config | None, findings: Iterable[Finding]) -> Report:
    handlers = () if config is None else tuple(config.handler_platform(name) for name in config.handlers)
    found = [*findings, *(finding for handler in handlers for finding in handler.findings)]
    found += [] if config is None else [*_shim_findings(config), *_registry_findings(config)]
    order = list(Severity)
    found.sort(key=lambda finding: (order.index(finding.severity), finding.location.file, finding.location.line or 0))
    return Report(host, config, handlers, tuple(found))


def _shim_findings(config: Config) -> Iterator[Finding]:
    """Handlers for which containerd finds no shim: it reads them without a word, and all their sandboxes fail."""
    runtimes = child(child(child(child(config.document, "plugins"), known.RUNTIME_PLUGIN), "containerd"), "runtimes")
    for handler in config.handlers.values():
        entry = runtimes.get(handler.name)
        first, *rest = handler.runtime_type.split(".")
        if entry is None or os.path.isabs(handler.runtime_type) or (first and rest):
            continue
        table = entry.value if isinstance(entry.value, dict) else {}
        # The shim's own path does for any name, but there must be one.
        if handler.runtime_type and "runtime_path" in table:
            continue
        kind = table.get("runtime_type", entry)
        text = (
            "has no runtime_type" if not handler.runtime_type else f"no shim has the name {show(handler.runtime_type)}"
        )
        text += ": containerd starts, and every sandbox of this handler fails"
        hint = f'write for example runtime_type = "{known.RUNC_TYPE}"'
        yield Finding(Severity.WARNING, kind.location, dotted(kind.path or ("runtimes", handler.name)), text, hint)


def _registry_findings(config: Config) -> Iterator[Finding]:
    """All findings about registries, in no particular order."""
    document = config.document
    folders = used_folders(config)
    yield from folder_findings(config, folders)
    found = list(_next_to_folders(document) if config.settings.registry_config_path else _tables(config))
    reported = {(finding.location, finding.key) for finding in found}
    yield from found
    for finding in _key_findings(registry_hosts.registry_table(document)):
        if (finding.location, finding.key) not in reported:
            yield finding
    yield from _unread(document)


def _tables(config: Config) -> Iterator[Finding]:
    """Findings about the older tables; one for each place, though several hosts may lead to it."""
    document = config.document
    places, folders = set(), used_folders(config)
    for host in dict.fromkeys((*registry_hosts.mirrors(document), *registry_hosts.certificates(document))):
        try:
            if not (folders and find_folder(host, folders)):
                yield from unusable_files(registry_hosts.read(host, document), host)
        except RefusalError as error:
            place = (error.finding.location, error.finding.key)
            if place not in places:
                yield would_refuse(error, host)
            places.add(place)
        except ConfigError:
            continue  # of its folder, which is reported there


def _next_to_folders(document: Table) -> Iterator[Finding]:
    """Tables next to config_path: containerd doesn't load its plugin with both."""
    registry = registry_hosts.registry_table(document)
    for name, inner in (("mirrors", ""), ("configs", "tls")):
        tables = child(registry, name)
        for host, entry in tables.items():
            held = child(tables, host).get(inner) if inner else entry
            if held is None or (inner and (not isinstance(held.value, dict) or not held.value)):
                continue
            text = "isn't used where config_path is set, and containerd refuses to have both"
            yield Finding(Severity.WARNING, held.location, dotted(held.path), text, "move it to a hosts.toml")


def _unread(document: Table) -> Iterator[Finding]:
    """Logins and headers that containerd would send."""
    registry = registry_hosts.registry_table(document)
    configs = child(registry, "configs")
    logins: list[Entry | None] = [child(configs, host).get("auth") for host in configs]
    for entry in (*logins, *child(registry, "auths").values()):
        if entry is not None:
            text = "isn't read: a login doesn't belong into a file that many read"
            yield Finding(Severity.WARNING, entry.location, dotted(entry.path), text, _LOG_IN)
    headers = registry.get("headers")
    if headers is not None and headers.value:
        hint = "write a header table into the hosts.toml of the host that is to get it"
        yield Finding(
            Severity.WARNING,
            headers.location,
            dotted(headers.path),
            "isn't sent, since every registry would get it",
            hint,
        )


def _key_findings(registry: Table) -> Iterator[Finding]:
    """What the table ``registry`` of the images section says without effect."""
    found: list[Finding] = []
    yield from _without_host(registry)
    for host, entry in _hosts(registry, "mirrors"):
        Section(entry, entry.path, REGISTRY.at("mirrors").at(host), found)
        if host != "*":
            yield from _mirror_name(host, entry)
    for host, entry in _hosts(registry, "configs"):
        table = Section(entry, entry.path, REGISTRY.at("configs").at(host), found)
        table.section("tls")
        table.section("auth")
        yield from _address(host, entry)
        yield from _hub_certificates(host, registry)
    for host, entry in _hosts(registry, "auths"):
        Section(entry, entry.path, REGISTRY.at("auths").at(host), found)
    for finding in found:
        text = f"{finding.text}; it isn't used" if finding.severity is Severity.ERROR else finding.text
        yield replace(finding, severity=Severity.WARNING, text=text)


def _hosts(registry: Table, table: str) -> Iterator[tuple[str, Entry]]:
    """The entries of a table whose names can be meant as hosts'."""
    return ((name, entry) for name, entry in child(registry, table).items() if not _is_member(table, name, entry))


def _is_member(table: str, name: str, entry: Entry) -> bool:
    """Whether this is a member of a host's table, which stands where the host should."""
    if name.lower() not in _MEMBERS:
        return False
    inner = entry.value if isinstance(entry.value, dict) else {}
    return table == "auths" or not any(member.lower() in _OF_HOSTS[table] for member in inner)


def _without_host(registry: Table) -> Iterator[Finding]:
    for table in (*_OF_HOSTS, "auths"):
        for name, entry in child(registry, table).items():
            if not _is_member(table, name, entry):
                continue
            above, member = entry.path[:-2], name.lower()
            if member in known.REGISTRY_LOGIN:
                hint = _LOG_IN
            elif member in known.REGISTRY_MIRROR:
                hint = f"write {dotted([*above, 'mirrors', _HOST, member])}, with the registry's name for {_HOST}"
            else:
                path = (_HOST, member) if member == "tls" else (_HOST, "tls", member)
                hint = f"write {dotted([*above, 'configs', *path])}, with the endpoint's host for {_HOST}"
            text = f"the host is missing between {entry.path[-2]} and {name}, so this has no effect"
            yield Finding(Severity.WARNING, entry.location, dotted(entry.path), text, hint)


def _mirror_name(name: str, entry: Entry) -> Iterator[Finding]:
    """A name of mirrors is compared with the registry's in references."""
    if host_of(name) and not is_other_name_of_hub(name):
        return
    yield _unreached(name, entry, "no reference names a registry so", meant_host(name))


def _address(name: str, entry: Entry) -> Iterator[Finding]:
    """A name of certificates is compared with the host, and port, of an endpoint's URL."""
    if name == name.lower() and not any(mark in name for mark in "/*@ ") and name.strip("."):
        return
    yield _unreached(name, entry, "no endpoint has this host", api_host(meant_host(name)))


def _hub_certificates(name: str, registry: Table) -> Iterator[Finding]:
    """Docker Hub's names in references and elsewhere: what is dialled, and looked for here, is its API host."""
    configs = child(registry, "configs")
    entry = child(configs, name).get("tls")
    dialled = api_host(DOCKER_HUB)
    is_hub = name == DOCKER_HUB or (is_other_name_of_hub(name) and name == name.lower() and name != dialled)
    if entry is None or not entry.value or not is_hub or name in _endpoint_hosts(registry):
        return
    text = f"containerd doesn't look for certificates here: what it dials for Docker Hub is {dialled}"
    meant = dotted([*entry.path[:-2], dialled, "tls"])
    has_own = bool(child(child(configs, dialled), "tls"))
    hint = f"remove it: there is {meant}" if has_own else f"write {meant}"
    text += "" if has_own or name != DOCKER_HUB else "; only pulls by this store come back to it"
    yield Finding(Severity.WARNING, entry.location, dotted(entry.path), text, hint)


def _endpoint_hosts(registry: Table) -> set[str]:
    """The hosts, with their ports, that mirrors name."""
    tables = child(registry, "mirrors")
    lists = [entry.value for host in tables for entry in child(tables, host).values()]
    urls = [url for urls in lists if isinstance(urls, list) for url in urls if isinstance(url, str)]
    return {re.sub(r"^.*?://", "", url).partition("/")[0].rpartition("@")[2] for url in urls}


def _unreached(name: str, entry: Entry, why: str, meant: str) -> Finding:
    hint = f"write {dotted([*entry.path[:-1], meant])}" if meant else "write the host, with its port unless it is usual"
    shown = dotted([*entry.path[:-1], name])
    text = f"{why}: {show(name)} is no host, so this has no effect"
    if host_of(name):
        text = f"{why}: Docker Hub is docker.io in references"
    return Finding(Severity.WARNING, entry.location, shown, text, hint)
