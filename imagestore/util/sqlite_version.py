"""Whether this Python's SQLite can hold our databases."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from typing import Final

from imagestore.errors import PreconditionError

#: STRICT tables; RETURNING and DROP COLUMN need 3.35.
NEEDED: Final = (3, 37)


def check_sqlite() -> None:
    """To be called before a database, or a folder for one, is made.

    Raises:
        PreconditionError: SQLite is too old.
    """
    if sqlite3.sqlite_version_info >= NEEDED:
        return
    needed = ".".join(map(str, NEEDED))
    raise PreconditionError(
        f"SQLite {sqlite3.sqlite_version} is too old: SQLite {needed} or newer is needed; {sys.executable} has it from"
        f" {_origin()}",
        hint="use a Python that is built with a newer SQLite, for example one of python.org, conda or a newer system",
    )


def _origin() -> str:
    """The file that Python's module is in, which the library is linked to or part of."""
    found = importlib.util.find_spec("_sqlite3")
    return (found and found.origin) or "the interpreter itself"
