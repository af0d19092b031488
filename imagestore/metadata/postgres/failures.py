"""PostgreSQL's errors as ours: one line with the database and the reason, and a hint."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

import psycopg
import psycopg_pool

from imagestore.errors import (
    ConfigError,
    ContentUnavailableError,
    ImageStoreError,
    InvalidInputError,
    PreconditionError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_MOST_SHOWN: Final = 300
#: By SQLSTATE, or the two letters of its class (PostgreSQL, appendix A).
_CODES: Final[dict[str, type[ImageStoreError]]] = {
    "28": PreconditionError,  # who are you
    "3D": ConfigError,  # no such database
    "42501": PreconditionError,  # not allowed
    "25006": StoreReadOnlyError,
    "53100": StoreFullError,
    "53": StoreBusyError,  # connections, memory
    "55P03": StoreBusyError,
    "57014": StoreBusyError,  # cancelled by statement_timeout
    "40": StoreBusyError,  # deadlock, serialization
    "XX": StoreCorruptError,
    "22021": InvalidInputError,  # a text that is none, as with NUL
    "22P05": InvalidInputError,
}
_HINTS: Final[dict[type[ImageStoreError], str]] = {
    PreconditionError: "correct the user or the password (PGPASSWORD or ~/.pgpass), or the user's rights",
    ConfigError: "correct the address, or make the database (createdb)",
    StoreReadOnlyError: "this server is a standby; name all servers and add target_session_attrs=read-write",
    StoreFullError: "free space on the database's disk",
    StoreBusyError: "try again; if it stays so, look at the server's connections and locks (pg_stat_activity)",
    StoreCorruptError: "look into the server's log; restore the database from its backup",
    ContentUnavailableError: "see whether the server runs and can be reached; then try again",
}
_HELD_HINT: Final = "try again; if it stays so, see whether that program is suspended, and resume or end it"


class Translated:
    """A context manager that raises our errors instead of psycopg's.

    Args:
        name: of the database, for messages.
        spared: errors of psycopg that are raised as they are.
    """

    __slots__ = ("_name", "_spared")

    def __init__(self, name: str, *, spared: tuple[type[psycopg.Error], ...] = ()) -> None:
        self._name = name
        self._spared = spared

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if isinstance(value, psycopg_pool.PoolClosed):
            raise StoreError(f"{self._name}: this store is closed", hint="open it again") from value
        if isinstance(value, psycopg.Error) and not isinstance(value, self._spared):
            raise translated(value, self._name) from value


@contextlib.contextmanager
def naming_damage(name: str) -> Iterator[None]:
    """Report rows that can't be parsed as damage of a database.

    Raises:
        StoreCorruptError: a record can't be read.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorruptError(
            f"{name}: a record can't be read: {error}", hint="restore the database from its backup"
        ) from error


def translated(error: psycopg.Error, name: str) -> ImageStoreError:
    """Our error for one of psycopg's; ``name`` is the database's, for messages."""
    state = error.sqlstate or ""
    ours = _CODES.get(state) or _CODES.get(state[:2])
    if ours is None:
        is_away = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        ours = ContentUnavailableError if is_away or state.startswith(("08", "57P")) else StoreError
    if not state and (told := _from_text(str(error))):
        ours = told
    line, hint = _line(error), _HINTS.get(ours, "")
    if holders := getattr(error, "__notes__", None):
        line, hint = f"{line}; the lock is held by {'; '.join(holders)}", _HELD_HINT
    return ours(f"{name}: {line}", hint=hint)


def _from_text(text: str) -> type[ImageStoreError] | None:
    """Our error for a text of libpq, which has no code for the server's errors while connecting."""
    if "authentication failed" in text or "no pg_hba.conf entry" in text or "no password supplied" in text:
        return PreconditionError
    if re.search(r"invalid \S+ value|invalid integer value|bad value for", text):
        return ConfigError
    if "does not exist" in text:
        return PreconditionError if 'role "' in text else ConfigError
    return StoreBusyError if "too many clients" in text or "remaining connection slots" in text else None


def _line(error: psycopg.Error) -> str:
    said = error.diag.message_primary or next(iter(str(error).splitlines()), "") or type(error).__name__
    return printable(said)[:_MOST_SHOWN]
