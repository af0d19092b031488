"""Who holds the locks that a session waits for, as the server tells: for messages.

A suspended process keeps what its transaction has locked until the server ends its session, and everybody else waits.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from imagestore.metadata.postgres.connection import LimitedConnection
from imagestore.util import long_waits
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

#: For connecting, and for the answer.
_LOOK_SECONDS: Final = 2
#: The longest wait for a lock, and for a connection.
_FRESH_SECONDS: Final = 30.0
#: From the waiting session (behind a pooler, whose sessions are unknown, from all of this database) along those that
#: hold locks, to those that wait for no lock themselves.
_ASK: Final = """
WITH RECURSIVE waiting(pid) AS (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND (%(session)s = 0 OR pid = %(session)s)
    UNION SELECT unnest(pg_blocking_pids(waiting.pid)) FROM waiting
)
SELECT pid, application_name, host(client_addr), state,
    extract(epoch FROM clock_timestamp() - state_change)::double precision
FROM pg_stat_activity JOIN waiting USING (pid)
WHERE wait_event_type IS DISTINCT FROM 'Lock' AND pid <> %(session)s
ORDER BY xact_start LIMIT 3
"""


class Holders:
    """Reports who holds the locks that sessions of this process wait for.

    Args:
        name: of the database, for messages.
        parameters: of a session that asks, since the waiting one is busy.

    Attributes:
        is_pooled: whether a pooler hides which session waits.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self._name = name
        self._parameters = {**parameters, "connect_timeout": _LOOK_SECONDS}
        self.is_pooled = False
        self._last, self._found_at = "", 0.0

    def watch(self, db: LimitedConnection) -> None:
        """Report the long waits of a session."""
        db.holder = self._of

    def _of(self, waiting: LimitedConnection) -> str:
        session = 0 if self.is_pooled else waiting.info.backend_pid
        try:
            with LimitedConnection.connect(**self._parameters) as db:
                db.limit_seconds = _LOOK_SECONDS
                found = " and ".join(_described(*row) for row in db.execute(_ASK, {"session": session}))
        except psycopg.Error as error:
            log.debug("who holds a lock can't be asked: %s", error)
            return ""
        if found:
            self._last, self._found_at = found, time.monotonic()
            long_waits.report(self._name, found)
        return found

    def note(self, error: psycopg.Error) -> None:
        """Add to an error that no connection is free for whom the others wait, if they do."""
        if self._last and time.monotonic() - self._found_at < _FRESH_SECONDS:
            error.add_note(self._last)


def _described(session: int, name: str | None, host: str | None, state: str | None, seconds: float | None) -> str:
    place = f"from {host}" if host else "on the server's machine"
    since = f", {state} for {seconds:.0f} s" if state and seconds is not None else ""
    return f"{printable(name or 'an unnamed program')} (server process {session}, {place}{since})"
