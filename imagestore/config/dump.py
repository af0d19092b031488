"""Writing the effective configuration: imports merged, older versions migrated, one TOML document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.config.key_names import FILE
from imagestore.config.known import RUNTIME_PLUGIN
from imagestore.config.redaction import value_without_secrets
from imagestore.config.tree import plain

if TYPE_CHECKING:
    from imagestore.config.model import Config
    from imagestore.config.tree import Plain


def effective(config: Config) -> dict[str, Plain]:
    """The merged and migrated keys as plain values, without ``imports``; what looks like a secret is redacted.

    Args:
        config: as loaded; the built-in default gives its handler's table.
    """
    document = plain(config.document) if config.document else _of_handlers(config)
    document.pop("imports", None)
    shown = value_without_secrets(document, FILE)
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
