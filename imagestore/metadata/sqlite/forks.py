"""Forks: a child neither uses nor closes its parent's connections, and opens none while it has inherited any.

SQLite must not be carried across a fork (https://www.sqlite.org/howtocorrupt.html, section 2.6). It notes for each
process which POSIX locks it has; a child inherits the notes and none of the locks (fcntl(2)). With a connection of its
own the child would rely on locks that it doesn't have: another process, the last one to close the database as far as
the locks say, deletes the log, and with it what the child commits. So open connections are noted here, with the process
that opened them.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

FORK_HINT: Final = "open stores after the fork, or start the process anew (multiprocessing: 'spawn' or 'forkserver')"


class OwnConnection:
    """A connection, closed only by the process that opened it.

    Args:
        path: the database.
        address: of it, as a URI.
        busy_seconds: how long to wait for locks.
        cached_statements: how many statements stay prepared.

    Attributes:
        connection: for any thread; transactions begin explicitly.

    Raises:
        StoreError: this process inherited connections.
        sqlite3.Error: it can't be opened.
    """

    def __init__(self, path: Path, address: str, *, busy_seconds: float, cached_statements: int = 128) -> None:
        refuse_in_child(path)
        self._process = os.getpid()
        # Before SQLite begins: another thread may fork in the middle of it.
        _open[self] = self._process
        try:
            self.connection = sqlite3.connect(
                address,
                timeout=busy_seconds,
                isolation_level=None,
                check_same_thread=False,
                uri=True,
                cached_statements=cached_statements,
            )
        except BaseException:
            del _open[self]
            raise
        # Python closes a connection that it frees, also at exit, and a child must not. This function refers to the
        # connection, so that it isn't freed before its close().
        connection = self.connection
        connection.create_function("imagestore_connection", 0, lambda: id(connection))

    def close(self) -> None:
        """Close it, unless another process opened it; repeated calls do nothing."""
        if self._process == os.getpid():
            self.connection.close()
            _open.pop(self, None)


#: Open connections, with the process that opened each.
_open: dict[OwnConnection, int] = {}


def refuse_in_child(path: Path) -> None:
    """Refuse to open a database in a process that was forked while its parent had one open.

    Raises:
        StoreError: it inherited connections.
    """
    process = os.getpid()
    if any(each != process for each in list(_open.values())):
        raise StoreError(
            f"{path}: can't be opened here: this process was forked while a store was open", hint=FORK_HINT
        )
