"""A quick yes: documents that keep a schema's rules beyond doubt, told in microseconds and without the schema library.

A schema (one of ours: JSON Schema Draft 2020-12, a handful of keywords) becomes one nested function. It only ever says
"surely right". Everything else goes to the library, which judges and words the faults; a law in the tests holds the two
together. The library takes 60 ms to load and a hundred times as long for a document, and nearly every document is
right.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Accepts = Callable[[Any], bool]

_TYPES: Final[Mapping[str, type]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
# Keywords that judge nothing here.
_SILENT: Final = frozenset({"$schema", "$defs", "title", "contentEncoding"})


def compiled(schema: Mapping[str, Any]) -> Accepts:
    """The function that says whether a decoded document surely keeps a schema's rules.

    Args:
        schema: with its own ``$defs``, which must not refer to themselves.

    Raises:
        ValueError: the schema uses a keyword that isn't known here.
    """
    return _compiled(schema, schema.get("$defs", {}))


def _compiled(schema: Mapping[str, Any] | bool, definitions: Mapping[str, Any]) -> Accepts:
    if isinstance(schema, bool):
        return lambda _: schema
    checks: list[Accepts] = []
    for keyword, rule in schema.items():
        if keyword == "$ref":
            checks.append(_compiled(definitions[rule.removeprefix("#/$defs/")], definitions))
        elif keyword in ("allOf", "anyOf"):
            checks.append(_combined(keyword, [_compiled(each, definitions) for each in rule]))
        elif keyword in ("properties", "additionalProperties", "items", "propertyNames"):
            checks.append(_members(keyword, rule, schema, definitions))
        elif keyword not in _SILENT:
            checks.append(_plain(keyword, rule))
    if len(checks) == 1:
        return checks[0]
    return lambda value: all(check(value) for check in checks)


def _combined(keyword: str, choices: list[Accepts]) -> Accepts:
    if keyword == "allOf":
        return lambda value: all(choice(value) for choice in choices)
    return lambda value: any(choice(value) for choice in choices)


def _members(keyword: str, rule: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Accepts:
    """Rules for what an object or an array holds; like the library's, they don't judge values of other types."""
    if keyword == "properties":
        named = [(name, _compiled(each, definitions)) for name, each in rule.items()]
        return lambda value: (
            not isinstance(value, dict) or all(accepts(value[name]) for name, accepts in named if name in value)
        )
    accepts = _compiled(rule, definitions)
    if keyword == "items":
        return lambda value: not isinstance(value, list) or all(map(accepts, value))
    if keyword == "propertyNames":
        return lambda value: not isinstance(value, dict) or all(map(accepts, value))
    apart = schema.get("properties", {}).keys()
    if not apart:
        return lambda value: not isinstance(value, dict) or all(map(accepts, value.values()))
    return lambda value: not isinstance(value, dict) or all(accepts(value[name]) for name in value if name not in apart)


def _plain(keyword: str, rule: Any) -> Accepts:
    match keyword:
        case "type":
            return _typed([rule] if isinstance(rule, str) else rule)
        case "required":
            return lambda value: not isinstance(value, dict) or all(name in value for name in rule)
        case "const":
            return lambda value: type(value) is type(rule) and value == rule
        case "not" if rule == {}:
            return lambda _: False
        case "maxItems":
            return lambda value: not isinstance(value, list) or len(value) <= rule
        case "minProperties":
            return lambda value: not isinstance(value, dict) or len(value) >= rule
        case "maxProperties":
            return lambda value: not isinstance(value, dict) or len(value) <= rule
        case "minLength":
            return lambda value: not isinstance(value, str) or len(value) >= rule
        case "maxLength":
            return lambda value: not isinstance(value, str) or len(value) <= rule
        case "minimum":
            return lambda value: not isinstance(value, (int, float)) or value >= rule
        case "maximum":
            return lambda value: not isinstance(value, (int, float)) or value <= rule
        case "pattern":
            found = re.compile(rule).search
            return lambda value: not isinstance(value, str) or found(value) is not None
    raise ValueError(f"schema keyword {keyword} is not known here")


def _typed(names: list[str]) -> Accepts:
    # Exactly these: JSON has no subtypes, and Python's bool is an int.
    allowed = frozenset(_TYPES[name] for name in names)
    return lambda value: type(value) in allowed
