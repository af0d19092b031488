"""Connections and transactions of a shared store.

READ COMMITTED. A thread in a transaction has a connection of its own until the end; inner transactions join the outer
one. Everybody who changes something holds a lock of the store together with the others; ``exclusive()`` holds it alone.
A sweep holds it together with the others: rows that it locks, and the order of its statements, make it safe (see
``protocol``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import psycopg_pool

import imagestore.metadata.postgres.schema as schema
from imagestore.errors import StoreCorruptError, StoreError
from imagestore.metadata.postgres.address import DatabaseAddress, checked_scope
from imagestore.metadata.postgres.failures import Translated
from imagestore.metadata.postgres.protocol import RULES
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from psycopg.abc import PQGen

    Connection = psycopg.Connection[tuple[Any, ...]]

Result = TypeVar("Result")

#: Seconds since 1970 by the server's clock: the only one that leases are judged by.
NOW: Final = "extract(epoch FROM statement_timestamp())::double precision"
#: Of one process; each costs the server a process.
_MOST_CONNECTIONS: Final = 16
CONNECT_SECONDS: Final = 10.0
#: A statement, waiting for locks included; and one that reads the whole store.
STATEMENT_SECONDS: Final = 20.0
_WHOLE_STORE_SECONDS: Final = 600.0
LOCK_LIMIT: Final = "15s"
_INTERVAL_SECONDS: Final = 0.1
#: Of connections; a pooler takes no options. Compiling the question what is kept takes seconds, answering it
#: milliseconds. A look locks rows, and needn't wait for the disk; transactions have the server's own setting back.
_OPTIONS: Final = "-c jit=off -c synchronous_commit=off"
#: Locks of names, beside their hashes.
_NAMES_LOCK: Final = 0x696D6773


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that doesn't wait for ever for a server that stands still."""

    #: Of the next statements; None: as of any.
    limit_seconds: float | None = None

    def wait(self, gen: PQGen[Result], interval: float = _INTERVAL_SECONDS, timeout: float | None = None) -> Result:
        """As the library's; a connection whose answer didn't come in time is closed."""
        limit = timeout or self.limit_seconds or STATEMENT_SECONDS
        began = time.monotonic()
        try:
            return super().wait(gen, interval, limit)
        except psycopg.OperationalError:
            if time.monotonic() - began >= limit:
                self.close()
            raise


class _Transaction(threading.local):
    """A thread's transaction."""

    connection: Connection | None = None
    #: Content whose rows a sweep of this thread has locked, and so may delete.
    locked: frozenset[str] | None = None
    after_commit: list[Callable[[], None]]


class PostgresDatabase:
    """A database of its own for the stores that share content; its tables are made when missing.

    Args:
        url: ``postgresql://...``; see DatabaseAddress.
        scope: which store's images and leases are meant.
        is_making: make the tables where there are none.

    Raises:
        ConfigError: no such database, the address can't be read, or psycopg isn't installed.
        PreconditionError: the server refuses the user, or has another program's tables.
        StoreError: it can't be reached, or was written by a newer version.
    """

    def __init__(self, url: str, *, scope: str, is_making: bool = True) -> None:
        self._scope = checked_scope(scope)
        self._url = url
        address = DatabaseAddress(url)
        #: For messages.
        self.name = address.name
        self._parameters = address.parameters
        self._process = os.getpid()
        self._current = _Transaction()
        with Translated(self.name), self.connect() as db:
            #: Told by the database to all that open it.
            self.id = schema.prepare(db, self.name, is_making=is_making)
            #: A pooler is between us and the server, which may give each transaction another session.
            self.is_pooled = _is_pooled(db)
            self._commit_mode = _commit_mode(db)
        self._pool = psycopg_pool.ConnectionPool(
            connection_class=LimitedConnection,
            kwargs=self._arguments(),
            min_size=0,
            max_size=_MOST_CONNECTIONS,
            max_idle=60.0,
            num_workers=1,
            name="imagestore",
            open=True,
        )
        # A store that wasn't closed is closed when it goes away.
        weakref.finalize(self, _close, self._pool, self._process)

    @property
    def scope(self) -> str:
        """Which store's images and leases are meant."""
        return self._scope

    def connect(self) -> LimitedConnection:
        """A connection apart from the pool, that commits each statement; for locks of a session and for listening."""
        return LimitedConnection.connect(**self._arguments(is_pooled=False))

    def _arguments(self, *, is_pooled: bool | None = None) -> dict[str, Any]:
        is_prepared = not (self.is_pooled if is_pooled is None else is_pooled)
        # Behind a pooler the next transaction may meet a session without what was prepared in this one.
        found = {**self._parameters, "autocommit": True, "prepare_threshold": 5 if is_prepared else None}
        if is_pooled is None and not self.is_pooled:
            found["options"] = f"{found.get('options', '')} {_OPTIONS}".strip()
        return found

    @contextlib.contextmanager
    def recording(self, keys: Collection[tuple[str, str]]) -> Iterator[None]:
        """A transaction for putting the records of these (reference, handler): nobody else puts one of them meanwhile.

        Others go on beside it; rows of content that were looked at in it stay by their locks.
        """
        names = sorted({f"{self._scope}\n{reference}" for reference, _ in keys})
        with self.writing() as db:
            # In order, so that nobody waits for each other.
            lock = "SELECT pg_advisory_xact_lock(%s, hashtext(name)) FROM unnest(%s::text[]) AS given(name)"
            db.execute(lock, (_NAMES_LOCK, names))
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the store's lock alone, so that no lease and no record can appear; commits at the end."""
        with self.transaction(is_alone=True):
            yield

    @contextlib.contextmanager
    def transient(self) -> Iterator[None]:
        """A transaction; a crash of the server ends no work of its clients, so it is as durable as any."""
        with self.writing():
            yield

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """One short step of a long work."""
        with self.writing():
            is_outer = self._current.locked is None
            if is_outer:
                self._current.locked = frozenset()
            try:
                yield
            finally:
                if is_outer:
                    self._current.locked = None

    def is_awaited(self) -> bool:
        """False: those who wait are in the server's queue, and get their turn when a batch ends."""
        return False

    def give_way(self) -> None:
        """Nothing: the server's queue is fair."""

    @property
    def is_unchanging(self) -> bool:
        """False: other machines can change the store although this one is refused."""
        return False

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in a transaction."""
        return self._current.connection is not None

    @property
    def is_inherited(self) -> bool:
        """Whether this is a process that was forked after the database was opened."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Refuse the work of a forked child.

        Raises:
            StoreError: this is one.
        """
        if self.is_inherited:
            raise StoreError(
                f"{self.name}: this process was forked after the store was opened",
                hint="start processes by spawn, and open the store in each",
            )

    def close(self) -> None:
        """Close the connections."""
        if not self.is_inherited:
            self._pool.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for one statement, or for several that may see different states."""
        self.check_process()
        with Translated(self.name):
            if self._current.connection is not None:
                yield self._current.connection
                return
            with self._connected() as db:
                yield db

    @contextlib.contextmanager
    def _whole_store(self) -> Iterator[Connection]:
        """As _reading(), for what takes long in a large store."""
        with self.reading() as db:
            if not isinstance(db, LimitedConnection):
                raise TypeError(f"expected a connection of this module, got {type(db)}")
            try:
                db.limit_seconds = _WHOLE_STORE_SECONDS
                yield db
            finally:
                db.limit_seconds = None

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Several reads that see one state, of the whole store perhaps."""
        with self._whole_store() as db:
            if self._current.connection is not None:
                yield db
                return
            with db.transaction():
                db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                yield db

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that changes something; inner ones join the outer."""
        with self.transaction(is_alone=False) as db:
            yield db

    @contextlib.contextmanager
    def transaction(self, *, is_alone: bool) -> Iterator[Connection]:
        self.check_process()
        current = self._current
        if current.connection is not None:
            if is_alone:
                current.connection.execute(_lock(is_alone=True))
            yield current.connection
            return
        after_commit: list[Callable[[], None]] = []
        with Translated(self.name), contextlib.ExitStack() as stack:
            reach("database-begin")
            db, row = self.begun(stack, self._prologue(is_alone=is_alone))
            schema.refuse_newer(row, self.name)
            current.connection, current.after_commit = db, after_commit
            try:
                reach("database-begun")
                yield db
                reach("database-commit")
            finally:
                current.connection, current.after_commit = None, []
        reach("database-committed")
        for work in after_commit:
            work()

    def begun(self, stack: contextlib.ExitStack, prologue: str) -> tuple[Connection, tuple[Any, ...] | None]:
        """A connection in a transaction, both until the stack ends.

        A restarted server leaves dead connections in the pool. What was lost with one is nothing yet.

        Args:
            stack: ends the transaction: it is committed, or after an exception rolled back.
            prologue: statements that begin with BEGIN, sent in one round trip, as ``Connection.transaction()`` can't.

        Returns:
            The connection, and the first row of the prologue's last statement.
        """
        for _ in range(_MOST_CONNECTIONS):
            db: LimitedConnection | None = None
            try:
                with contextlib.ExitStack() as trial:
                    db = trial.enter_context(self._pool.connection(CONNECT_SECONDS))
                    row = trial.enter_context(_transaction(db, prologue))
                    stack.push(trial.pop_all())
                    return db, row
            except psycopg.OperationalError:
                if db is None or not db.closed:
                    raise
        raise psycopg.OperationalError("connections are lost as soon as they are made")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[LimitedConnection]:
        """A living connection."""
        for _ in range(_MOST_CONNECTIONS):
            with self._pool.connection(CONNECT_SECONDS) as db:
                try:
                    psycopg_pool.ConnectionPool.check_connection(db)
                except psycopg.OperationalError:
                    continue
                yield db
                return
        raise psycopg.OperationalError("connections are lost as soon as they are made")

    def settings(self) -> str:
        """Statements for the begin of every transaction."""
        isolation = "READ COMMITTED" if RULES.read_committed else "REPEATABLE READ"
        return (
            f"BEGIN ISOLATION LEVEL {isolation}; SET LOCAL jit = off; SET LOCAL lock_timeout = '{LOCK_LIMIT}';"
            f" SET LOCAL synchronous_commit = {self._commit_mode}"
        )

    def _prologue(self, *, is_alone: bool) -> str:
        return f"{self.settings()}; {_lock(is_alone=is_alone)}; {schema.ASK_VERSION}"

    def deletable(self, texts: Sequence[str]) -> Sequence[str]:
        """Those contents that this thread may delete: in a sweep, those whose rows it has locked."""
        locked = self._current.locked
        return texts if locked is None else [text for text in texts if text in locked]

    def _after_commit(self, work: Callable[[], None]) -> None:
        """Do something when the transaction of this thread is committed; at once where there is none."""
        if self._current.connection is None:
            work()
        else:
            self._current.after_commit.append(work)

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorruptError(
                f"{self.name}: a record can't be read: {error}", hint="restore the database from its backup"
            ) from error


def _is_pooled(db: Connection) -> bool:
    """Whether the session that answers isn't the one we were told of when we connected, as behind pgbouncer."""
    row = db.execute("SELECT pg_backend_pid()").fetchone()
    return row is None or row[0] != db.info.backend_pid


@contextlib.contextmanager
def _transaction(db: Connection, prologue: str) -> Iterator[tuple[Any, ...] | None]:
    begun = db.execute(prologue)
    try:
        while begun.nextset():
            pass
        yield begun.fetchone() if begun.description is not None else None
    except BaseException:
        # What failed is told, whatever becomes of the rollback; the pool throws a broken connection away.
        with contextlib.suppress(psycopg.Error):
            db.rollback()
        raise
    if db.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
        # The server would take COMMIT for ROLLBACK, and say nothing.
        db.rollback()
        raise psycopg.errors.InFailedSqlTransaction("an error inside of the transaction was passed over")
    db.commit()


def _lock(*, is_alone: bool) -> str:
    return f"SELECT pg_advisory_xact_lock{'' if is_alone else '_shared'}({schema.STORE_LOCK})"


def _commit_mode(db: Connection) -> str:
    """What the server says of when a transaction is durable."""
    row = db.execute("SHOW synchronous_commit").fetchone()
    return str(row[0]) if row else "on"


def _close(pool: psycopg_pool.ConnectionPool[Any], process: int) -> None:
    if os.getpid() == process:
        pool.close()
