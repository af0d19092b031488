"""What crictl would talk to: its environment variables and its configuration file.

The file is YAML, but crictl reads seven keys with plain values from it and writes nothing else, so this reads exactly
that and refuses the rest of YAML with the line, instead of bringing a YAML library along for it. As in crictl an
unknown key or a wrong type is an error, and of a key that stands twice the last one counts.

The order is crictl's: a variable goes before the file. Nothing here is read unless the user asks for crictl's settings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore import regular_files
from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PATH: Final = Path("/etc/crictl.yaml")
PATH_VARIABLE: Final = "CRI_CONFIG_FILE"
RUNTIME_VARIABLE: Final = "CONTAINER_RUNTIME_ENDPOINT"
IMAGE_VARIABLE: Final = "IMAGE_SERVICE_ENDPOINT"
_MOST_BYTES: Final = 64 * 1024
_TEXTS: Final = frozenset({"runtime-endpoint", "image-endpoint"})
_NUMBERS: Final = frozenset({"timeout", "max-retries"})
_TRUTHS: Final = frozenset({"debug", "pull-image-on-create", "disable-pull-on-run"})
_LINE: Final = re.compile(r"([A-Za-z0-9_-]+)[ \t]*:(?:[ \t]+(.*))?")
_NOTHING: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_QUOTED: Final = re.compile(r"""(?:"((?:[^"\\]|\\["\\/])*)"|'((?:[^']|'')*)')[ \t]*(?:#.*)?""")
# Characters that begin something else than a plain value.
_INDICATORS: Final = frozenset("-?:,[]{}#&*!|>'\"%@`")


@dataclass(frozen=True, slots=True)
class CrictlSettings:
    """What crictl is told.

    Attributes:
        runtime_endpoint: may be empty.
        image_endpoint: empty means the runtime endpoint.
        timeout_seconds: for a quick call; None when not set.
    """

    runtime_endpoint: str = ""
    image_endpoint: str = ""
    timeout_seconds: float | None = None


def find(environment: Mapping[str, str], path: Path | None = None) -> CrictlSettings:
    """What crictl would use.

    Args:
        environment: variables.
        path: of the file; it must exist then. By default CRI_CONFIG_FILE, else /etc/crictl.yaml if there is one.

    Raises:
        ConfigError: the file can't be read, or says something crictl wouldn't understand.
    """
    named = environment.get(PATH_VARIABLE, "")
    wanted = path or (Path(named) if named else None)
    settings = parse(_read(wanted or DEFAULT_PATH, is_required=wanted is not None), str(wanted or DEFAULT_PATH))
    return CrictlSettings(
        environment.get(RUNTIME_VARIABLE, "") or settings.runtime_endpoint,
        environment.get(IMAGE_VARIABLE, "") or settings.image_endpoint,
        settings.timeout_seconds,
    )


def parse(text: str, filename: str) -> CrictlSettings:
    """Read the file's text.

    Raises:
        ConfigError: names the line.

    >>> parse("runtime-endpoint: unix:///run/x.sock  # ours", "crictl.yaml").runtime_endpoint
    'unix:///run/x.sock'
    """
    texts: dict[str, str] = {}
    seconds = 0
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        where = f"{filename}:{number}"
        line = raw.rstrip(" \t\r")
        if not line.strip() or line.lstrip().startswith("#") or (line == "---" and not texts):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ConfigError(f"{where}: expected 'key: value', got {line[:60]!r}", hint="one key a line, no nesting")
        key, (value, is_plain) = found.group(1), _scalar(found.group(2) or "", where)
        if key in _TEXTS:
            texts[key] = "" if is_plain and value in _NOTHING else value
        elif key in _NUMBERS:
            if not is_plain or not (_NUMBER.fullmatch(value) or value in _NOTHING):
                raise ConfigError(f"{where}: {key}: expected a whole number, got {value[:60]!r}")
            seconds = int(value or 0) if key == "timeout" and value not in _NOTHING else seconds
        elif key in _TRUTHS:
            if not is_plain or value not in _TRUE | _FALSE | _NOTHING:
                raise ConfigError(f"{where}: {key}: expected true or false, got {value[:60]!r}")
        else:
            known = ", ".join(sorted(_TEXTS | _NUMBERS | _TRUTHS))
            raise ConfigError(f"{where}: expected one of crictl's keys, got {key[:60]!r}", hint=f"known: {known}")
    return CrictlSettings(
        texts.get("runtime-endpoint", ""), texts.get("image-endpoint", ""), float(seconds) if seconds else None
    )


def _scalar(text: str, where: str) -> tuple[str, bool]:
    """A value, and whether it stood there without quotes."""
    rest = text.strip(" \t")
    if rest[:1] in ('"', "'"):
        found = _QUOTED.fullmatch(rest)
        if found is None:
            raise ConfigError(f'{where}: expected a value closed by its quote, with no escapes but \\\\ and \\"')
        double, single = found.groups()
        if double is not None:
            return re.sub(r"\\(.)", r"\1", double), False
        return single.replace("''", "'"), False
    plain = "" if rest.startswith("#") else re.split(r"[ \t]#", rest, maxsplit=1)[0].rstrip(" \t")
    if plain[:1] in _INDICATORS or ": " in plain or plain.endswith(":"):
        raise ConfigError(f"{where}: expected a plain value, got {plain[:60]!r}", hint="put it in quotes")
    return plain, True


def _read(path: Path, *, is_required: bool) -> str:
    try:
        raw = regular_files.read(path, _MOST_BYTES)
    except FileNotFoundError:
        if is_required:
            raise ConfigError(f"{path}: no such file; expected crictl's configuration there") from None
        return ""
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{path}: expected at most {_MOST_BYTES} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected UTF-8") from None
