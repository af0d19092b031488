"""Fairness at the database's write lock: batch jobs yield to waiting writers.

SQLite has no queue: a writer that finds the lock taken sleeps and tries again, and a collector that takes it again
after each batch wins nearly every time. So a waiting writer announces itself: a process by a shared flock on a file
next to the database, a thread of this process in a list. Before each batch the collector yields until no writer waits.

Correctness does not depend on this. The file may be missing, and the kernel releases the lock of a killed waiter. A
waiter that is stopped (SIGSTOP) delays the collector by at most ``_PATIENCE_SECONDS`` for each batch.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.metadata.sqlite.failures import is_busy, writer
from imagestore.util.long_waits import LongWait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Longest wait of a writer for other writers.
BUSY_SECONDS: Final = 30.0
# Sleep of a waiting writer between two tries: the first one, and the longest.
_FIRST_TRY_SECONDS: Final = 0.0005
_LONGEST_TRY_SECONDS: Final = 0.004
#: Longest time for which a batch job yields before each of its batches.
_PATIENCE_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 0.0005
_THREAD_LOOK_SECONDS: Final = 0.5
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class WriteQueue:
    """The writers that wait for one database.

    Args:
        database: its file. ``waiting`` next to it, which waiting processes lock, is made when one waits for the first
            time.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = database.with_name("waiting")
        # A dictionary, since setting and deleting a key is atomic.
        self._threads: dict[int, None] = {}

    @contextlib.contextmanager
    def waiting_thread(self) -> Iterator[None]:
        """Announce that this thread waits for another thread of this process."""
        number = threading.get_ident()
        self._threads[number] = None
        try:
            yield
        finally:
            del self._threads[number]

    def take(self, lock: threading.RLock) -> None:
        """Take the lock of this process's connection, whose thread may itself wait for another process."""
        if lock.acquire(blocking=False):
            return
        wait = self._long_wait()
        with self.waiting_thread():
            while not lock.acquire(timeout=_THREAD_LOOK_SECONDS):
                wait.look()

    def _long_wait(self) -> LongWait:
        return LongWait(str(self._database), functools.partial(writer, self._database))

    @contextlib.contextmanager
    def waiting_process(self) -> Iterator[Callable[[], None]]:
        """Announce that this process waits for another one; best effort.

        Yields:
            A function to call before each further try: a collector that is just looking prevents the announcement.
        """
        descriptor = -1
        has_said = False

        def _announce() -> None:
            nonlocal has_said
            if not has_said and descriptor >= 0:
                # Refused only while another collector looks; it holds the lock for a moment.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    has_said = True

        try:
            with contextlib.suppress(OSError):
                descriptor = os.open(self._path, _FLAGS | os.O_CREAT, 0o600)
            _announce()
            yield _announce
        finally:
            if descriptor >= 0:
                # Unlock first: a child forked since then shares the open file, so closing it here would not unlock.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def begin(self, db: sqlite3.Connection) -> None:
        """Take the write lock. Doesn't use SQLite's own wait, which sleeps for up to a tenth of a second.

        Raises:
            sqlite3.OperationalError: the lock isn't free within BUSY_SECONDS, or SQLite reports another error.
        """
        db.execute("PRAGMA busy_timeout = 0")
        try:
            if _has_begun(db):
                return
            give_up_at, pause = time.monotonic() + BUSY_SECONDS, _FIRST_TRY_SECONDS
            wait = self._long_wait()
            with self.waiting_process() as say:
                while not _has_begun(db, is_last=time.monotonic() > give_up_at):
                    say()
                    wait.look()
                    time.sleep(_uniform(pause / 2, pause))
                    pause = min(pause * 2, _LONGEST_TRY_SECONDS)
        finally:
            db.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")

    def give_way(self) -> None:
        """Wait until no writer waits, at most ``_PATIENCE_SECONDS``. The caller must not hold the write lock."""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        while self.is_wanted() and time.monotonic() < give_up_at:
            time.sleep(_LOOK_SECONDS)

    def is_wanted(self) -> bool:
        """Whether a writer waits."""
        if self._threads:
            return True
        try:
            descriptor = os.open(self._path, _FLAGS)
        except OSError:  # no process ever waited
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # as above
            return False
        finally:
            os.close(descriptor)


def _has_begun(db: sqlite3.Connection, *, is_last: bool = False) -> bool:
    """Begin a write transaction; False if the lock is taken."""
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if is_last or not is_busy(error):
            raise
        return False
    return True


def use_log(db: sqlite3.Connection) -> None:
    """Turn the write-ahead log on.

    While several processes make or recover the database at once, SQLite reports "locked" here without waiting, to avoid
    a deadlock. So each process releases its lock and tries again.
    """
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(_uniform(0.001, 0.02))


def _uniform(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311 - jitter, not a secret
