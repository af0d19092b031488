"""Writing the effective configuration: imports merged, older versions migrated, one TOML document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import without_secrets
from imagestore.config.fold import FILE
from imagestore.config.names import RUNTIME_PLUGIN
from imagestore.config.tree import plain

if TYPE_CHECKING:
    from imagestore.config.fold import Shape
    from imagestore.config.model import Config
    from imagestore.config.tree import Plain

#: Stands where a secret was, so that a dump can be shown around.
REDACTED: Final = "<redacted>"
#: Known keys whose values are secrets.
_SECRET_KEYS: Final = frozenset({"password", "auth", "identitytoken", "registrytoken", "headers"})
#: Known keys that only look like it: names of files, and a model.
_OPEN_KEYS: Final = frozenset(
    {"key_model", "key_file", "tls_key", "tls_key_file", "tcp_tls_key", "x509_key_pair_streaming", "auths"}
)
#: What the name of a secret holds anywhere, and how it ends.
_SECRET_WORD: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|bearer|cookie|apikey|accesskey|privatekey", re.IGNORECASE
)
_SECRET_END: Final = re.compile(r".*(?:keys?|auth|authorization|pass)", re.IGNORECASE)
_ASSIGNED: Final = re.compile(r"(?P<name>-{0,2}[A-Za-z][A-Za-z0-9_.-]*)=(?P<value>.+)", re.DOTALL)


def effective(config: Config) -> dict[str, Plain]:
    """The merged and migrated keys as plain values, without ``imports``; what looks like a secret is redacted.

    Args:
        config: as loaded; the built-in default gives its handler's table.
    """
    document = plain(config.document) if config.document else _of_handlers(config)
    document.pop("imports", None)
    return _table(document, FILE)


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


def _table(table: dict[str, Plain], shape: Shape | None) -> dict[str, Plain]:
    """A table without its secrets: known keys are what they are, and other names are judged by their words."""
    names = {name.lower() for name in shape.names} if shape is not None else set()
    found: dict[str, Plain] = {}
    for name, value in table.items():
        inner = None if shape is None else shape.inside.get(name, shape.each)
        is_known = name.lower() in names or (shape is not None and (name in shape.inside or shape.each is not None))
        if name.lower() in _SECRET_KEYS:
            # A table ``auth`` has members that are none; header values may be secrets under any name.
            is_secret = name.lower() == "headers" or not isinstance(value, dict)
        else:
            is_secret = not is_known and _looks_secret(name, value)
        found[name] = _hidden(value) if is_secret else _value(value, inner)
    return found


def _looks_secret(name: str, value: Plain) -> bool:
    if name.lower() in _OPEN_KEYS or isinstance(value, bool):
        return False
    if isinstance(value, dict) and name.lower() in _SECRET_KEYS:
        return False
    return _SECRET_WORD.search(name) is not None or _SECRET_END.fullmatch(name) is not None


def _hidden(value: Plain) -> Plain:
    if isinstance(value, dict):
        return {name: _hidden(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(inner) for inner in value]
    return value if value == "" or isinstance(value, bool) else REDACTED


def _value(value: Plain, shape: Shape | None) -> Plain:
    if isinstance(value, dict):
        return _table(value, shape)
    if isinstance(value, list):
        return [_value(inner, None) for inner in value]
    if not isinstance(value, str):
        return value
    assigned = _ASSIGNED.fullmatch(value)
    if assigned is not None and _looks_secret(assigned["name"], assigned["value"]):
        return f"{assigned['name']}={REDACTED}"
    return without_secrets(value) if "://" in value else value
