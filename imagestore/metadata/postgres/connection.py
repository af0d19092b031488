"""Connections to a shared store's database: time limits, transactions, locks, poolers."""

from __future__ import annotations

import contextlib
import math
import select
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import psycopg_pool

import imagestore.metadata.postgres.schema as schema
from imagestore.util import long_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from psycopg.abc import PQGen

    Connection = psycopg.Connection[tuple[Any, ...]]

Result = TypeVar("Result")

#: A statement, waiting for locks included.
STATEMENT_SECONDS: Final = 20.0
_INTERVAL_SECONDS: Final = 0.1
#: So long after an answer a connection isn't tried out before it is used.
_TRUSTED_SECONDS: Final = 1.0
_PASSED_OVER: Final = "an error inside of the transaction was passed over"


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that limits the time of each statement, for servers that don't answer."""

    #: For the next statements; None: the usual one.
    limit_seconds: float | None = None
    #: When it last answered, by a steady clock.
    answered_at: float = -math.inf
    #: Looks, while a statement takes long, who holds the lock that it waits for; says "" if it waits for none.
    holder: Callable[[LimitedConnection], str] | None = None

    def check_alive(self, limit_seconds: float) -> None:
        """Ask the server for a sign of life, unless it gave one a moment ago and has said nothing since.

        A server that ended the connection has sent its reason, or the end.

        Raises:
            psycopg.OperationalError: there was none in time.
        """
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        if waiting.poll(0) or time.monotonic() - self.answered_at > _TRUSTED_SECONDS:
            self.limit_seconds = limit_seconds
            psycopg_pool.ConnectionPool.check_connection(self)
            self.limit_seconds = None

    def wait(self, gen: PQGen[Result], interval: float = _INTERVAL_SECONDS, timeout: float | None = None) -> Result:
        """As the library's; closes the connection when the time is over. Errors have a note of who held the lock."""
        limit = timeout or self.limit_seconds or STATEMENT_SECONDS
        began, notes = time.monotonic(), list[str]()
        try:
            answer = super().wait(self._watched(gen, began, notes), interval, limit)
            self.answered_at = time.monotonic()
            return answer
        except psycopg.OperationalError as error:
            if time.monotonic() - began >= limit:
                self.close()
            for note in notes:
                error.add_note(note)
            raise

    def _watched(self, gen: PQGen[Result], began: float, notes: list[str]) -> PQGen[Result]:
        """The same steps; in a long wait, at growing intervals, it looks for the holder until there is one."""
        pause = long_waits.LONG_WAIT_SECONDS
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if self.holder is not None and not notes and time.monotonic() - began >= pause:
                    pause *= 2
                    notes.extend(filter(None, [self.holder(self)]))
                wanted = gen.send(ready)
        except StopIteration as ended:
            result: Result = ended.value
            return result


@contextlib.contextmanager
def transaction(db: Connection, prologue: str) -> Iterator[tuple[Any, ...] | None]:
    """A transaction, from its prologue to its commit, or to its rollback after an exception.

    Args:
        db: a connection in autocommit mode.
        prologue: statements that begin with BEGIN, sent in one round trip, which ``Connection.transaction()`` can't.

    Yields:
        The first row of the prologue's last statement.
    """
    begun = db.execute(prologue)
    try:
        while begun.nextset():
            pass
        yield begun.fetchone() if begun.description is not None else None
    except BaseException:
        # The first error is raised even if the rollback fails too; the pool discards a broken connection.
        with contextlib.suppress(psycopg.Error):
            db.rollback()
        raise
    if db.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
        # The server would treat COMMIT as ROLLBACK without an error.
        db.rollback()
        raise psycopg.errors.InFailedSqlTransaction(_PASSED_OVER)
    db.commit()


@contextlib.contextmanager
def pipelined(db: Connection, prologue: Sequence[str]) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
    """As transaction(), in few round trips: a statement is sent when a result is asked for, the last with the commit.

    Args:
        db: a connection in autocommit mode.
        prologue: statements; the first is BEGIN.

    Yields:
        The result of the prologue's last statement.
    """
    with db.pipeline():
        try:
            begun = [db.execute(statement) for statement in prologue]
            yield begun[-1]
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                db.rollback()
            raise
        # Connection.commit() does nothing where not even BEGIN was sent.
        ended = db.execute("COMMIT")
    if ended.statusmessage != "COMMIT":
        raise psycopg.errors.InFailedSqlTransaction(_PASSED_OVER)


def lock(*, is_alone: bool) -> str:
    """The expression that takes the store's lock until the transaction ends, exclusive or shared."""
    return f"pg_advisory_xact_lock{'' if is_alone else '_shared'}({schema.STORE_LOCK})"


def commit_mode(db: Connection) -> str:
    """The server's synchronous_commit setting."""
    row = db.execute("SHOW synchronous_commit").fetchone()
    return str(row[0]) if row else "on"


def is_pooled(db: Connection) -> bool:
    """Whether another session answers than the one that was announced when connecting, as behind pgbouncer."""
    row = db.execute("SELECT pg_backend_pid()").fetchone()
    return row is None or row[0] != db.info.backend_pid
