"""Reading configurations from a path or from text, and writing the effective one: merged and migrated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from imagestore.config.findings import Finding, RefusalError, Severity, dotted, raise_first, show
from imagestore.config.interpret import Reading
from imagestore.config.key_names import file_shape
from imagestore.config.known import RUNTIME_PLUGIN
from imagestore.config.model import Config
from imagestore.config.redaction import known_values
from imagestore.config.source import BASE_VERSION, load_files, read_bytes
from imagestore.config.tree import Entry, Location, plain
from imagestore.platforms import host as host_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.config.plugin import Plugin
    from imagestore.config.tree import Plain
    from imagestore.platforms.platform import Platform


def load(path: str | os.PathLike[str], *, host: Platform | None = None, plugins: Sequence[Plugin[Any]] = ()) -> Config:
    """Read a configuration file and everything it imports.

    Args:
        path: a containerd configuration of version 1 to 4.
        host: the node's platform; this machine's by default.
        plugins: whose tables are checked, too; tables of others are kept as they are.

    Raises:
        ConfigError: names file, line and key of what can't be used.
    """
    name = os.fspath(path)
    return _accepted(read_bytes(name), name, host, plugins)


def loads(
    text: str,
    *,
    filename: str = "config.toml",
    host: Platform | None = None,
    plugins: Sequence[Plugin[Any]] = (),
) -> Config:
    """Read a configuration from text.

    Args:
        text: TOML.
        filename: names the text in messages; its imports are relative to the folder in it.
        host: the node's platform; this machine's by default.
        plugins: as for ``load``.

    Raises:
        ConfigError: names file, line and key of what can't be used.

    >>> from imagestore.platforms.platform import Platform
    >>> loads("version = 3", host=Platform("linux", "amd64")).default_handler
    'runc'
    """
    # Lone surrogates can't be TOML; as bytes they are refused like any other text that isn't UTF-8.
    return _accepted(text.encode("utf-8", "surrogatepass"), filename, host, plugins)


def read(
    raw: bytes, name: str, host: Platform | None, plugins: Sequence[Plugin[Any]]
) -> tuple[Config | None, list[Finding]]:
    """Read bytes without raising.

    Returns:
        The configuration, None when there is an error among the findings; and the findings.
    """
    host = host or host_module.detect()
    shape = file_shape({each.name: each.shape for each in plugins})
    findings: list[Finding] = []
    try:
        loaded = load_files(raw, name, shape, findings)
    except RefusalError as error:
        return None, [*findings, error.finding]
    is_merged = loaded.newest_version >= BASE_VERSION
    reading = Reading(loaded.table, name, host, shape, findings, is_merged=is_merged, version=loaded.main_version)
    handlers, wanted = reading.handlers, reading.default_handler
    for plugin in plugins:
        plugin.settings(loaded.table, handlers, host, findings, version=loaded.main_version)
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
        plugins=tuple(plugins),
    )
    return config, findings


def _accepted(raw: bytes, name: str, host: Platform | None, plugins: Sequence[Plugin[Any]]) -> Config:
    config, findings = read(raw, name, host, plugins)
    raise_first(findings)
    assert config is not None
    return config


def effective(config: Config) -> dict[str, Plain]:
    """The merged and migrated keys as plain values, without ``imports``; values of unknown keys are redacted.

    Args:
        config: as loaded; the built-in default gives its handler's table.
    """
    document = plain(config.document) if config.document else _of_handlers(config)
    document.pop("imports", None)
    shown = known_values(document, file_shape({each.name: each.shape for each in config.plugins}))
    return shown if isinstance(shown, dict) else {}


def dumps(config: Config) -> str:
    """The effective configuration as TOML; reading it gives the same handlers and platforms.

    What is dumped has at least version 3, and with that always the built-in handlers.
    """
    import tomli_w

    sources = ", ".join(ascii(name)[1:-1] for name in config.files) or "built-in defaults"
    return f"# Effective configuration of {sources}\n{tomli_w.dumps(effective(config))}"


def _of_handlers(config: Config) -> dict[str, Plain]:
    tables: dict[str, Plain] = {}
    for name, handler in config.handlers.items():
        tables[name] = {"runtime_type": handler.runtime_type, "options": dict(handler.options)}
    containerd: dict[str, Plain] = {"default_runtime_name": config.default_handler, "runtimes": tables}
    return {"version": config.version, "plugins": {RUNTIME_PLUGIN: {"containerd": containerd}}}
