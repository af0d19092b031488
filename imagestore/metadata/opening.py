"""Opening the database file: where it is reached, how it is tuned, and how its schema becomes today's."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreReadOnlyError
from imagestore.failpoint import reach
from imagestore.metadata import schema
from imagestore.metadata.turns import BUSY_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

#: So long may the log get before a commit has to bring it home; long work does that apart, while nobody waits.
LOG_PAGES: Final = 6000


def address(path: Path, *, is_read_only: bool, mode: str = "rwc") -> str:
    """Where a database is reached, as a URI.

    Args:
        path: the file.
        is_read_only: whether its file system is: then nobody changes the file, and no log can be made beside it.
        mode: SQLite's, see https://www.sqlite.org/uri.html, on a file system that isn't.

    Raises:
        StoreReadOnlyError: the log beside it holds changes that can't be brought in.
    """
    if not is_read_only:
        return schema.address(path, f"mode={mode}")
    with contextlib.suppress(FileNotFoundError):
        if os.stat(f"{path}-wal").st_size:
            raise StoreReadOnlyError(
                f"{path}: the file system is read-only, and the log beside it holds changes to bring in",
                hint="mount it writable once",
            )
    return schema.address(path, "immutable=1&mode=ro")


def connect(where: str) -> sqlite3.Connection:
    """A connection for any thread, to an address, without transactions that nobody began.

    Raises:
        sqlite3.Error: it can't be opened.
    """
    return sqlite3.connect(where, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)


def tune(db: sqlite3.Connection, *, has_foreign_keys: bool = True) -> None:
    """Set what isn't kept in the file."""
    keys = f"foreign_keys = {'ON' if has_foreign_keys else 'OFF'}"
    # Debian's SQLite writes zeros over what is deleted, pages that nobody reads among it. Nothing here is secret.
    for pragma in ("synchronous = FULL", keys, "secure_delete = OFF", f"wal_autocheckpoint = {LOG_PAGES}"):
        db.execute(f"PRAGMA {pragma}")


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Take the steps from a version of the schema to today's; inside a transaction."""
    for step in schema.STEPS[version:]:
        for statement in step:
            reach("database-migrate")
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {schema.CURRENT}")
