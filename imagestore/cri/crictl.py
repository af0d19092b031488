"""crictl's endpoints: its environment variables and its configuration file.

As in crictl a value is the text that stands there, whether it is quoted or not; an unknown key or another type is an
error, and a variable takes precedence over the file. Read only if the user asks for crictl's settings.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError
from imagestore.util.text import go_boolean
from imagestore.util.yaml_documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH: Final = Path("/etc/crictl.yaml")
PATH_VARIABLE: Final = "CRI_CONFIG_FILE"
RUNTIME_VARIABLE: Final = "CONTAINER_RUNTIME_ENDPOINT"
IMAGE_VARIABLE: Final = "IMAGE_SERVICE_ENDPOINT"
_WORDS: Final[dict[type, str]] = {str: "a text", int: "a whole number", bool: "true or false"}
#: As Go's strconv.Atoi reads it.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_KEYS: Final[dict[str, type]] = {
    "runtime-endpoint": str,
    "image-endpoint": str,
    "timeout": int,
    "max-retries": int,
    "debug": bool,
    "pull-image-on-create": bool,
    "disable-pull-on-run": bool,
    "enable-streaming": bool,
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
    documents = read_documents(path, is_typed=False)
    if len(documents) > 1:
        raise ConfigError(f"{path}: expected one document, found {len(documents)}")
    found = {key: _value(f"{path}: {key[:60]}", key, text) for key, text in (documents[0] if documents else {}).items()}
    return CrictlSettings(
        str(found.get("runtime-endpoint", "")),
        str(found.get("image-endpoint", "")),
        float(found.get("timeout", 0)) or None,
    )


def _value(where: str, key: str, text: Any) -> str | int | bool:
    kind = _KEYS.get(key)
    if kind is None:
        raise ConfigError(f"{where}: not one of crictl's keys", hint=f"known: {', '.join(sorted(_KEYS))}")
    value: str | int | bool | None = text if isinstance(text, str) else None
    if isinstance(text, str) and kind is bool:
        value = go_boolean(text)
    elif isinstance(text, str) and kind is int:
        value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None:
        raise ConfigError(f"{where}: expected {_WORDS[kind]}, got {str(text)[:60]!r}")
    if isinstance(value, int) and value < 0:
        raise ConfigError(f"{where}: expected a whole number from 0 on, got {value}")
    return value
