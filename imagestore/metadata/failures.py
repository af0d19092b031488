"""SQLite's errors, and the system's, as ours."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreBusyError, StoreCorruptError, StoreError, StoreFullError, StoreReadOnlyError
from imagestore.metadata import location

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CODES: Final[dict[int, type[StoreError]]] = {
    sqlite3.SQLITE_BUSY: StoreBusyError,
    sqlite3.SQLITE_LOCKED: StoreBusyError,
    sqlite3.SQLITE_FULL: StoreFullError,
    sqlite3.SQLITE_READONLY: StoreReadOnlyError,
    sqlite3.SQLITE_CANTOPEN: StoreReadOnlyError,
    sqlite3.SQLITE_PERM: StoreReadOnlyError,
    sqlite3.SQLITE_CORRUPT: StoreCorruptError,
    sqlite3.SQLITE_NOTADB: StoreCorruptError,
}
_NUMBERS: Final[dict[int, type[StoreError]]] = {
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EROFS: StoreReadOnlyError,
    errno.EACCES: StoreReadOnlyError,
    errno.EPERM: StoreReadOnlyError,
}
CORRUPT_HINT: Final = (
    "the content beside it is not touched; 'imagestore check --rebuild' keeps the file and restores the records"
)
_HINTS: Final[dict[type[StoreError], str]] = {
    StoreBusyError: "another process holds the database; try again",
    StoreFullError: "free space there, or run 'imagestore gc'",
    StoreReadOnlyError: "choose a folder you may write with --root",
    StoreCorruptError: CORRUPT_HINT,
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds what was wanted."""
    # The low byte of an extended code is the plain one.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


@contextlib.contextmanager
def translated(database: Path, shown: Path | None = None) -> Iterator[None]:
    """Raise our errors instead of SQLite's and the system's.

    Args:
        database: whose file system is looked at when SQLite can't say what is wrong.
        shown: the file to name instead.

    Raises:
        StoreError: by the code of the error.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = _CODES.get(code, StoreError)
        if code == sqlite3.SQLITE_IOERR and location.is_full(database.parent):
            kind = StoreFullError  # what a full disk looks like to SQLite's log
        raise kind(f"{shown or database}: {error}", hint=_HINTS.get(kind, "")) from error
    except OSError as error:
        kind = _NUMBERS.get(error.errno or 0, StoreError)
        text = f"{shown or database}: {error.strerror or error}"
        raise kind(text, hint=_HINTS.get(kind, "")) from error
