"""What a check of a configuration says about registries: mirrors, certificates and logins.

A load reads none of it, since a pull needs only what is said of its own host and must not fail for another's; so none
of these findings is an error. But what a pull would be refused for is told here before anybody pulls, and so is what
containerd would use and this store doesn't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.config import registry_hosts
from imagestore.config.findings import Finding, RefusalError, Severity, dotted
from imagestore.config.folder_check import folder_findings, unusable_files, would_refuse
from imagestore.config.hosts import find_folder, used_folders
from imagestore.config.registry_tables import LOG_IN, key_findings
from imagestore.config.tree import child
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.model import Config
    from imagestore.config.tree import Entry, Table


def registry_findings(config: Config) -> Iterator[Finding]:
    """Everything that pulls would stumble over or pass over, in no particular order."""
    document = config.document
    folders = used_folders(config)
    yield from folder_findings(config, folders)
    found = list(_beside_folders(document) if config.settings.registry_config_path else _tables(config))
    told = {(finding.location, finding.key) for finding in found}
    yield from found
    for finding in key_findings(registry_hosts.registry_table(document)):
        if (finding.location, finding.key) not in told:
            yield finding
    yield from _unread(document)


def _tables(config: Config) -> Iterator[Finding]:
    """What the older tables say that can't be used; each place once, though several hosts may come to it."""
    document = config.document
    places, folders = set(), used_folders(config)
    for host in dict.fromkeys((*registry_hosts.mirrors(document), *registry_hosts.certificates(document))):
        try:
            if not (folders and find_folder(host, folders)):
                yield from unusable_files(registry_hosts.examine(host, document), host)
        except ConfigError:
            continue  # of its folder, which is told
        except RefusalError as error:
            place = (error.finding.location, error.finding.key)
            if place not in places:
                yield would_refuse(error, host)
            places.add(place)


def _beside_folders(document: Table) -> Iterator[Finding]:
    """containerd's own check: with both it doesn't load its plugin."""
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
            yield Finding(Severity.WARNING, entry.location, dotted(entry.path), text, LOG_IN)
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
