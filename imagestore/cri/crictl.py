"""crictl's endpoints: its environment variables and its configuration file.

As in crictl an unknown key or a wrong type is an error, and a variable takes precedence over the file. Read only if the
user asks for crictl's settings.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError
from imagestore.util.yaml_documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH: Final = Path("/etc/crictl.yaml")
PATH_VARIABLE: Final = "CRI_CONFIG_FILE"
RUNTIME_VARIABLE: Final = "CONTAINER_RUNTIME_ENDPOINT"
IMAGE_VARIABLE: Final = "IMAGE_SERVICE_ENDPOINT"
_WORDS: Final[dict[type, str]] = {str: "a text", int: "a whole number", bool: "true or false"}
_KEYS: Final[dict[str, type]] = {
    "runtime-endpoint": str,
    "image-endpoint": str,
    "timeout": int,
    "max-retries": int,
    "debug": bool,
    "pull-image-on-create": bool,
    "disable-pull-on-run": bool,
}


@dataclass(frozen=True, slots=True)
class CrictlSettings:
    """crictl's settings.

    Attributes:
        runtime_endpoint: may be empty.
        image_endpoint: empty means the runtime endpoint.
        timeout_seconds: of every call except pulls; None if not set.
    """

    runtime_endpoint: str = ""
    image_endpoint: str = ""
    timeout_seconds: float | None = None


def find(environment: Mapping[str, str], path: Path | None = None) -> CrictlSettings:
    """The settings that crictl would use.

    Args:
        environment: variables.
        path: of the file, which must exist. By default CRI_CONFIG_FILE, else /etc/crictl.yaml if it exists.

    Raises:
        ConfigError: the file can't be read, or crictl wouldn't accept it.
    """
    named = environment.get(PATH_VARIABLE, "")
    wanted = path or (Path(named) if named else None)
    is_absent = wanted is None and not os.path.exists(DEFAULT_PATH)
    settings = CrictlSettings() if is_absent else _read(wanted or DEFAULT_PATH)
    return CrictlSettings(
        environment.get(RUNTIME_VARIABLE, "") or settings.runtime_endpoint,
        environment.get(IMAGE_VARIABLE, "") or settings.image_endpoint,
        settings.timeout_seconds,
    )


def _read(path: Path) -> CrictlSettings:
    documents = read_documents(path)
    if len(documents) > 1:
        raise ConfigError(f"{path}: expected one document, found {len(documents)}")
    found = documents[0] if documents else {}
    for key, value in found.items():
        _check(f"{path}: {key[:60]}", key, value)
    return CrictlSettings(
        found.get("runtime-endpoint") or "", found.get("image-endpoint") or "", float(found.get("timeout") or 0) or None
    )


def _check(where: str, key: str, value: Any) -> None:
    kind = _KEYS.get(key)
    if kind is None:
        raise ConfigError(f"{where}: not one of crictl's keys", hint=f"known: {', '.join(sorted(_KEYS))}")
    if value is not None and type(value) is not kind:
        raise ConfigError(f"{where}: expected {_WORDS[kind]}, got {str(value)[:60]!r}")
    if isinstance(value, int) and value < 0:
        raise ConfigError(f"{where}: expected a whole number from 0 on, got {value}")
