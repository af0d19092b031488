"""Forks: a child neither uses nor closes the connections of its parent, and may open the same database itself.

SQLite notes for each process which locks it has on a file, and asks the system for none twice. A forked child inherits
the notes, but no lock (fcntl(2)). A connection that it opens would rely on locks that it doesn't have: the last other
process to close the database would delete the log, and with it what the child commits afterwards. So before it opens a
database that its parent had open, a child takes the locks that SQLite believes it has:

- the shared lock on the database (https://www.sqlite.org/fileformat2.html, "The Lock-Byte Page");
- the lock that says that the log's index is in use (UNIX_SHM_DMS in SQLite's os_unix.c).

It keeps them to its end, since closing any descriptor of a file gives up all locks that a process has on it. Where the
notes don't tell the truth even then, the database is refused: a thread of the parent worked with a store when it
forked, or the database was closed by all others since.
"""

from __future__ import annotations

import contextlib
import fcntl
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

#: SHARED_FIRST and SHARED_SIZE: behind the pending and the reserved byte.
_SHARED_BYTES: Final = (0x40000002, 510)
_INDEX_IN_USE: Final = (128, 1)
#: Another process has these locks for a moment when it opens or closes the database.
_PATIENCE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.005
_HINT: Final = "fork while no thread works with a store, or start the process anew (multiprocessing: 'spawn')"

Identity = tuple[int, int] | None


class Shared:
    """A connection that stays open; closed by the process that opened it only, at the latest when its owner goes away.

    Args:
        owner: whose connection it is.
        path: the database.
        connection: to it.
        lock: held by a thread that uses the connection.
    """

    def __init__(self, owner: object, path: Path, connection: sqlite3.Connection, lock: Lock) -> None:
        self.process = os.getpid()
        self.files = _files(path)
        self._connection = connection
        self._lock = lock
        _shared.add(self)
        self._at_end = weakref.finalize(owner, self._end)

    def close(self) -> None:
        """Close the connection."""
        self._at_end()

    def _end(self) -> None:
        close(self._connection, self.process)
        _shared.discard(self)

    def was_used(self) -> bool:
        """Whether a thread was inside a call, or a transaction open, when this process was forked."""
        if not self._lock.acquire(blocking=False):
            return True
        self._lock.release()
        return self._connection.in_transaction


_shared: set[Shared] = set()
#: Processes of threads that work with a connection of their own just now.
_busy: dict[object, int] = {}
#: Databases whose locks this process has taken, with that process's number and the descriptors.
_taken: dict[Identity, tuple[int, list[int]]] = {}


@contextlib.contextmanager
def working() -> Iterator[int]:
    """Say that this thread works with a connection of its own while the block runs; gives the process for close()."""
    key, process = object(), os.getpid()
    _busy[key] = process
    try:
        yield process
    finally:
        _busy.pop(key, None)


def close(connection: sqlite3.Connection, process: int) -> None:
    """Close a connection, unless another process opened it.

    Args:
        connection: any.
        process: which opened it.
    """
    if process == os.getpid():
        with working():
            connection.close()
    else:
        # Python closes what it frees, also when it ends. So this is never freed.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def prepare(path: Path) -> None:
    """Make it safe to open a database in this process, if a parent had it open.

    Raises:
        StoreError: it isn't safe, and can't be made so.
    """
    process, database = os.getpid(), _identity(path)
    inherited = [each for each in list(_shared) if each.process != process]
    if any(each != process for each in list(_busy.values())) or any(each.was_used() for each in inherited):
        raise StoreError(
            f"{path}: this process was forked while another thread worked with a store, and can't open one any more",
            hint=_HINT,
        )
    known = next((each.files for each in inherited if database is not None and each.files[0] == database), None)
    if known is None or None in known:  # nothing to be locked, as where a database is only read
        return
    if _taken.get(database, (0, []))[0] != process:
        _taken[database] = (process, _take_locks(path, known))


def _take_locks(path: Path, known: tuple[Identity, ...]) -> list[int]:
    descriptors: list[int] = []
    try:
        for end, (start, length) in (("", _SHARED_BYTES), ("-shm", _INDEX_IN_USE)):
            descriptors.append(os.open(f"{path}{end}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
            _wait_for_lock(descriptors[-1], start, length)
        if _files(path) == known:
            return descriptors
    except FileNotFoundError:
        pass
    except BlockingIOError as error:
        _close_all(descriptors)
        raise StoreError(f"{path}: another process is opening or closing it", hint="try again") from error
    _close_all(descriptors)
    raise StoreError(
        f"{path}: this process was forked while the database was open, and all others have closed it since",
        hint="open it in the child while the parent has it open, or start the process anew (multiprocessing: 'spawn')",
    )


def _wait_for_lock(descriptor: int, start: int, length: int) -> None:
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, length, start)
            return
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_LOOK_SECONDS)


def _close_all(descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)


def _files(path: Path) -> tuple[Identity, ...]:
    """Which files a database, its log and the log's index are."""
    return tuple(_identity(f"{path}{end}") for end in ("", "-wal", "-shm"))


def _identity(path: str | Path) -> Identity:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
