"""Whether records changed, asked in microseconds, on a connection of its own.

SQLite's ``data_version`` moves with every commit of another connection, whichever process it belongs to; only then is
the number of the last change of records read. So leases of running work, edges and times of use, which change all the
time, look like no change, and no caller waits for the store's own connection.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from typing import TYPE_CHECKING

from imagestore.metadata.sqlite.forks import OwnConnection

if TYPE_CHECKING:
    from pathlib import Path


class ChangeWatch:
    """The number of the last change of records.

    Args:
        path: the database.
        address: of it, as a URI.
    """

    def __init__(self, path: Path, address: str) -> None:
        self._lock = threading.Lock()
        self._own = OwnConnection(path, address, busy_seconds=0, cached_statements=4)
        self._connection = self._own.connection
        weakref.finalize(self, self._own.close)
        self._data_version: int | None = None
        self._generation: int | None = None

    def generation(self) -> int | None:
        """A number that is another one after every change of a record, in any process; None when it can't be told."""
        with self._lock:
            try:
                (version,) = self._connection.execute("PRAGMA data_version").fetchone()
                if version != self._data_version:
                    query = "SELECT value FROM counter WHERE name = 'generation'"
                    (self._generation,) = self._connection.execute(query).fetchone()
                    # A commit between the two reads moves the version again, and the next call sees it.
                    self._data_version = version
            except sqlite3.Error:
                # Closed, busy with recovery, or damaged; the next read of the records says which.
                self._data_version = None
                return None
            return self._generation

    def close(self) -> None:
        """Close the connection; later calls know nothing."""
        with self._lock:
            self._own.close()
