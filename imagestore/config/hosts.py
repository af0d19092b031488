"""Where and how a registry host is reached: containerd's ``hosts.toml`` folders (containerd, docs/hosts.md).

A folder of folders, one for each registry host: ``registry.example``; with a port ``registry.example_5000_`` or
``registry.example:5000``; ``_default`` for all others. Inside, ``hosts.toml`` names mirrors in the order to try them
and the registry's own ``server``, which comes last. Without that file the folder holds certificates in Docker's way.

Deliberate difference: containerd logs a file it can't read and asks the registry directly, against the operator's
intention. Here it is an error with file and line. ``capabilities`` are enforced for every request.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.config.connection import HostConfig as HostConfig
from imagestore.config.connection import RegistryHosts as RegistryHosts
from imagestore.errors import ConfigError
from imagestore.oci.reference import api_host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.config.model import Config
    from imagestore.config.tree import Table

#: Where containerd's CRI plugin looks unless its ``config_path`` says otherwise.
DEFAULT_FOLDERS: Final = ("/etc/containerd/certs.d", "/etc/docker/certs.d")
_DEFAULT: Final = "_default"
_PORT: Final = re.compile(r"(?P<host>.*):(?P<port>[0-9]+)")


def candidates(host: str) -> tuple[str, ...]:
    """Names of the folders that may hold a host's configuration, the most specific first.

    >>> candidates("registry.example:5000")
    ('registry.example_5000_', 'registry.example:5000', '_default')
    >>> candidates("docker.io")
    ('docker.io', '_default')
    """
    found = _PORT.fullmatch(host)
    ported = (f"{found['host']}_{found['port']}_",) if found is not None else ()
    return (*ported, host, _DEFAULT)


def find_folder(host: str, folders: Sequence[str]) -> str:
    """The folder of a host's configuration; empty if there is none.

    Raises:
        ConfigError: a folder can't be read. Default folders that this user may not read are skipped, since they belong
            to the system's runtimes.
    """
    for root in folders:
        for name in candidates(host):
            path = os.path.join(root, name)
            try:
                if stat.S_ISDIR(os.stat(path).st_mode):
                    return path
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if isinstance(error, PermissionError) and root in DEFAULT_FOLDERS:
                    continue
                raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
            except ValueError as error:  # a NUL character in the path
                raise ConfigError(f"{root!r}: is no folder's name", hint="correct config_path") from error
    return ""


def read_hosts(host: str, folders: Sequence[str]) -> RegistryHosts:
    """Read what the folders, searched in order, say about a registry host, named with its port.

    Raises:
        ConfigError: names file, line and member. What this user may not read in a default folder is skipped, as by
            find_folder().
    """
    for root in folders:
        folder = find_folder(host, (root,))
        if not folder:
            continue
        import imagestore.config.hosts_file as hosts_file

        try:
            return hosts_file.read(folder)
        except ConfigError as error:
            if not isinstance(error.__cause__, PermissionError) or root not in DEFAULT_FOLDERS:
                raise
    return RegistryHosts()


def configured_folders(config: Config) -> tuple[str, ...]:
    """The folders that ``config_path`` names; none if it isn't set."""
    return tuple(folder for folder in config.settings.registry_config_path.split(":") if folder)


def used_folders(config: Config) -> tuple[str, ...]:
    """The folders that pulls read: those of ``config_path``, else the default ones, unless tables name mirrors."""
    if config.settings.registry_config_path:
        return configured_folders(config)
    if config.document:
        import imagestore.config.registry_hosts as registry_hosts

        if registry_hosts.mirrors(config.document):
            return ()
    return DEFAULT_FOLDERS


def reader_for(config: Config) -> Callable[[str], RegistryHosts]:
    """The function that reads what is configured for a registry host, or raises ConfigError."""
    read = _reader_for(config)
    if config.settings.registry.plain_http:
        return lambda host: _without_tls(host, read(host))
    return read


def _without_tls(host: str, found: RegistryHosts) -> RegistryHosts:
    """A registry without TLS, unless its address is configured."""
    if found.server.base:
        return found
    server = replace(found.server, base=f"http://{api_host(host)}/v2", location=found.server.location or "plain http")
    return replace(found, server=server)


def _reader_for(config: Config) -> Callable[[str], RegistryHosts]:
    if config.settings.registry_config_path:
        folders = configured_folders(config)
        return lambda host: read_hosts(host, folders)
    if config.document:
        import imagestore.config.registry_hosts as registry_hosts

        if registry_hosts.mirrors(config.document):
            return lambda host: registry_hosts.read(host, config.document)
        if registry_hosts.certificates(config.document):
            return lambda host: _read_either(host, config.document)
    return lambda host: read_hosts(host, DEFAULT_FOLDERS)


def _read_either(host: str, document: Table) -> RegistryHosts:
    """What a folder says, else the tables of certificates in the main configuration."""
    found = read_hosts(host, DEFAULT_FOLDERS)
    if found.folder:
        return found
    import imagestore.config.registry_hosts as registry_hosts

    return registry_hosts.read(host, document)
