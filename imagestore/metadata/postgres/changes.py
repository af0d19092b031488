"""Hearing of other machines' changes, so that answers can be remembered: LISTEN, on a session used for nothing else.

Who can't be sure to hear remembers nothing: while the session is being made, when the server hasn't answered for some
seconds, and behind a pooler.
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

#: How often the server is asked whether it is there, how long it has to answer, and how long that answer counts.
_LOOK_SECONDS: Final = 1.0
_LIMIT_SECONDS: Final = 4.0
_SURE_SECONDS: Final = 6.0
_PAUSE_SECONDS: Final = 1.0


class ChangeFeed:
    """Counts the changes that are told on a channel; thread-safe. Close it.

    Args:
        connect: makes a session; None where none can be had for oneself.
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
        """A number that is another one after every change; None when it can't be told."""
        with self._lock:
            return self._number if time.monotonic() < self._sure_until else None

    def note(self) -> None:
        """A change was made here, which needn't be heard."""
        with self._lock:
            self._number += 1

    def close(self) -> None:
        """Hear no more."""
        self._ended.set()
        if self._connect is not None:
            self._thread.join()

    def _listen(self) -> None:
        while not self._ended.is_set():
            try:
                self._hear()
            except psycopg.Error as error:
                log.debug("changes of other machines aren't heard now: %s", error)
            with self._lock:
                self._sure_until = 0.0
            self._ended.wait(_PAUSE_SECONDS)

    def _hear(self) -> None:
        if self._connect is None:
            return
        with self._connect() as db:
            db.limit_seconds = _LIMIT_SECONDS
            db.execute(f"LISTEN {self._channel}")
            # What was changed while nobody listened.
            self.note()
            while not self._ended.is_set():
                began = time.monotonic()
                db.execute("SELECT 1")
                with self._lock:
                    self._sure_until = began + _SURE_SECONDS
                for _ in db.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                    self.note()
