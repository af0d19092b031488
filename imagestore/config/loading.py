"""Reading configurations: from a path or from text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from imagestore.config.findings import Finding, RefusalError, Severity, dotted, show
from imagestore.config.imports import BASE_VERSION, load_files
from imagestore.config.interpret import Reading
from imagestore.config.model import Config
from imagestore.config.source import read_bytes
from imagestore.config.tree import Entry, Location
from imagestore.errors import ConfigError
from imagestore.platforms import host as host_module

if TYPE_CHECKING:
    from imagestore.platforms.platform import Platform


def load(path: str | os.PathLike[str], *, host: Platform | None = None) -> Config:
    """Read a configuration file and everything it imports.

    Args:
        path: a containerd configuration of version 1 to 4.
        host: the node's platform; this machine's by default.

    Raises:
        ConfigError: names file, line and key of what can't be used.
    """
    name = os.fspath(path)
    try:
        raw = read_bytes(name)
    except RefusalError as error:
        raise _config_error([error.finding]) from error
    return _accepted(raw, name, host)


def loads(text: str, *, filename: str = "config.toml", host: Platform | None = None) -> Config:
    """Read a configuration from text.

    Args:
        text: TOML.
        filename: names the text in messages; its imports are relative to the folder in it.
        host: the node's platform; this machine's by default.

    Raises:
        ConfigError: names file, line and key of what can't be used.

    >>> from imagestore.platforms.platform import Platform
    >>> loads("version = 3", host=Platform("linux", "amd64")).default_handler
    'runc'
    """
    # Lone surrogates can't be TOML; as bytes they are refused like any other text that isn't UTF-8.
    return _accepted(text.encode("utf-8", "surrogatepass"), filename, host)


def read(raw: bytes, name: str, host: Platform | None) -> tuple[Config | None, list[Finding]]:
    """Read bytes without raising.

    Returns:
        The configuration, None when there is an error among the findings; and the findings.
    """
    host = host or host_module.detect()
    findings: list[Finding] = []
    try:
        loaded = load_files(raw, name, findings)
    except RefusalError as error:
        return None, [*findings, error.finding]
    is_merged = loaded.newest_version >= BASE_VERSION
    reading = Reading(loaded.table, name, host, findings, is_merged=is_merged, version=loaded.main_version)
    handlers, wanted = reading.handlers, reading.default_handler
    if wanted not in handlers:
        known = ", ".join(sorted(handlers)) or "none"
        text = f"expected one of the configured handlers ({known}), got {show(wanted)}"
        hint = f"add a table {dotted(['runtimes', wanted])}, or name another handler"
        findings.append(
            Finding(Severity.ERROR, reading.default_name.location, "containerd.default_runtime_name", text, hint)
        )
    if any(finding.severity is Severity.ERROR for finding in findings):
        return None, findings
    config = Config(
        handlers=dict(handlers),
        default_handler=wanted,
        host=host,
        settings=reading.settings,
        files=tuple(loaded.names),
        version=loaded.main_version,
        findings=tuple(findings),
        document={"version": Entry(loaded.version, Location(name, 0)), **loaded.table},
    )
    return config, findings


def _accepted(raw: bytes, name: str, host: Platform | None) -> Config:
    config, findings = read(raw, name, host)
    if config is None:
        raise _config_error([finding for finding in findings if finding.severity is Severity.ERROR])
    return config


def _config_error(faults: list[Finding]) -> ConfigError:
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return ConfigError(f"{faults[0]}{more}", hint=faults[0].hint)
