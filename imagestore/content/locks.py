"""Advisory locks between processes (and threads): flock on a file that goes away with its last holder.

State on disk has its lock on disk. flock belongs to the open file, so two opens exclude each other within one process
too, and the kernel lets go when the holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.util.failpoint import reach
from imagestore.util.file_locks import flock_shared, long_flock_wait
from imagestore.util.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

    from imagestore.util.cancel import CancelToken

# As containerd's client waits for a held ingest: random sleeps under a doubling ceiling.
_FIRST_WAIT_SECONDS: Final = 0.016
_LONGEST_WAIT_SECONDS: Final = 0.5


class FileLock:
    """An exclusive lock named by a path.

    Args:
        path: the lock's file; its folder must exist.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor = -1

    def try_acquire(self) -> bool:
        """Take the lock if it is free; say whether it was."""
        with translated("lock", self._path):
            while True:
                descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    reach("lock-taken")
                    if _is_same_file(descriptor, self._path):
                        self._descriptor = descriptor
                        return True
                    # The holder before us removed the file between our open and our lock.
                except BlockingIOError:
                    return False
                finally:
                    if self._descriptor != descriptor:
                        os.close(descriptor)

    def acquire(self, cancel: CancelToken, *, is_told: bool = False) -> None:
        """Wait for the lock.

        Args:
            is_told: the caller has said that it waits, and for what; otherwise a long wait is reported.

        Raises:
            OperationCancelledError: cancelled while waiting.
        """
        ceiling, wait = _FIRST_WAIT_SECONDS, long_flock_wait(self._path)
        while not self.try_acquire():
            if not is_told:
                wait.look()
            cancel.wait(random.uniform(ceiling / 4, ceiling))  # noqa: S311 - jitter, not a secret
            ceiling = min(ceiling * 2, _LONGEST_WAIT_SECONDS)

    def release(self) -> None:
        """Let go and remove the file; harmless when not held."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with translated("unlock", self._path):
            try:
                reach("lock-unlink")
                # A file that stays does no harm; a lock that stays stops all others.
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
                reach("lock-release")
            finally:
                _let_go(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_taken(path: Path | str) -> bool:
    """Whether somebody has the FileLock of a path now; nothing is made.

    The look itself has a share of the lock for an instant, so who must have it tries twice.
    """
    with translated("look at lock", path):
        try:
            descriptor = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            _let_go(descriptor)
        return False


class SharedLock:
    """A lock named by a path that any number may hold; FileLock on the same path is taken only when none does.

    Args:
        path: the lock's file; its folder must exist.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Take a share; waits for the process that holds all of it."""
        with translated("lock", self._path):
            while self._descriptor < 0:
                descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
                try:
                    flock_shared(descriptor, self._path)
                    if _is_same_file(descriptor, self._path):
                        self._descriptor = descriptor
                finally:
                    if self._descriptor != descriptor:
                        os.close(descriptor)

    def release(self) -> None:
        """Let go; harmless when not held. The file stays."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _let_go(descriptor)

    @contextlib.contextmanager
    def released(self) -> Iterator[bool]:
        """Let go; yields whether no other share was left: then the block has all of the lock."""
        try:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        finally:
            self.release()


def _let_go(descriptor: int) -> None:
    try:
        # Closing alone doesn't: a child that was forked since then has the same open file.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        # It has no bytes to lose, and is closed even if that fails (Linux' close(2)).
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _is_same_file(descriptor: int, path: Path | str) -> bool:
    try:
        ours, named = os.fstat(descriptor), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
