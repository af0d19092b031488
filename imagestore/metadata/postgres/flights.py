"""Who brings which digest, of all machines: advisory locks of a session that is used for nothing else.

Only bytes are saved by it; nothing relies on it. The session, and so its locks, ends with its process at once, and with
a lost machine when the server's keepalive notices. Behind a pooler of transactions a session is nobody's own, so there
everybody flies. A waiter asks again: one that waited inside the server would stop its vacuum.
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

#: Of one session; the server has room for some ten thousand in all.
_MOST: Final = 1000
_LIMIT_SECONDS: Final = 3.0
_TRY: Final = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
_END: Final = "SELECT pg_advisory_unlock(hashtextextended(%s, 0))"


class Flights:
    """The flights of this process; thread-safe.

    Args:
        connect: makes a session; None where none can be had for oneself.
    """

    def __init__(self, connect: Callable[[], LimitedConnection] | None) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: LimitedConnection | None = None
        self._flying: set[str] = set()

    def try_begin(self, text: str) -> OwnFlight | None:
        """Begin a flight; None while somebody else, of this process too, has it."""
        if self._connect is None:
            return OwnFlight(self, "")
        with self._lock:
            # A session is given a lock again that it has already.
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
            # Locks went with the last one; those who hold them go on, and others may begin.
            self._flying.clear()
            self._connection = connect()
            # Others wait for it, and whoever gets no answer flies.
            self._connection.limit_seconds = _LIMIT_SECONDS
        return self._connection

    def _forget_session(self, error: psycopg.Error) -> None:
        log.debug("the session of flights was lost: %s", error)
        self._flying.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class OwnFlight:
    """That this process brings a digest.

    Args:
        flights: of the process.
        text: the digest; empty for one that stops nobody.
    """

    def __init__(self, flights: Flights, text: str) -> None:
        self._flights = flights
        self._text = text

    def end(self) -> None:
        """Let others go on; harmless when it ended already."""
        text, self._text = self._text, ""
        if text:
            self._flights.end(text)
