"""Connections and transactions of a shared store, and the rules that keep content safe without one lock for all.

A thread in a transaction has a connection of its own until the end; inner transactions join the outer one. Every
transaction that changes something holds the store's advisory lock shared; ``exclusive()`` holds it alone.

A client that needs content leases it, commits, and then looks for it with a lock on the row (FOR SHARE), so it waits
for a collection's decision. A sweep locks the rows first (FOR UPDATE SKIP LOCKED) and asks in a later statement whether
anything keeps them; at READ COMMITTED that statement sees what was committed before it. So one of the two always sees
the other. Each upload has an object of its own, so no sweep deletes a new upload. ``tests/crash/shared_variants.py``
leaves out one rule at a time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import psycopg
import psycopg_pool

import imagestore.metadata.postgres.connection as connection
import imagestore.metadata.postgres.schema as schema
from imagestore.errors import PreconditionError, StoreError
from imagestore.metadata.postgres.address import DatabaseAddress, checked_scope
from imagestore.metadata.postgres.connection import LimitedConnection
from imagestore.metadata.postgres.failures import Translated
from imagestore.metadata.postgres.holders import Holders
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from imagestore.metadata.postgres.connection import Connection

#: Seconds since 1970 by the server's clock, which alone decides when leases expire.
NOW: Final = "extract(epoch FROM statement_timestamp())::double precision"
#: Connections of one process; each costs the server a process.
_MOST_CONNECTIONS: Final = 16
CONNECT_SECONDS: Final = 10.0
#: A statement that reads the whole store.
_WHOLE_STORE_SECONDS: Final = 600.0
LOCK_LIMIT: Final = "15s"
#: For the check of a connection before it is used.
CHECK_SECONDS: Final = 5.0
#: Options of connections, which a pooler doesn't take. JIT-compiling the query for what is kept takes seconds, running
#: it milliseconds. A look locks rows and needn't wait for the disk; transactions restore the server's own setting.
#: Within half a minute the server notices that this machine is gone, and releases its locks.
_OPTIONS: Final = (
    "-c jit=off -c synchronous_commit=off -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5"
    " -c tcp_keepalives_count=3 -c tcp_user_timeout=25000"
)
#: Longest pause between two statements of a transaction, so that a suspended process doesn't block the others.
_IDLE_LIMIT: Final = "60s"
#: A call that failed after so long waited for a server that doesn't answer; it isn't tried on another connection.
_AT_ONCE_SECONDS: Final = 2.0
#: After a server couldn't be reached, calls fail at once for so long, so that they don't pile up.
AWAY_SECONDS: Final = 2.0
#: First key of the advisory locks of names; their hash is the second.
_NAMES_LOCK: Final = 0x696D6773


class _Transaction(threading.local):
    """A thread's transaction."""

    connection: Connection | None = None
    is_alone = False
    #: See PostgresDatabase.locked.
    locked: frozenset[str] | None = None
    after_commit: list[Callable[[], None]]


class PostgresDatabase:
    """A database for the stores that share content, used for nothing else.

    Args:
        url: ``postgresql://...``; see DatabaseAddress.
        scope: the store whose images and leases are meant.
        is_making: create the tables if there are none.

    Raises:
        ConfigError: no such database, the address can't be read, or psycopg isn't installed.
        PreconditionError: the server refuses the user, or has another program's tables.
        StoreError: it can't be reached, or was written by a newer version.
    """

    def __init__(self, url: str, *, scope: str, is_making: bool = True) -> None:
        self._scope = checked_scope(scope)
        address = DatabaseAddress(url)
        #: For messages.
        self.name = address.name
        self._parameters = address.parameters
        self._process = os.getpid()
        self._away_until = 0.0
        self._current = _Transaction()
        self._holders = Holders(self.name, self._plain())
        with Translated(self.name), LimitedConnection.connect(**self._plain()) as db:
            self._holders.watch(db)
            #: Stored in the database, the same for all that open it.
            self.id = schema.prepare(db, self.name, is_making=is_making)
            #: Whether a pooler may give each transaction another session.
            self.is_pooled = self._holders.is_pooled = connection.is_pooled(db)
            self._commit_mode = connection.commit_mode(db)
        self._pool = psycopg_pool.ConnectionPool(
            connection_class=LimitedConnection,
            kwargs=self._arguments(),
            configure=self._holders.watch,
            min_size=0,
            max_size=_MOST_CONNECTIONS,
            max_idle=60.0,
            # Else its backoff keeps it away for minutes after the server is back.
            reconnect_timeout=CONNECT_SECONDS / 2,
            num_workers=1,
            name="imagestore",
            open=True,
        )
        # A store that isn't closed explicitly is closed when it is garbage-collected.
        weakref.finalize(self, _close, self._pool, self._process)

    def finish_upgrade(self) -> bool:
        """Refuse programs of the version before from now on; see ``schema.finish``."""
        with Translated(self.name), LimitedConnection.connect(**self._plain()) as db:
            return schema.finish(db, self.name)

    @property
    def scope(self) -> str:
        """The store whose images and leases are meant."""
        return self._scope

    def connect(self) -> LimitedConnection:
        """A connection outside of the pool in autocommit mode, for session locks and LISTEN."""
        return LimitedConnection.connect(**self._arguments())

    def _plain(self) -> dict[str, Any]:
        return {**self._parameters, "autocommit": True}

    def _arguments(self) -> dict[str, Any]:
        found = self._plain()
        # Behind a pooler the next transaction may get a session without this one's prepared statements.
        if self.is_pooled:
            return {**found, "prepare_threshold": None}
        return {**found, "options": f"{found.get('options', '')} {_OPTIONS}".strip()}

    @contextlib.contextmanager
    def recording(self, keys: Collection[tuple[str, str]]) -> Iterator[None]:
        """A transaction for putting the records of these (reference, handler), which excludes others that put them.

        Other writers go on. Content that was found in it stays, because its rows are locked.
        """
        names = sorted({f"{self._scope}\n{reference}" for reference, _ in keys})
        with self.transaction(is_alone=False, is_pipelined=True) as db:
            # In order, so that transactions don't deadlock.
            lock = "SELECT pg_advisory_xact_lock(%s, hashtext(name)) FROM unnest(%s::text[]) AS given(name)"
            db.execute(lock, (_NAMES_LOCK, names))
            yield

    @contextlib.contextmanager
    def batch(self) -> Iterator[Connection]:
        """One short step of a long work; in it, a sweep deletes only rows that it has locked."""
        with self.writing() as db:
            is_outer = self._current.locked is None
            if is_outer:
                self._current.locked = frozenset()
            try:
                yield db
            finally:
                if is_outer:
                    self._current.locked = None

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
    def reading_long(self) -> Iterator[Connection]:
        """As reading(), for a statement that takes long in a large store."""
        with self.reading() as db:
            if not isinstance(db, LimitedConnection):
                raise TypeError(f"expected a connection of this module, got {type(db)}")
            try:
                db.limit_seconds = _WHOLE_STORE_SECONDS
                yield db
            finally:
                db.limit_seconds = None

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Several reads that see one state; they may take long."""
        with self.reading_long() as db:
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
    def transaction(self, *, is_alone: bool, is_pipelined: bool = False) -> Iterator[Connection]:
        """A transaction that holds the store's lock, exclusive or shared; inner ones join the outer.

        Args:
            is_alone: take the lock exclusively, so that nothing else changes until it ends.
            is_pipelined: see connection.pipelined(); a statement's row count isn't known in it.

        Raises:
            PreconditionError: the outer transaction doesn't hold the lock exclusively, so the inner one can't get it.
            StoreCorruptError: a newer version has changed the tables.
            StoreError: the server can't be reached, or doesn't commit.
        """
        self.check_process()
        current = self._current
        if current.connection is not None:
            if is_alone and not current.is_alone:
                # Two that hold it shared would wait for each other for ever.
                raise PreconditionError(
                    f"{self.name}: a transaction that excludes no others can't begin to, since another one may want to"
                    " at the same time",
                    hint="begin with exclusive()",
                )
            yield current.connection
            return
        after_commit: list[Callable[[], None]] = []
        prologue = self._prologue(is_alone=is_alone)
        with Translated(self.name), contextlib.ExitStack() as stack:
            reach("database-begin")
            if is_pipelined:
                db: Connection = stack.enter_context(self._connected())
                version = stack.enter_context(connection.pipelined(db, prologue))
            else:
                db, row = self.begun(stack, "; ".join(prologue))
                schema.refuse_newer(row, self.name)
            current.connection, current.is_alone, current.after_commit = db, is_alone, after_commit
            try:
                reach("database-begun")
                yield db
                if is_pipelined:
                    schema.refuse_newer(version.fetchone(), self.name)
                reach("database-commit")
            finally:
                current.connection, current.after_commit = None, []
        reach("database-committed")
        for work in after_commit:
            work()

    def begun(self, stack: contextlib.ExitStack, prologue: str) -> tuple[Connection, tuple[Any, ...] | None]:
        """A connection in a transaction, both until the stack ends: committed, or rolled back after an exception.

        Returns:
            The connection, and the first row of the last statement of the prologue; see connection.transaction().
        """
        db = stack.enter_context(self._connected())
        return db, stack.enter_context(connection.transaction(db, prologue))

    def _began(self) -> float:
        """Now; refused where the server could not be reached a moment ago."""
        now = time.monotonic()
        if now < self._away_until:
            raise psycopg.OperationalError("the server could not be reached a moment ago")
        return now

    def _has_waited(self, began: float) -> bool:
        return time.monotonic() - began >= _AT_ONCE_SECONDS

    def _note_away(self, began: float, error: psycopg.OperationalError) -> None:
        """A call failed. If it had waited for the server, others needn't wait too."""
        if isinstance(error, psycopg_pool.PoolTimeout):
            self._holders.note(error)
        if self._has_waited(began):
            self._away_until = time.monotonic() + AWAY_SECONDS

    @contextlib.contextmanager
    def _connected(self) -> Iterator[LimitedConnection]:
        """A living connection."""
        for _ in range(_MOST_CONNECTIONS):
            began = self._began()
            db: LimitedConnection | None = None
            with contextlib.ExitStack() as stack:
                try:
                    db = stack.enter_context(self._pool.connection(CONNECT_SECONDS))
                    db.check_alive(CHECK_SECONDS)
                except psycopg.OperationalError as error:
                    if db is None or not db.closed or self._has_waited(began):
                        self._note_away(began, error)
                        raise
                    continue
                try:
                    yield db
                except psycopg.OperationalError as error:
                    if db.closed:
                        self._note_away(began, error)
                    raise
                return
        raise psycopg.OperationalError("connections are lost as soon as they are made")

    def beginning(self, *also: str) -> tuple[str, ...]:
        """Statements with which every transaction begins; ``also`` are expressions for the last, after its settings."""
        settings = {
            "jit": "off",
            "lock_timeout": LOCK_LIMIT,
            "idle_in_transaction_session_timeout": _IDLE_LIMIT,
            "synchronous_commit": self._commit_mode,
        }
        # As SET LOCAL, in one statement.
        each = [f"set_config('{name}', '{value}', true)" for name, value in settings.items()]
        return "BEGIN ISOLATION LEVEL READ COMMITTED", f"SELECT {', '.join((*each, *also))}"

    def _prologue(self, *, is_alone: bool) -> tuple[str, ...]:
        # The version is a statement of its own: it sees what was committed while this waited for the lock.
        return *self.beginning(connection.lock(is_alone=is_alone)), schema.ASK_VERSION

    def deletable(self, texts: Sequence[str]) -> Sequence[str]:
        """The contents that this thread may delete: in a sweep, those whose rows it has locked."""
        return texts if self.locked is None else [text for text in texts if text in self.locked]

    @property
    def locked(self) -> frozenset[str] | None:
        """Contents whose rows a sweep of this thread has locked, and so may delete; None outside a sweep."""
        return self._current.locked

    def add_locked(self, texts: Collection[str]) -> None:
        """Note rows that a sweep of this thread has locked."""
        self._current.locked = (self._current.locked or frozenset()).union(texts)

    def after_commit(self, work: Callable[[], None]) -> None:
        """Call this when this thread's transaction is committed; at once outside of one."""
        if self._current.connection is None:
            work()
        else:
            self._current.after_commit.append(work)


def _close(pool: psycopg_pool.ConnectionPool[Any], process: int) -> None:
    if os.getpid() == process:
        pool.close()
