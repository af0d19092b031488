"""YAML (and so JSON) files, read with limits: configuration of kubelet, edged and crictl, pods.

Size, depth and count are limited. Anchors and aliases are refused (a few lines of them expand without end), and so is a
key that comes twice. Values are those of Kubernetes' own reader: YAML 1.1 words for true and false, also y and n;
underscores in numbers are ignored; no dates, no numbers to the base of 60. As in JSON, a number without a fraction is
an integer, and there is no infinity.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError
from imagestore.util import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_BYTES: Final = 256 * 1024
_MAX_DEPTH: Final = 40
_MAX_NODES: Final = 20_000
_MAX_SCALAR: Final = 64 * 1024
_BOOLEANS: Final = {
    spelling: value
    for value, words in ((True, ("true", "yes", "y", "on")), (False, ("false", "no", "n", "off")))
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_INTEGER: Final = re.compile(r"[-+]?(?:0[bB][01]+|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NOT_IN_JSON: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BETWEEN_DIGITS: Final = re.compile(r"(?<=[0-9])_(?=[0-9])")
_INTEGERS: Final = range(-(2**63), 2**64)
#: From here on Go writes JSON numbers with an exponent, which its readers don't take as integers.
_LEAST_WITH_EXPONENT: Final = 1e21
_MAX_DIGITS: Final = 400
_MERGE: Final = "<<"


def read_documents(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, one for each YAML document that isn't empty.

    Raises:
        ConfigError: it can't be read, or breaks the module's rules.
    """
    try:
        data = files.read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:  # a name with a zero byte
        raise ConfigError(f"{path}: can't be read: {error}") from error
    return parse_documents(data, str(path))


def parse_documents(data: bytes, what: str) -> list[dict[str, Any]]:
    """The objects in a UTF-8 text, which ``what`` names in errors.

    Raises:
        ConfigError: it breaks the module's rules.
    """
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{what}: larger than {MAX_BYTES} bytes")
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{what}: PyYAML is not installed", hint="pip install pyyaml") from error
    try:
        text = data.decode("utf-8")
        values = list(_Reader(yaml.parse(text, Loader=yaml.SafeLoader), what).documents())
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ConfigError(f"{what}: {line}is no YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{what}: is no YAML: {reason}") from error
    found = [value for value in values if value is not None]
    for value in found:
        if not isinstance(value, dict):
            raise ConfigError(f"{what}: expected an object, found {type(value).__name__}")
    return found


class _Reader:
    """Builds values from PyYAML's events, within the limits."""

    def __init__(self, events: Iterator[Any], what: str) -> None:
        self._events = events
        self._what = what
        self._nodes = 0

    def documents(self) -> Iterator[Any]:
        """One value for each document."""
        for event in self._events:
            if type(event).__name__ == "DocumentStartEvent":
                yield self._value(next(self._events), 0)

    def _value(self, event: Any, depth: int) -> Any:
        kind = type(event).__name__
        self._nodes += 1
        line = event.start_mark.line + 1
        if kind == "AliasEvent" or getattr(event, "anchor", None):
            raise ConfigError(f"{self._what}: line {line}: anchors and aliases are not allowed", hint="write it out")
        if depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            raise ConfigError(f"{self._what}: line {line}: too deep, or too many values")
        if kind == "ScalarEvent":
            return self._scalar(event, line)
        if event.tag is not None:
            raise ConfigError(f"{self._what}: line {line}: tag {event.tag[:100]!r} is not allowed")
        if kind == "SequenceStartEvent":
            return [self._value(each, depth + 1) for each in self._until_end()]
        return self._mapping(depth)

    def _until_end(self) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ in ("SequenceEndEvent", "MappingEndEvent"):
                return
            yield event

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        events = self._until_end()
        for event in events:
            line = event.start_mark.line + 1
            key = self._value(event, depth + 1)
            if key is None or isinstance(key, dict | list) or key == _MERGE:
                raise ConfigError(f"{self._what}: line {line}: expected plain keys")
            name = key if isinstance(key, str) else str(key).lower() if isinstance(key, bool) else str(key)
            if name in found:
                places = f"lines {lines[name]} and {line}" if lines[name] != line else f"line {line}"
                raise ConfigError(f"{self._what}: {places}: key {name[:100]!r} comes twice", hint="leave one of them")
            found[name], lines[name] = self._value(next(events), depth + 1), line
        return found

    def _scalar(self, event: Any, line: int) -> Any:
        text: str = event.value
        if len(text) > _MAX_SCALAR:
            raise ConfigError(f"{self._what}: line {line}: a text is longer than {_MAX_SCALAR} characters")
        tag: str | None = event.tag
        if tag is not None and tag not in ("!", "tag:yaml.org,2002:str"):
            raise ConfigError(f"{self._what}: line {line}: tag {tag[:100]!r} is not allowed")
        if tag is not None or event.style is not None:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _NOT_IN_JSON.fullmatch(text):
            raise ConfigError(f"{self._what}: line {line}: {text} is no number that JSON has", hint="quote a text")
        number = _number(text) if len(text) <= _MAX_DIGITS else None
        return text if number is None else number


def _number(text: str) -> int | float | None:
    """A number as Kubernetes' reader takes it: beyond 64 bits decimals lose digits, and other forms are texts."""
    if text[0] == ".":
        plain = _BETWEEN_DIGITS.sub("", text)
    elif text[0] in "+-0123456789":
        plain = text.replace("_", "")
    else:
        return None
    if _INTEGER.fullmatch(plain):
        whole = _integer(plain)
        if whole in _INTEGERS:
            return whole
    if not _FLOAT.fullmatch(plain):
        return None
    number = float(plain)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < _LEAST_WITH_EXPONENT else number


def _integer(text: str) -> int:
    digits = text.lstrip("+-").lower()
    base = {"0b": 2, "0x": 16, "0o": 8}.get(digits[:2], 8 if len(digits) > 1 and digits[0] == "0" else 10)
    number = int(digits[2:] if digits[:2] in ("0b", "0x", "0o") else digits, base)
    return -number if text[0] == "-" else number
