"""Backups: a copy of the database in one new file, made while others go on."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError, PreconditionError, StoreFullError
from imagestore.metadata.sqlite import integrity, schema
from imagestore.metadata.sqlite.failures import Translated
from imagestore.metadata.sqlite.schema import COPIED
from imagestore.util import files
from imagestore.util.failpoint import reach
from imagestore.util.files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Errors of file systems without hard links (of memory sticks, some network ones).
NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


def copy_to(connection: sqlite3.Connection, target: Path) -> None:
    """Write what a connection sees to a new file.

    Raises:
        AlreadyExistsError, InvalidInputError, PreconditionError: the target exists or can't be written.
        StoreError: the database can't be read.
    """
    if os.path.lexists(target):
        raise AlreadyExistsError(f"{target}: expected a new file, but it exists", hint="name another file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with _writing(target):
            write(connection, temporary)
            reach("backup-rename")
            _name(temporary, target)
            sync_directory(target.parent)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write(connection: sqlite3.Connection, path: Path) -> None:
    """Write what a connection sees to a new file, without a name that counts yet.

    Raises:
        OSError, sqlite3.Error: it can't be written.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    reach("backup-write")
    copy = sqlite3.connect(path, isolation_level=None)
    try:
        connection.backup(copy)
        # Where it is restored it counts, although it is older than what was there.
        copy.execute("INSERT OR IGNORE INTO counter VALUES (?, 1)", (COPIED,))
        # One file without a log, that can be copied anywhere; opening it as a store turns the log on again.
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()


def refuse_unrestorable(path: Path, *, named: Path) -> None:
    """Refuse a file that can't be restored; the error calls it ``named``.

    Raises:
        InvalidInputError: it is no backup of a store, damaged, or from a newer version.
    """
    try:
        with contextlib.closing(sqlite3.connect(schema.address(path, "mode=ro"), uri=True)) as db:
            (mark,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if mark != schema.APPLICATION_ID:
                raise InvalidInputError(f"{named}: expected a backup of a store, found another database")
            if version > schema.CURRENT:
                raise InvalidInputError(
                    f"{named}: its format has version {version}, this program reads up to {schema.CURRENT}",
                    hint="use the program that wrote it, or a newer one",
                )
            lines = integrity.damage(db)
    except sqlite3.Error as error:
        raise InvalidInputError(f"{named}: expected a backup of a store: {error}") from error
    if lines:
        raise InvalidInputError(f"{named}: the backup is damaged: {lines[0]}", hint="restore another one")


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Report errors of the copy as the target's: the store isn't full because that disk is."""
    try:
        with Translated(target):
            try:
                yield
            except OSError as error:
                raise files.write_refusal(target, error) from error
    except StoreFullError as error:
        raise PreconditionError(str(error), hint=files.FULL_HINT) from error


def _name(temporary: Path, target: Path) -> None:
    """Rename a file to a name that must not exist."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # So that only our own empty file is replaced.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.replace(temporary, target)
