"""Single flight: of all machines only one fetches a digest. Advisory locks of a session used for nothing else.

It only saves bytes; correctness doesn't depend on it. The locks end with the session: at once with its process, and
with a lost machine when the server's keepalive notices. Behind a transaction pooler there is no session of one's own,
so every machine fetches. A waiter polls: waiting inside the server would hold up its vacuum.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.metadata.postgres.connection import LimitedConnection

log = logging.getLogger(__name__)

#: Locks of one session; the server has room for some ten thousand in all.
_MOST: Final = 1000
_LIMIT_SECONDS: Final = 3.0
_TRY: Final = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
_END: Final = "SELECT pg_advisory_unlock(hashtextextended(%s, 0))"


class Flights:
    """The flights of this process; thread-safe.

    Args:
        connect: makes a session; None behind a pooler.
    """

    def __init__(self, connect: Callable[[], LimitedConnection] | None) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: LimitedConnection | None = None
        self._flying: set[str] = set()

    def try_begin(self, text: str) -> OwnFlight | None:
        """Begin to fetch a digest; None while another thread or machine does."""
        if self._connect is None:
            return OwnFlight(self, "")
        with self._lock:
            # The server grants a session a lock again that it already has.
            if text in self._flying:
                return None
            if len(self._flying) >= _MOST:
                return OwnFlight(self, "")
            try:
                row = self._session(self._connect).execute(_TRY, (text,)).fetchone()
            except psycopg.Error as error:
                self._forget_session(error)
                return OwnFlight(self, "")
            if row is None or not row[0]:
                return None
            self._flying.add(text)
            return OwnFlight(self, text)

    def end(self, text: str) -> None:
        """End a flight."""
        with self._lock:
            if text not in self._flying:
                return
            self._flying.discard(text)
            if self._connection is not None:
                try:
                    self._connection.execute(_END, (text,))
                except psycopg.Error as error:
                    self._forget_session(error)

    def close(self) -> None:
        """End all flights."""
        with self._lock:
            self._flying.clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _session(self, connect: Callable[[], LimitedConnection]) -> LimitedConnection:
        if self._connection is None or self._connection.closed:
            # The last session's locks are released; their holders go on, and others may begin.
            self._flying.clear()
            self._connection = connect()
            # Threads wait for this session; without an answer in time they fetch.
            self._connection.limit_seconds = _LIMIT_SECONDS
        return self._connection

    def _forget_session(self, error: psycopg.Error) -> None:
        log.debug("the session of flights was lost: %s", error)
        self._flying.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class OwnFlight:
    """That this process fetches a digest.

    Args:
        flights: of the process.
        text: the digest; empty when no lock is held.
    """

    def __init__(self, flights: Flights, text: str) -> None:
        self._flights = flights
        self._text = text

    def end(self) -> None:
        """Release the lock; repeated calls do nothing."""
        text, self._text = self._text, ""
        if text:
            self._flights.end(text)
