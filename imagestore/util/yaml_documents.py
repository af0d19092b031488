"""YAML (and so JSON) files, read with limits: configuration of kubelet, edged and crictl, pods.

Size, depth and count are limited. An alias stands for the value of its anchor; together they may stand for ten times as
many values as the file has itself, since a few lines of them expand without end. A key that comes twice is refused.
Values are those of Kubernetes' own reader: YAML 1.1 words for true and false, also y and n; underscores in numbers are
ignored; no dates, no numbers to the base of 60; what ``<<`` names is merged in its place. As in JSON, a number without
a fraction is an integer, and there is no infinity.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError
from imagestore.util import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import yaml

#: Installation files that projects publish as one have two megabytes; JSON has the same limit.
MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_DEPTH: Final = 100
#: Values of a file: so many, and one for some of its bytes.
_LEAST_NODES: Final = 20_000
_NODE_BYTES: Final = 4
#: Characters that are parsed a second time to word a fault.
_MOST_WORDED: Final = 256 * 1024
#: What aliases may stand for, in values of the file itself.
_TIMES_EXPANDED: Final = 10
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
#: How parsers write the style of a scalar without quotes.
_PLAIN: Final = (None, "")
_TAG: Final = "tag:yaml.org,2002:"
_TEXT_TAGS: Final = ("!", f"{_TAG}str")
_TYPES_OF_TAGS: Final[dict[str | None, tuple[type, ...]]] = {
    f"{_TAG}int": (int,),
    f"{_TAG}float": (int, float),
    f"{_TAG}bool": (bool,),
    f"{_TAG}null": (NoneType,),
}


def read_documents(path: Path, *, is_typed: bool = True) -> list[dict[str, Any]]:
    """The objects of a file, one for each YAML document that isn't empty.

    Args:
        is_typed: false leaves every scalar the text that stands there.

    Raises:
        ConfigError: it can't be read, or breaks the module's rules.
    """
    try:
        data = files.read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:  # a name with a zero byte
        raise ConfigError(f"{path}: can't be read: {error}") from error
    return parse_documents(data, str(path), is_typed=is_typed)


def parse_documents(data: bytes, what: str, *, is_typed: bool = True) -> list[dict[str, Any]]:
    """The objects in a UTF-8 text, which ``what`` names in errors; see read_documents().

    Raises:
        ConfigError: it breaks the module's rules.
    """
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{what}: larger than {MAX_BYTES} bytes")
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{what}: PyYAML is not installed", hint="pip install pyyaml") from error
    # libyaml takes a tenth of the time, and is what Kubernetes' reader was made from.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = data.decode("utf-8")
        most = _LEAST_NODES + len(data) // _NODE_BYTES
        has_aliases = b"&" in data and b"*" in data
        own = sum(isinstance(each, yaml.NodeEvent) for each in yaml.parse(text, loader)) if has_aliases else 0
        limits = most, own * _TIMES_EXPANDED
        reader = _Reader(yaml.parse(text, loader), what, limits, is_typed=is_typed)
        values = list(reader.documents())
    except yaml.MarkedYAMLError as error:
        worded = _worded(text, error)
        line = "" if worded.problem_mark is None else f"line {worded.problem_mark.line + 1}: "
        raise ConfigError(f"{what}: {line}is no YAML: {worded.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{what}: is no YAML: {reason}") from error
    found = [value for value in values if value is not None and (is_typed or value != "")]
    for value in found:
        if not isinstance(value, dict):
            raise ConfigError(f"{what}: expected an object, found {type(value).__name__}")
    return found


def _worded(text: str, error: yaml.MarkedYAMLError) -> yaml.MarkedYAMLError:
    """The fault as PyYAML's own parser words it, more clearly than libyaml; of a long text as it is."""
    import yaml

    if len(text) <= _MOST_WORDED:
        try:
            for _ in yaml.parse(text, yaml.SafeLoader):
                pass
        except yaml.MarkedYAMLError as found:
            return found
        except yaml.YAMLError:
            return error
    return error


@dataclass(slots=True)
class _Anchored:
    """The value of an anchor.

    Attributes:
        size: how many values it has, with what aliases in it stand for; 0 while it is being read.
        height: how deep they are in it.
    """

    value: Any = None
    size: int = 0
    height: int = 0


class _Reader:
    """Builds values from PyYAML's events, within the limits."""

    def __init__(self, events: Iterator[Any], what: str, limits: tuple[int, int], *, is_typed: bool) -> None:
        self._events = events
        self._what = what
        self._most_nodes, self._most_expanded = limits
        self._is_typed = is_typed
        self._nodes = 0
        self._expanded = 0
        self._deepest = 0
        self._anchors: dict[str, _Anchored] = {}

    def documents(self) -> Iterator[Any]:
        """One value for each document."""
        for event in self._events:
            if type(event).__name__ == "DocumentStartEvent":
                self._anchors.clear()
                yield self._value(next(self._events), 0)

    def _value(self, event: Any, depth: int) -> Any:
        self._nodes += 1
        self._reach(event, depth)
        if event.anchor is None:
            return self._plain_value(event, depth)
        if type(event).__name__ == "AliasEvent":
            return self._aliased(event, depth)
        given = self._anchors[event.anchor] = _Anchored()
        before, outside = self._nodes + self._expanded - 1, self._deepest
        self._deepest = depth
        value = self._plain_value(event, depth)
        given.value, given.height = value, self._deepest - depth
        given.size = self._nodes + self._expanded - before
        self._deepest = max(outside, self._deepest)
        return value

    def _aliased(self, event: Any, depth: int) -> Any:
        """The value itself: nobody changes it."""
        name = event.anchor
        given = self._anchors.get(name)
        if given is None or not given.size:
            fault = "no anchor before it" if given is None else "an anchor around it, so that it never ends"
            raise self._refusal(event, f"alias {name[:100]!r} has {fault}")
        self._expanded += given.size
        if self._expanded > self._most_expanded:
            fault = (
                f"anchor {name[:100]!r}: with it, aliases stand for more than {self._most_expanded} values, "
                f"{_TIMES_EXPANDED} times as many as the file has"
            )
            raise self._refusal(event, fault, hint="write it out")
        self._reach(event, depth + given.height)
        return given.value

    def _reach(self, event: Any, depth: int) -> None:
        if depth > self._deepest:
            self._deepest = depth
        if depth > _MAX_DEPTH or self._nodes > self._most_nodes:
            raise self._refusal(event, "too deep, or too many values")

    def _plain_value(self, event: Any, depth: int) -> Any:
        kind = type(event).__name__
        if kind == "ScalarEvent":
            return self._scalar(event)
        if event.tag not in (None, "!", f"{_TAG}seq" if kind == "SequenceStartEvent" else f"{_TAG}map"):
            raise self._refusal(event, f"tag {event.tag[:100]!r} is not allowed")
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
            key = self._value(event, depth + 1)
            if key is None or isinstance(key, dict | list):
                raise self._refusal(event, "expected plain keys")
            if key == _MERGE and getattr(event, "style", "'") in _PLAIN:
                self._merge(found, next(events), depth)
                continue
            line = event.start_mark.line + 1
            name = key if isinstance(key, str) else str(key).lower() if isinstance(key, bool) else str(key)
            if name in lines:
                places = f"lines {lines[name]} and {line}" if lines[name] != line else f"line {line}"
                raise ConfigError(f"{self._what}: {places}: key {name[:100]!r} comes twice", hint="leave one of them")
            found[name], lines[name] = self._value(next(events), depth + 1), line
        return found

    def _merge(self, found: dict[str, Any], event: Any, depth: int) -> None:
        """Take over the members of an object, or of several of which the first counts most (YAML 1.1, merge)."""
        given = self._value(event, depth + 1)
        for each in reversed(given) if isinstance(given, list) else (given,):
            if not isinstance(each, dict):
                raise self._refusal(event, f"expected objects behind {_MERGE}")
            found.update(each)

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        tag: str | None = event.tag
        if not self._is_typed or tag in _TEXT_TAGS or (tag is None and event.style not in _PLAIN):
            return text
        if tag is not None and tag not in _TYPES_OF_TAGS:
            raise self._refusal(event, f"tag {tag[:100]!r} is not allowed")
        value = self._resolved(event, text)
        if tag is not None and not isinstance(value, _TYPES_OF_TAGS[tag]):
            raise self._refusal(event, f"{text[:100]!r} is not what its tag {tag!r} says")
        return value

    def _resolved(self, event: Any, text: str) -> Any:
        """The value of a scalar without quotes."""
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _NOT_IN_JSON.fullmatch(text):
            raise self._refusal(event, f"{text} is no number that JSON has", hint="quote a text")
        number = _number(text) if len(text) <= _MAX_DIGITS else None
        return text if number is None else number

    def _refusal(self, event: Any, fault: str, *, hint: str = "") -> ConfigError:
        return ConfigError(f"{self._what}: line {event.start_mark.line + 1}: {fault}", hint=hint)


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
