"""Tables of values that other projects can test against too: ``fixtures/vectors/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagestore.platforms import Platform

_FOLDER = Path(__file__).parents[2] / "fixtures" / "vectors"


def table(file: str, name: str) -> list[Any]:
    """A table as it stands in its file."""
    found: list[Any] = json.loads((_FOLDER / f"{file}.json").read_text("utf-8"))[name]
    return found


def rows(file: str, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of a table; objects with an operating system are platforms, lists are tuples."""
    return [tuple(_value(row.get(column)) for column in columns) for row in table(file, name)]


def _value(found: Any) -> Any:
    if isinstance(found, dict) and "os" in found:
        features = tuple(found.get("os.features", ()))
        return Platform(
            found["os"], found["architecture"], found.get("variant", ""), found.get("os.version", ""), features
        )
    return tuple(found) if isinstance(found, list) else found
