"""Reads and writes the text of a tape, as the classes of ``tape`` declare it.

The text has one order and one spelling, so the same content is always the same bytes. Strings are basic TOML strings
with every control character escaped, which keeps odd header bytes visible in a diff. The text is hostile until checked:
bounded, typed, no unknown keys.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from imagestore.config import KeyLines, RefusalError
from imagestore.errors import DocumentError, InvalidDigestError, InvalidInputError
from imagestore.oci import Digest
from imagestore.testing.faults import EFFECTS
from imagestore.testing.faults.rules import FaultRule, Where
from imagestore.testing.tapes.tape import Tape, TapeContent
from imagestore.util.members import kind_of

FORMAT: Final = "imagestore-tape"
VERSION: Final = 1
#: A tape's text is never longer; bodies are elsewhere.
MAX_TAPE_BYTES: Final = 32 << 20
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
# C0, DEL, C1 and the separators that a terminal or an editor would act on.
_UNSEEN: Final = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\u202a-\u202e]')
_HEADER: Final = tuple[str, str]


class _Fault(Exception):  # noqa: N818 - becomes a DocumentError
    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place.lstrip('.') or 'top level'}: {text}")


def parse_tape(data: bytes, *, what: str = "tape") -> Tape:
    """Read a tape; ``what`` names it in errors.

    Raises:
        DocumentError: too long, not TOML, another format or version, or a member that breaks the rules.
    """
    if len(data) > MAX_TAPE_BYTES:
        raise DocumentError(what, [f"expected at most {MAX_TAPE_BYTES} bytes, found {len(data)}"])
    try:
        text = data.decode("utf-8")
        # Keys of many parts take the parser minutes.
        KeyLines(text.replace("\r\n", "\n"), what)
        members = tomllib.loads(text)
        if _read(str, members.pop("format", ""), ".format") != FORMAT:
            raise _Fault("format", f"expected {FORMAT!r}; this is no tape")
        if (version := _read(int, members.pop("version", None), ".version")) != VERSION:
            raise _Fault("version", f"expected {VERSION}, found {version}; read it with a newer release")
        return typing.cast("Tape", _read(Tape, members, ""))
    except _Fault as problem:
        raise DocumentError(what, [str(problem)]) from problem
    except RefusalError as problem:
        raise DocumentError(what, [problem.finding.text]) from problem
    except (ValueError, RecursionError) as problem:  # ValueError: also a whole number of thousands of digits
        raise DocumentError(what, [f"not TOML: {problem}"]) from problem


def _read(kind: Any, value: Any, place: str, bounds: Mapping[str, Any] = types.MappingProxyType({})) -> Any:
    """A value of the kind that an annotation names."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return _read(of[0], value, place, bounds)
    if kind == _HEADER:
        name, colon, rest = value.partition(":")
        if not colon or not name or not name.isascii():
            raise _Fault(place, f"expected 'Name: value', found {value[:100]!r}")
        return name, rest.removeprefix(" ")
    if origin is tuple:
        is_texts = of[0] in (str, _HEADER)
        if not isinstance(value, list) or (is_texts and not all(isinstance(one, str) for one in value)):
            raise _Fault(place, f"expected a list of {'texts' if is_texts else 'tables'}, got {_kind_of(value)}")
        return tuple(_read(of[0], one, place if is_texts else f"{place}[{at}]") for at, one in enumerate(value))
    if origin is Mapping:
        return {key: _read(of[1], one, f"{place}.{key}") for key, one in _read(dict, value, place).items()}
    if kind is FaultRule:
        return _read_rule(_read(dict, value, place), place)
    if origin is typing.Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        allowed = list(of) or [one.value for one in kind]
        if _read(str, value, place) not in allowed:
            raise _Fault(place, f"expected one of {', '.join(allowed)}; found {value!r}")
        return value if of else kind(value)
    if kind is Digest:
        try:
            digest = Digest.parse(_read(str, value, place))
        except InvalidDigestError as problem:
            raise _Fault(place, str(problem)) from problem
        if not digest.is_verifiable:
            raise _Fault(place, f"digest algorithm {digest.algorithm} can't be verified")
        return digest
    if dataclasses.is_dataclass(kind):
        return _read_table(kind, _read(dict, value, place), place)
    # A truth value is a whole number to isinstance().
    numbers = (int, float) if kind is float else kind
    if not isinstance(value, numbers) or (isinstance(value, bool) and kind is not bool):
        # Of the type's empty value, which is of its kind.
        raise _Fault(place, f"expected {_kind_of(kind())}, got {_kind_of(value)}")
    if kind is float and not 0 <= value < 1e9:
        raise _Fault(place, f"expected a number from 0 to 1e9, found {value}")
    if kind is int and not (least := bounds.get("least", 0)) <= value < 1 << 63:
        raise _Fault(place, f"expected at least {least}, found {value}")
    if kind is int and value > bounds.get("most", value):
        raise _Fault(place, f"expected {least} to {bounds['most']}, found {value}")
    return float(value) if kind is float else value


def _read_table(kind: Any, members: dict[str, Any], place: str, *, is_whole: bool = True) -> Any:
    """An instance of a class; of a table that holds several, only the members of this one are taken."""
    given: dict[str, Any] = {}
    joined, parts = getattr(kind, "JOINED", ("", ()))
    if joined:
        try:
            given = dict(
                zip(parts, kind.split(_read(str, members.pop(joined, None), f"{place}.{joined}")), strict=True)
            )
        except ValueError as problem:
            raise _Fault(f"{place}.{joined}", str(problem)) from problem
    known = [joined] if joined else []
    for member, annotation in _members(kind):
        if member.name in parts:
            continue
        key = member.metadata.get("key", member.name)
        known.append(key)
        if key in members or (member.default is member.default_factory):
            bounds = member.metadata if is_whole else {"least": -(1 << 62)}  # an effect checks its own
            given[member.name] = _read(annotation, members.pop(key, None), f"{place}.{key}", bounds)
    if is_whole:
        _refuse_unknown(members, known, place)
    try:
        made = kind(**given)
    except InvalidInputError as problem:
        raise _Fault(place, str(problem)) from problem
    for key, text in made.faults() if joined else ():
        raise _Fault(f"{place}.{key}", text)
    return made


def _read_rule(members: dict[str, Any], place: str) -> FaultRule:
    """A fault: one table with the members of the effect, of its place and of the rule."""
    names = tuple(sorted(EFFECTS))
    name = _read(typing.Literal[names], members.pop("what", None), f"{place}.what")
    effect, where = (_read_table(kind, members, place, is_whole=False) for kind in (EFFECTS[name], Where))
    counts = {
        key: _read(int, members.pop(key), f"{place}.{key}") for key in ("skip", "times", "every") if key in members
    }
    _refuse_unknown(members, ["what", "skip", "times", "every"], place)
    try:
        return FaultRule(effect, where, **counts)
    except InvalidInputError as problem:
        raise _Fault(place, str(problem)) from problem


def _refuse_unknown(members: Mapping[str, Any], known: list[str], place: str) -> None:
    for key in members:
        raise _Fault(f"{place}.{key}", f"unknown member; known here: {', '.join(sorted(known))}")


@functools.cache
def _members(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(member, hints[member.name]) for member in dataclasses.fields(kind)]


def _kind_of(value: object) -> str:
    return "a table" if isinstance(value, dict) else kind_of(value)


def format_tape(tape: Tape) -> bytes:
    """The text of a tape, in the one canonical order (docs/reference/tape-format.md)."""
    ordered = dataclasses.replace(
        tape,
        plain_names=tuple(sorted(set(tape.plain_names))),
        hosts=tuple(sorted(tape.hosts, key=lambda one: one.name)),
        synthetic=tuple(sorted(tape.synthetic, key=lambda one: one.digest)),
        repositories=tuple(sorted(tape.repositories, key=lambda one: (one.host, one.path))),
        exchanges=tuple(sorted(tape.exchanges, key=lambda one: one.order)),
    )
    lines = [f"format = {quote(FORMAT)}", f"version = {VERSION}"]
    for key, value in _written(ordered):
        if isinstance(value, tuple) and not isinstance(value[0], str):
            for one in value:
                lines += ["", f"[[{key}]]", *_table(one, key)]
        else:
            lines.append(f"{key} = {_value(value)}")
    return ("\n".join(lines) + "\n").encode()


def _written(one: Any) -> typing.Iterator[tuple[str, Any]]:
    """The members that are written, by key."""
    joined, parts = getattr(one, "JOINED", ("", ()))
    if joined:
        yield joined, one.joined
    first = getattr(one, "FIRST", ())
    kind: Any = type(one)
    for member, _ in sorted(_members(kind), key=lambda each: each[0].name not in first):
        value = getattr(one, member.name)
        is_left_out = value == member.default and "is_written" not in member.metadata
        if not is_left_out and member.name not in (*parts, *getattr(one, "unwritten", ())):
            yield member.metadata.get("key", member.name), value


def _table(one: Any, name: str) -> typing.Iterator[str]:
    members = one.to_table().items() if isinstance(one, FaultRule) else _written(one)
    below: list[str] = []
    for key, value in members:
        if isinstance(value, Mapping):
            below += [f"[{name}.{key}]"] if value else []
            below += [
                f"{tag if _BARE.fullmatch(tag) else quote(tag)} = {_value(to)}" for tag, to in sorted(value.items())
            ]
        else:
            yield f"{key} = {_value(value)}"
    yield from below


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str() | Digest():
            return quote(str(value))
        case enum.Enum():
            return quote(value.value)
        case TapeContent():
            return "{ " + ", ".join(f"{key} = {_value(member)}" for key, member in _written(value)) + " }"
        case ((str(), str()), *_):
            return _list(f"{name}: {text}" for name, text in sorted(value, key=lambda one: one[0].lower()))
        case tuple():
            return _list(sorted(value)) if value else "[]"
    return str(value)


def _list(values: typing.Iterable[Any]) -> str:
    return "[\n" + "".join(f"    {_value(one)},\n" for one in values) + "]"


def quote(text: str) -> str:
    """A TOML basic string."""
    return '"' + _UNSEEN.sub(lambda found: _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}", text) + '"'
