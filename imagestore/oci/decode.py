"""Untrusted JSON: bounded, unambiguous, then checked against a schema.

What is refused before any schema is asked (JSON parsers disagree about these, which has been used to make two readers
see two documents): bytes that aren't UTF-8, a byte-order mark, NaN and Infinity, deep nesting, integers outside 64
bits, duplicate member names, and members equal to a known name but for case (Go's decoder takes those, Python's does
not). Half a surrogate pair, which no text can hold, is read as U+FFFD, as Go reads it.

The typed parsers judge (``descriptor.py``). The schema library words what they refuse: our own schemas, JSON Schema
Draft 2020-12, flat, one per kind of document, are next to this module.
"""

from __future__ import annotations

import functools
import json
import os
import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from imagestore.errors import DocumentError
from imagestore.oci.media_types import Kind
from imagestore.util.members import kind_of
from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: Largest manifest or config read, in bytes; what registries and pullers agree on (registries answer 413 above).
MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
#: Largest index: those of registries that take longer ones list thousands of entries with annotations.
MAX_INDEX_BYTES: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 32
CASE_VARIANT: Final = "differs from a known member only by case; readers disagree on it"
MAX_FAULTS: Final = 20
# A hostile document has millions, each a thousand bytes in the library's words.
_MAX_FAULTS_SOUGHT: Final = 200
#: Characters of a path or a name in messages.
_MAX_SHOWN: Final = 200
_INT64: Final = range(-(2**63), 2**63)
# Every integer of fewer characters fits 64 bits.
_SURE_DIGITS: Final = 19
_CONTAINERS: Final = frozenset([dict, list])

# The longest document that is parsed without waiting for another one. A hostile one takes 40 times its bytes once it is
# decoded; nothing is lost by turns, since the interpreter decodes one at a time in any case.
_SMALL_BYTES: Final = 256 * 1024
D = TypeVar("D")

#: A value of each of the schemas' types.
_TYPES: Final = {"object": {}, "array": [], "string": "", "integer": 0, "boolean": False, "null": None}


def limit_of(kind: Kind) -> int:
    """Most bytes of a document of a kind."""
    return MAX_INDEX_BYTES if kind is Kind.INDEX else MAX_DOCUMENT_BYTES


def decode(raw: bytes, what: str, *, limit_bytes: int = MAX_DOCUMENT_BYTES) -> dict[str, Any]:
    """Decode a document's bytes into a plain object; their digest must have been verified already.

    ``what`` names the document in errors, here and below.

    Raises:
        DocumentError: says which rule is broken.

    >>> decode(b'{"a": [1]}', "test")
    {'a': [1]}
    """
    if len(raw) > limit_bytes:
        _refuse(what, f"is {len(raw)} bytes long, more than the {limit_bytes} allowed")
    if raw.startswith(b"\xef\xbb\xbf"):
        _refuse(what, "starts with a byte-order mark, which JSON forbids")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(what, [f"is not UTF-8: {error.reason} at byte {error.start}"]) from error
    try:
        value = _decoded(text)
        if "\\ud" in text or "\\uD" in text:
            value = _without_halves(value)
    except (_RefusedError, RecursionError) as error:
        _check_depth(raw, what)
        raise DocumentError(what, [str(error)]) from error
    except json.JSONDecodeError as error:
        _check_depth(raw, what)
        raise DocumentError(what, [_not_json(error)]) from error
    if not _is_shallow(value):
        _check_depth(raw, what)
    if not isinstance(value, dict):
        _refuse(what, f"expected a JSON object, got {kind_of(value)}")
    return value


def in_turn(raw: bytes, parse: Callable[[], D]) -> D:
    """Parse a document; of large ones, one at a time in a process.

    Large ones are parsed in one thread: the C library has a heap for each thread, which keeps what the largest document
    took. ``parse`` must not parse another document in turn.
    """
    if len(raw) <= _SMALL_BYTES:
        return parse()
    try:
        parsed = _parser(os.getpid()).submit(_without_frames, parse)
    except RuntimeError:
        # No more threads for this process, or Python has begun to end.
        return _without_frames(parse)
    return parsed.result()


@functools.cache
def _parser(_process: int) -> ThreadPoolExecutor:
    """The thread of a process; a child has none of its parent's threads."""
    return ThreadPoolExecutor(1, thread_name_prefix="documents")


def _without_frames(parse: Callable[[], D]) -> D:
    try:
        return parse()
    except DocumentError as error:
        # They hold all that was decoded, until the error is dealt with.
        traceback.clear_frames(error.__traceback__)
        raise


def parse_with_faults(document: Mapping[str, Any], schema: str, what: str, parse: Callable[[], D]) -> D:
    """What a typed parser reads; if it refuses the document, the error lists all faults that the schema finds.

    ``document`` is what decode() returned, ``schema`` one of ``index``, ``manifest`` and ``image-config``.

    Raises:
        DocumentError: the schema's faults, or the parser's own, which no schema can express.
    """
    try:
        return parse()
    except DocumentError as error:
        faults = error.faults
    validate(document, schema, what)
    raise DocumentError(what, faults)


def validate(document: Mapping[str, Any], schema: str, what: str) -> None:
    """Check a decoded document against a schema: ``index``, ``manifest``, ``image-config`` or ``oci-resources``.

    Raises:
        DocumentError: lists the faults found (at most MAX_FAULTS), each with its JSON path.
    """
    found = islice(_validator(schema).iter_errors(document), _MAX_FAULTS_SOUGHT)
    faults = sorted(found, key=lambda error: error.json_path)
    if faults:
        shown = [f"{_shorten(error.json_path)}: {_fault(error)}" for error in faults[:MAX_FAULTS]]
        raise DocumentError(what, shown)


@functools.cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    raw = resources.files("imagestore.oci").joinpath("schemas", f"{schema}.json").read_bytes()
    return Draft202012Validator(json.loads(raw))


def refuse_case_variants(document: Mapping[str, Any], known: frozenset[str], what: str, *, path: str = "$") -> None:
    """Refuse members that differ from a known name only by case, as Unicode folds it (the long s is an s).

    Raises:
        DocumentError: names the member.
    """
    if name := case_variant(document, known):
        _refuse(what, f"{path}.{name}: {CASE_VARIANT}")


def case_variant(document: Mapping[str, Any], known: frozenset[str]) -> str:
    """The first member that differs from a known name only by case, shortened for messages; empty if none does."""
    if document.keys() <= known:
        return ""
    folded = _folded(known)
    return next((_shorten(name) for name in document if name not in known and name.casefold() in folded), "")


@functools.cache
def _folded(known: frozenset[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in known)


class _RefusedError(ValueError):
    """Carries a fault out of the JSON decoder's hooks."""


def _refuse(what: str, fault: str) -> NoReturn:
    raise DocumentError(what, [fault])


def _not_json(error: json.JSONDecodeError) -> str:
    return f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _fault(error: Any) -> str:
    wanted = error.validator_value
    match error.validator:
        case "not":
            # How our schemas forbid the members of another kind of document: two readers could disagree which it is.
            return "belongs to another kind of document"
        case "maxItems":
            return f"has {len(error.instance)} items, at most {wanted} are allowed"
        case "maxLength":
            return f"is {len(error.instance)} characters long, at most {wanted} are allowed"
        case "type":
            names = wanted if isinstance(wanted, list) else [wanted]
            return f"expected {' or '.join(kind_of(_TYPES[name]) for name in names)}, got {kind_of(error.instance)}"
    return _shorten(error.message)


def _shorten(text: str) -> str:
    return cut(text.encode("ascii", "backslashreplace").decode("ascii"), _MAX_SHOWN)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _RefusedError(f"member {_shorten(name)!r} occurs twice in one object")
            seen.add(name)
    return found


def _without_halves(value: Any) -> Any:
    """What was decoded, with U+FFFD for each half of a surrogate pair."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [_without_halves(each) for each in value]
    if isinstance(value, dict):
        return _unique([(_without_halves(name), _without_halves(each)) for name, each in value.items()])
    return value


def _no_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is no JSON number")


def _bounded_int(text: str) -> int:
    if len(text) < _SURE_DIGITS:
        return int(text)
    if len(text) > 20 or int(text) not in _INT64:
        raise _RefusedError(f"integer {text[:24]} does not fit 64 bits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _RefusedError(f"number {text[:24]} is out of range")
    return value


_decoded: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_bounded_int, parse_float=_finite
).decode


def _is_shallow(value: Any) -> bool:
    """Whether what was decoded nests at most MAX_DEPTH levels."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        values = [each.values() if type(each) is dict else each for each in level]
        level = [each for each in chain.from_iterable(values) if type(each) in _CONTAINERS]
        if not level:
            return True
    return False


def _check_depth(raw: bytes, what: str) -> None:
    """Count brackets outside strings: what nests too deep is refused for that, whatever else is wrong with it."""
    structure, in_string = re.compile(rb'[\[\]{}"]'), re.compile(rb'["\\]')
    depth = position = 0
    while (found := structure.search(raw, position)) is not None:
        position = found.end()
        mark = found.group()
        if mark == b'"':
            # No pattern for the whole string: it would keep a state for each escape.
            while (found := in_string.search(raw, position)) is not None and found.group() == b"\\":
                position = found.end() + 1
            if found is None:
                return  # unterminated: the decoder says where
            position = found.end()
        elif mark in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                _refuse(what, f"is nested deeper than {MAX_DEPTH} levels")
        else:
            depth -= 1
