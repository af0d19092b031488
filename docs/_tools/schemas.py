"""JSON Schemas of what commands print, from the short form of ``outputs``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True)
class _Form:
    """A form that isn't a type: ``optional`` members, ``maybe`` null, ``mapping`` of any keys to one form."""

    kind: str
    inner: Any = None


anything: Final = _Form("anything")


def optional(inner: object) -> _Form:
    """A member that can be missing."""
    return _Form("optional", inner)


def maybe(inner: object) -> _Form:
    """A value, or null."""
    return _Form("maybe", inner)


def either(*forms: object) -> _Form:
    """One of these forms."""
    return _Form("either", forms)


def mapping(inner: object) -> _Form:
    """An object of any keys, whose values have one form."""
    return _Form("mapping", inner)


def schema(form: Any) -> dict[str, Any]:
    """The JSON Schema of a form."""
    if isinstance(form, dict):
        required = [name for name, inner in form.items() if not _is_optional(inner)]
        members = {name: schema(inner) for name, inner in form.items()}
        return {"type": "object", "properties": members, "required": required, "additionalProperties": False}
    if isinstance(form, list):
        return {"type": "array", "items": schema(form[0])}
    if isinstance(form, type):
        return {"type": _TYPES[form]}
    assert isinstance(form, _Form)
    if form.kind == "maybe":
        return {"anyOf": [schema(form.inner), {"type": "null"}]}
    if form.kind == "either":
        return {"anyOf": [schema(each) for each in form.inner]}
    if form.kind == "mapping":
        return {"type": "object", "additionalProperties": schema(form.inner)}
    return {} if form.kind == "anything" else schema(form.inner)


def _is_optional(form: object) -> bool:
    return isinstance(form, _Form) and form.kind == "optional"


def file_name(command: str) -> str:
    """The file of a command's schema.

    >>> file_name("pull --dry-run")
    'pull-dry-run.json'
    """
    return f"{command.replace(' --', '-').replace(' ', '-')}.json"


def schema_files() -> dict[str, str]:
    """Path below ``docs/`` to text."""
    from docs._tools.outputs import ERROR, OUTPUTS

    titles = {command: f"imagestore {command} --output json" for command in OUTPUTS}
    titles["error"] = "An error of a command with --output json"
    return {
        f"schemas/{file_name(command)}": json.dumps(
            {"$schema": _DIALECT, "$id": file_name(command), "title": titles[command], **schema(form)}, indent=2
        )
        + "\n"
        for command, form in {**OUTPUTS, "error": ERROR}.items()
    }


def schema_table() -> str:
    """A line for each command."""
    from docs._tools.outputs import OUTPUTS

    lines = [f"| `imagestore {each}` | [{file_name(each)}](../schemas/{file_name(each)}) |" for each in OUTPUTS]
    return "\n".join(["| command | schema |", "|---|---|", *lines])
