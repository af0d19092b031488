"""SQLite's errors, and the system's, as ours."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    InvalidInputError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from imagestore.metadata.sqlite import location
from imagestore.util.file_locks import byte_lock_holder
from imagestore.util.permissions import permission_hint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

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
#: A failed read is damage, as a page with wrong bytes is.
_UNREADABLE: Final = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
#: Python's message, without a code, for bytes that SQLite's own check accepts as text.
NO_TEXT: Final = "Could not decode to UTF-8"
_NUMBERS: Final[dict[int, type[StoreError]]] = {
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EROFS: StoreReadOnlyError,
    errno.EACCES: StoreReadOnlyError,
    errno.EPERM: StoreReadOnlyError,
}
#: Texts for errors of the system rather than of the database.
_REFUSALS: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is read-only",
}
#: Python's message for a connection that was closed.
_CLOSED: Final = "Cannot operate on a closed database."
#: SQLite's limit is 512, and the files next to the database have longer names.
_LONGEST_PATH: Final = 500
_SHOWN: Final = 200
FULL_HINT: Final = "free space there, or run 'imagestore gc'"
CORRUPT_HINT: Final = (
    "the content next to it is not touched; 'imagestore check --rebuild' keeps the file and restores the records"
)
#: https://www.sqlite.org/walformat.html, "WAL Locks".
_WRITE_LOCK_BYTE: Final = 120
#: A connection keeps what its file allowed when it was opened.
_REOPEN_HINT: Final = "its permissions allow it now: open the store again, or start anew"
_HINTS: Final[dict[type[StoreError], str]] = {
    StoreBusyError: "another process holds the database; try again",
    StoreFullError: FULL_HINT,
    StoreReadOnlyError: StoreReadOnlyError.HINT,
    StoreCorruptError: CORRUPT_HINT,
}


def closed(path: Path | str) -> StoreError:
    """The error of calls to a store that was closed."""
    return StoreError(f"{path}: this store is closed", hint="open it again")


def _judged_number(number: int) -> tuple[type[StoreError], str]:
    """Our error for an errno, and its hint."""
    ours = _NUMBERS.get(number, StoreError)
    return ours, StoreReadOnlyError.MOUNTED_HINT if number == errno.EROFS else _HINTS.get(ours, "")


def writer(database: Path) -> str:
    """Who has the lock for writing a database, for messages: a byte of the log's index."""
    return byte_lock_holder(f"{database}-shm", _WRITE_LOCK_BYTE)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock."""
    # The low byte of an extended code is the plain one.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


class Translated:
    """A context manager that raises our errors instead of SQLite's and the system's, around every call.

    Args:
        database: named in messages; its file system is examined when SQLite doesn't say what is wrong.
    """

    __slots__ = ("_database",)

    def __init__(self, database: Path) -> None:
        self._database = database

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if isinstance(value, sqlite3.ProgrammingError) and str(value) == _CLOSED:
            raise closed(self._database) from value
        if isinstance(value, sqlite3.Error):
            ours, text, hint = self._judged(value)
            path = self._database
            if hint == StoreReadOnlyError.HINT:
                path, hint = self._refused(value)
            elif is_busy(value):
                hint = f"{writer(path)} holds the database; try again"
            raise ours(f"{path}: {text}", hint=hint) from value
        if isinstance(value, OSError):
            ours, hint = _judged_number(value.errno or 0)
            named = value.filename if isinstance(value.filename, str) else self._database
            if value.errno == errno.EACCES:
                hint = permission_hint(named)
            raise ours(f"{named}: {value.strerror or value}", hint=hint) from value
        if isinstance(value, UnicodeEncodeError):
            raise InvalidInputError(f"{value.object[:_SHOWN]!r}: expected UTF-8") from value

    def _judged(self, error: sqlite3.Error) -> tuple[type[StoreError], str, str]:
        """Our error, its text, and its hint."""
        extended = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if str(error).startswith(NO_TEXT):
            return StoreCorruptError, str(error), CORRUPT_HINT
        if code == sqlite3.SQLITE_CANTOPEN and len(os.fsencode(self._database)) > _LONGEST_PATH:
            return StoreError, f"the path is longer than the {_LONGEST_PATH} bytes that SQLite takes", ""
        number = self._system_error(code) if extended not in _UNREADABLE else None
        if number is not None:
            ours, hint = _judged_number(number)
            said = _REFUSALS.get(number)
            return ours, f"{said} ({error})" if said else f"{error}: {os.strerror(number)}", hint
        ours = StoreCorruptError if extended in _UNREADABLE else _CODES.get(code, StoreError)
        return ours, str(error), _HINTS.get(ours, "")

    def _refused(self, error: sqlite3.Error) -> tuple[Path, str]:
        """The file or folder that this user may not use, and what to do about it."""
        path = location.refused(self._database)
        if path is not None:
            return path, permission_hint(path)
        is_reading = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY
        return self._database, _REOPEN_HINT if is_reading else StoreReadOnlyError.HINT

    def _system_error(self, code: int) -> int | None:
        """The errno that SQLite doesn't report: why a file can't be created or written."""
        if code == sqlite3.SQLITE_CANTOPEN:
            return location.cause(self._database)
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
            return location.refusal(self._database)
        return None


@contextlib.contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Report rows that can't be parsed as damage of a database.

    Raises:
        StoreCorruptError: a record can't be read.
    """
    try:
        yield
    except UnicodeEncodeError:
        raise  # of the question, not of the records
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptError(f"{path}: a record can't be read: {error}", hint=CORRUPT_HINT) from error
