"""A quick yes: documents that keep a schema's rules beyond doubt, told in microseconds and without the schema library.

A schema (one of ours: JSON Schema Draft 2020-12, a handful of keywords) becomes a table of functions, one for each type
that a value may have, since nearly every keyword judges values of one type only. It only ever says "surely right".
Everything else goes to the library, which judges and words the faults; a law in the tests holds the two together. The
library takes 60 ms to load and a hundred times as long for a document, and nearly every document is right.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Accepts = Callable[[Any], bool]
    #: By exact type, as JSON has no subtypes and Python's bool is an int; a type that isn't listed is refused.
    Rules = Mapping[type, Accepts]

_TYPES: Final[Mapping[str, type]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
}
_KNOWN: Final = frozenset(
    [
        *("$ref", "allOf", "not", "type", "const", "pattern", "minLength", "maxLength", "minimum", "maximum"),
        *("required", "properties", "additionalProperties", "propertyNames", "minProperties", "maxProperties"),
        *("items", "maxItems"),
        # judge nothing here
        *("$schema", "$defs", "title", "contentEncoding"),
    ]
)
_UNBOUNDED: Final = float("inf")


def compiled(schema: Mapping[str, Any]) -> Accepts:
    """The function that says whether a decoded document surely keeps a schema's rules.

    Args:
        schema: with its own ``$defs``, which must not refer to themselves.

    Raises:
        ValueError: the schema uses a keyword that isn't known here.
    """
    rules = _rules(schema, schema.get("$defs", {}))
    return lambda value: rules.get(type(value), _never)(value)


def _rules(schema: Mapping[str, Any] | bool, definitions: Mapping[str, Any]) -> Rules:
    if isinstance(schema, bool):
        return dict.fromkeys(_TYPES.values(), _always) if schema else {}
    unknown = schema.keys() - _KNOWN
    if unknown:
        raise ValueError(f"schema keyword {min(unknown)} is not known here")
    number = _numbers(schema)
    found: Rules = {
        dict: _objects(schema, definitions),
        list: _arrays(schema, definitions),
        str: _texts(schema),
        int: number,
        float: number,
        bool: _always,
        type(None): _always,
    }
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        found = {_TYPES[name]: found[_TYPES[name]] for name in names}
    if "const" in schema:
        found = _both(found, {type(schema["const"]): schema["const"].__eq__})
    if "$ref" in schema:
        found = _both(_rules(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions), found)
    for each in schema.get("allOf", ()):
        found = _both(_rules(each, definitions), found)
    if "not" not in schema:
        return found
    if schema["not"] != {}:
        raise ValueError("not, but for everything, is not known here")
    return {}


def _objects(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Accepts:
    checks: list[Accepts] = []
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", _UNBOUNDED)
    if (least, most) != (0, _UNBOUNDED):
        checks.append(lambda value: least <= len(value) <= most)
    if not schema.keys().isdisjoint(["required", "properties", "additionalProperties"]):
        named = {name: _rules(each, definitions) for name, each in schema.get("properties", {}).items()}
        others = _rules(schema.get("additionalProperties", True), definitions)
        checks.append(_members(tuple(schema.get("required", ())), named, others))
    if "propertyNames" in schema:
        checks.append(_each(_rules(schema["propertyNames"], definitions)))
    return _all(checks)


def _members(required: Sequence[str], named: Mapping[str, Rules], others: Rules) -> Accepts:
    def accepts(value: dict[str, Any]) -> bool:
        for name in required:
            if name not in value:
                return False
        for name, member in value.items():
            check = named.get(name, others).get(type(member))
            if check is None or (check is not _always and not check(member)):
                return False
        return True

    return accepts


def _arrays(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Accepts:
    most = schema.get("maxItems", _UNBOUNDED)
    if "items" not in schema:
        return _always if most == _UNBOUNDED else lambda value: len(value) <= most
    items = _each(_rules(schema["items"], definitions))
    return lambda value: len(value) <= most and items(value)


def _texts(schema: Mapping[str, Any]) -> Accepts:
    least, most = schema.get("minLength", 0), schema.get("maxLength", _UNBOUNDED)
    if "pattern" in schema:
        search = re.compile(schema["pattern"]).search
        return lambda value: least <= len(value) <= most and search(value) is not None
    return _always if (least, most) == (0, _UNBOUNDED) else lambda value: least <= len(value) <= most


def _numbers(schema: Mapping[str, Any]) -> Accepts:
    least, most = schema.get("minimum", -_UNBOUNDED), schema.get("maximum", _UNBOUNDED)
    return _always if (least, most) == (-_UNBOUNDED, _UNBOUNDED) else lambda value: least <= value <= most


def _each(rules: Rules) -> Accepts:
    def accepts(values: Any) -> bool:
        for value in values:
            check = rules.get(type(value))
            if check is None or not check(value):
                return False
        return True

    return accepts


def _both(first: Rules, second: Rules) -> Rules:
    return {kind: _all([first[kind], second[kind]]) for kind in first if kind in second}


def _all(checks: list[Accepts]) -> Accepts:
    judging = [check for check in checks if check is not _always]
    if not judging:
        return _always
    if len(judging) == 1:
        return judging[0]
    first, *others = judging
    second = _all(others)
    return lambda value: first(value) and second(value)


def _always(_value: Any) -> bool:
    return True


def _never(_value: Any) -> bool:
    return False
