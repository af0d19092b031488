"""Forks: what a child inherits of SQLite must not be left to it.

SQLite notes for each process, not for each connection, which locks it holds on a file. A child inherits the notes, but
not the locks. If it opens the same database itself, it takes part in none: whoever closes the database elsewhere
believes to be the last one and deletes the log, and what the child commits after that is lost. So inherited connections
are closed in the child at once, while nobody works with them; where somebody did when the process forked, the child may
not open the database at all.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Lock = threading.Lock | threading.RLock

#: So long a fork waits for those who work with a connection.
_PATIENCE_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.001


class Shared:
    """A connection that stays open, and the lock of who works with it.

    Args:
        path: the database.
        connection: to it.
        lock: held by whoever uses the connection.
    """

    def __init__(self, path: str | os.PathLike[str], connection: sqlite3.Connection, lock: Lock) -> None:
        self.path = path
        self.connection = connection
        self.lock = lock
        key = id(self)
        _shared[key] = weakref.ref(self, lambda _: _forget(key))

    def end(self) -> None:
        """The connection is closed."""
        _forget(id(self))


class _Hold:
    """The locks of one forking thread."""

    def __init__(self) -> None:
        self.held: list[Shared] = []
        self.has_gate = False

    def let_go(self) -> None:
        for each in self.held:
            each.lock.release()
        if self.has_gate:
            _gate.release()


def _forget(key: int) -> None:
    _shared.pop(key, None)


_shared: dict[int, weakref.ref[Shared]] = {}
#: Databases by who works with a connection of his own just now.
_busy: dict[object, str | os.PathLike[str]] = {}
#: Held by who begins to be busy, and by a fork from its last look until it is over.
_gate = threading.Lock()
#: What each forking thread holds while it forks.
_holds: dict[int, _Hold] = {}
#: Files that can't be opened in this process, and connections that must not be closed in it.
_spoilt: set[tuple[int, int]] = set()
_left: list[sqlite3.Connection] = []


@contextlib.contextmanager
def working(path: Path) -> Iterator[None]:
    """Say that this thread works with a connection of its own while the block runs.

    Args:
        path: the database.
    """
    key = object()
    with _gate:
        _busy[key] = path
    try:
        yield
    finally:
        _busy.pop(key, None)


def refuse_spoilt(path: Path) -> None:
    """Refuse a database that somebody worked with while this process was forked.

    Raises:
        StoreError: that is so.
    """
    if _spoilt and _identity(path) in _spoilt:
        raise StoreError(
            f"{path}: this process was forked while another thread worked with this store, and can't use it any more",
            hint="fork while nobody works with the store, or start the process anew (multiprocessing: 'spawn')",
        )


def _those_open() -> list[Shared]:
    return [each for known in list(_shared.values()) if (each := known()) is not None]


def _is_quiet(hold: _Hold) -> bool:
    """Whether nobody is inside SQLite, nor can be before the fork."""
    return hold.has_gate and not _busy and all(each in hold.held for each in _those_open())


def _before() -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    hold = _holds.setdefault(threading.get_ident(), _Hold())
    while True:
        for each in _those_open():  # also those that were opened meanwhile
            if each not in hold.held and each.lock.acquire(timeout=max(0.0, until - time.monotonic())):
                hold.held.append(each)
        # With patience: a signal's handler may fork inside working().
        hold.has_gate = _gate.acquire(timeout=max(_LOOK_SECONDS, until - time.monotonic()))
        if _is_quiet(hold) or time.monotonic() >= until:
            return
        if hold.has_gate:
            # Who is busy may need it once more before he ends.
            hold.has_gate = False
            _gate.release()
        time.sleep(_LOOK_SECONDS)


def _let_go() -> _Hold:
    hold = _holds.pop(threading.get_ident(), None) or _Hold()
    hold.let_go()
    return hold


def _after_in_child() -> None:
    global _gate
    hold = _let_go()
    # Whoever was inside SQLite may have held locks that all its calls take, and nobody would let go of them here.
    is_quiet, inherited, spoilt = _is_quiet(hold), _those_open(), list(_busy.values())
    for each in inherited:
        if is_quiet and not each.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                each.connection.close()
        else:
            _left.append(each.connection)
            spoilt.append(each.path)
    _spoilt.update(known for path in spoilt if (known := _identity(path)) is not None)
    for state in (_shared, _busy, _holds):
        state.clear()
    # Who held it otherwise is not here.
    _gate = threading.Lock()


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


os.register_at_fork(before=_before, after_in_parent=_let_go, after_in_child=_after_in_child)
