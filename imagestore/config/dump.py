"""Writing the effective configuration: imports merged, older versions migrated, one TOML document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.config.findings import without_secrets
from imagestore.config.names import IMAGES_PLUGIN, RUNTIME_PLUGIN
from imagestore.config.tree import plain

if TYPE_CHECKING:
    from imagestore.config.model import Config
    from imagestore.config.tree import Plain

#: Stands where a secret was, so that a dump can be shown around.
REDACTED: Final = "<redacted>"
_SECRET_KEYS: Final = frozenset({"password", "auth", "identitytoken", "registrytoken"})


def effective(config: Config) -> dict[str, Plain]:
    """The merged and migrated keys as plain values, without ``imports``; registry secrets, logins too, are redacted.

    Args:
        config: as loaded; the built-in default gives its handler's table.
    """
    document = plain(config.document) if config.document else _of_handlers(config)
    document.pop("imports", None)
    plugins = document.get("plugins")
    images = plugins.get(IMAGES_PLUGIN) if isinstance(plugins, dict) else None
    registry = images.get("registry") if isinstance(images, dict) else None
    if isinstance(images, dict) and registry is not None:
        images["registry"] = _redacted(registry, is_secret=False)
    return document


def dumps(config: Config) -> str:
    """The effective configuration as TOML; reading it gives the same handlers and platforms."""
    import tomli_w

    sources = ", ".join(ascii(name)[1:-1] for name in config.files) or "built-in defaults"
    return f"# Effective configuration of {sources}\n{tomli_w.dumps(effective(config))}"


def _of_handlers(config: Config) -> dict[str, Plain]:
    tables: dict[str, Plain] = {}
    for name, handler in config.handlers.items():
        tables[name] = {"runtime_type": handler.runtime_type, "options": dict(handler.options)}
    containerd: dict[str, Plain] = {"default_runtime_name": config.default_handler, "runtimes": tables}
    return {"version": config.version, "plugins": {RUNTIME_PLUGIN: {"containerd": containerd}}}


def _redacted(value: Plain, *, is_secret: bool) -> Plain:
    if isinstance(value, dict):
        return {name: _redacted(inner, is_secret=is_secret or _is_secret(name, inner)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_redacted(inner, is_secret=is_secret) for inner in value]
    if is_secret and value != "":
        return REDACTED
    return without_secrets(value) if isinstance(value, str) and "://" in value else value


def _is_secret(name: str, value: Plain) -> bool:
    """Header values may carry tokens under any name; a table ``auth`` has members that are none."""
    return name.lower() == "headers" or (name.lower() in _SECRET_KEYS and not isinstance(value, dict))
