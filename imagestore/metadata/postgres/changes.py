"""Notifications of other machines' changes (LISTEN on a session of its own), so that results can be cached.

Nothing may be cached while notifications might be missed: while the session is being made, when the server hasn't
answered for some seconds, and behind a pooler.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.metadata.postgres.connection import LimitedConnection

log = logging.getLogger(__name__)

#: Interval of probing the server, its time limit, and how long its answer is valid.
_LOOK_SECONDS: Final = 1.0
_LIMIT_SECONDS: Final = 4.0
_SURE_SECONDS: Final = 6.0
_PAUSE_SECONDS: Final = 1.0


class ChangeFeed:
    """Counts the notifications on a channel; thread-safe. Close it.

    Args:
        connect: makes a session; None behind a pooler.
        channel: an identifier.
    """

    def __init__(self, connect: Callable[[], LimitedConnection] | None, channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._lock = threading.Lock()
        self._number = 0
        self._sure_until = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="imagestore-changes", daemon=True)
        if connect is not None:
            self._thread.start()

    def mark(self) -> int | None:
        """A number that differs after every change; None when changes might be missed."""
        with self._lock:
            return self._number if time.monotonic() < self._sure_until else None

    def note(self) -> None:
        """Count a change of this process."""
        with self._lock:
            self._number += 1

    def close(self) -> None:
        """End the session."""
        self._ended.set()
        if self._connect is not None:
            self._thread.join()

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                self._receive()
            except psycopg.Error as error:
                log.debug("no notifications of other machines' changes now: %s", error)
            with self._lock:
                self._sure_until = 0.0
            self._ended.wait(_PAUSE_SECONDS)

    def _receive(self) -> None:
        if self._connect is None:
            return
        with self._connect() as db:
            db.limit_seconds = _LIMIT_SECONDS
            db.execute(f"LISTEN {self._channel}")
            # Counts changes from before the LISTEN.
            self.note()
            while not self._ended.is_set():
                began = time.monotonic()
                db.execute("SELECT 1")
                with self._lock:
                    self._sure_until = began + _SURE_SECONDS
                for _ in db.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                    self.note()
