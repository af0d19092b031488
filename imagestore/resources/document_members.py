"""Members of a decoded document with the type that Kubernetes' API says; an error names the member's path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from imagestore.errors import InvalidResourcesError

Document: TypeAlias = Mapping[str, object]


def object_in(document: Document, name: str, path: str) -> Document:
    """An object; an empty one where there is none.

    Args:
        document: has it.
        name: of the member.
        path: of the document.

    Raises:
        InvalidResourcesError: it is of another type.
    """
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(f"{path}.{name}", "an object", value)
    return value


def objects_in(document: Document, name: str, path: str) -> list[Document]:
    """A list of objects; an empty one where there is none. See object_in()."""
    value = document.get(name) or []
    if not isinstance(value, list):
        raise wrong(f"{path}.{name}", "an array", value)
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong(f"{path}.{name}[{number}]", "an object", item)
    return value


def text_in(document: Document, name: str, path: str) -> str:
    """A text; an empty one where there is none. See object_in()."""
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(f"{path}.{name}", "a string", value)
    return value


def wrong(path: str, expected: str, found: object) -> InvalidResourcesError:
    """The error for a member of another type."""
    return InvalidResourcesError(f"{path}: expected {expected}, found {type(found).__name__}")
