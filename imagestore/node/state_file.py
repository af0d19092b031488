"""Small JSON files with a node agent's state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from imagestore.errors import StoreCorruptError
from imagestore.util import files
from imagestore.util.disk_errors import translated
from imagestore.util.files import make_directory, replace

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, limit_bytes: int, what: str) -> dict[str, Any] | None:
    """The JSON object in a file of limited size; None if there is no file.

    Raises:
        StoreCorruptError: it isn't a JSON object, or is larger.
        StoreError: it can't be read.
    """
    with translated(f"read {what}", path):
        try:
            data = files.read_regular(path, limit_bytes)
        except FileNotFoundError:
            return None
        except files.TooLongError as error:
            raise corrupt(path, what) from error
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise corrupt(path, what) from error
    if not isinstance(value, dict):
        raise corrupt(path, what)
    return value


def write(path: Path, value: Any, what: str) -> None:
    """Replace a file by a value as JSON; its folder is created if missing; raises StoreError."""
    with translated(f"write {what}", path):
        make_directory(path.parent, 0o700)
        replace(path, json.dumps(value).encode() + b"\n")


def corrupt(path: Path, what: str) -> StoreCorruptError:
    """The error for a file with unexpected content."""
    return StoreCorruptError(f"{path}: expected {what}, found something else", hint="delete it")
