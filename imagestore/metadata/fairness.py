"""Fairness at the database's write lock: batch jobs yield to waiting writers.

SQLite has no queue: who finds the lock taken sleeps and tries again, and a collector that takes it anew right after
each batch wins nearly every time. So a waiting writer says so: other processes by a shared flock on a file next to the
database, threads of this process in a list. Before each batch the collector looks, and yields until no writer waits.

This is courtesy, not safety. Nothing breaks when the file is missing or a waiter was killed (the kernel lets go of its
lock), and a waiter that was stopped costs the collector at most ``_PATIENCE_SECONDS`` a batch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.metadata.failures import is_busy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: How long a writer waits for others before it gives up.
BUSY_SECONDS: Final = 30.0
# How long a waiting writer sleeps between two tries, the first time and at most.
_FIRST_TRY_SECONDS: Final = 0.0005
_LONGEST_TRY_SECONDS: Final = 0.004
#: How long long work steps aside at most before each of its batches.
_PATIENCE_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 0.0005
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class WriteQueue:
    """Who waits for one database.

    Args:
        path: the file that waiting processes lock; made when a process waits for the first time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A dictionary, since setting and deleting a key is one step for all threads.
        self._threads: dict[int, None] = {}

    @contextlib.contextmanager
    def waiting_thread(self) -> Iterator[None]:
        """Say that this thread waits for another one of this process."""
        number = threading.get_ident()
        self._threads[number] = None
        try:
            yield
        finally:
            del self._threads[number]

    @contextlib.contextmanager
    def waiting_process(self) -> Iterator[Callable[[], None]]:
        """Say that this process waits for another one; best effort.

        Yields:
            To be called before each further try: a collector that looks just then keeps us from saying it.
        """
        descriptor = -1
        has_said = False

        def _announce() -> None:
            nonlocal has_said
            if not has_said and descriptor >= 0:
                # Refused only while a collector looks, or by a second collector, which yields to all itself.
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
                # A child that was forked since then has the same open file, and would go on waiting.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def begin(self, db: sqlite3.Connection) -> None:
        """Take the write lock, at once when it is free; SQLite's own wait would sleep for up to a tenth of a second.

        Raises:
            sqlite3.OperationalError: it isn't free within BUSY_SECONDS, or anything else is wrong.
        """
        db.execute("PRAGMA busy_timeout = 0")
        try:
            if _has_begun(db):
                return
            give_up_at, pause = time.monotonic() + BUSY_SECONDS, _FIRST_TRY_SECONDS
            with self.waiting_process() as say:
                while not _has_begun(db, is_last=time.monotonic() > give_up_at):
                    say()
                    time.sleep(_uniform(pause / 2, pause))
                    pause = min(pause * 2, _LONGEST_TRY_SECONDS)
        finally:
            db.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")

    def give_way(self) -> None:
        """Wait until no writer waits, or patience ends; the caller holds nothing that they wait for."""
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
    """Begin to write; say whether the lock was free."""
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if is_last or not is_busy(error):
            raise
        return False
    return True


def use_log(db: sqlite3.Connection) -> None:
    """Turn the write-ahead log on.

    While several processes make or recover the database at once, SQLite answers "locked" here without waiting, since
    waiting could never end if each held what the other wants. So each lets go and tries again.
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
