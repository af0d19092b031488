"""Advisory locks between processes and threads: flock on files, waiting for one, and who holds it.

State on disk has its lock on disk. flock belongs to the open file, so two opens exclude each other within one process
too, and the kernel lets go when the holder dies. Who holds a lock is what the kernel tells (proc(5)); that may be
outdated at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore.util.cancel import never_cancelled
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach
from imagestore.util.files import open_regular
from imagestore.util.long_waits import LongWait
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from imagestore.util.cancel import CancelToken

_LOCKS: Final = Path("/proc/locks")
_UNKNOWN: Final = "another process"
_STATES: Final = {"T": ", stopped", "t": ", stopped", "Z": ", dead", "D": ", waiting for its disk"}
_MOST_NAMED: Final = 3
_PAUSE_SECONDS: Final = 0.002
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
    """Whether the FileLock of a path is taken now; nothing is made.

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


def flock_shared(descriptor: int, path: str | os.PathLike[str], *, check: Callable[[], None] = never_cancelled) -> None:
    """Take a shared flock on an open file or folder, waiting for the process that has it alone.

    Args:
        descriptor: of the file.
        path: its name, for the log.
        check: raises to end the wait.

    Raises:
        OSError: the file system has no such locks.
    """
    _flock(descriptor, path, fcntl.LOCK_SH, check)


def flock_alone(descriptor: int, path: str | os.PathLike[str], *, check: Callable[[], None] = never_cancelled) -> None:
    """As flock_shared(), for a lock that nobody else has."""
    _flock(descriptor, path, fcntl.LOCK_EX, check)


def _flock(descriptor: int, path: str | os.PathLike[str], operation: int, check: Callable[[], None]) -> None:
    wait = long_flock_wait(path)
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            check()
            wait.look()
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def long_flock_wait(path: str | os.PathLike[str]) -> LongWait:
    """For a loop that tries to take a flock on a file."""
    return LongWait(os.fspath(path), functools.partial(file_lock_holder, path))


def file_lock_holder(path: str | os.PathLike[str]) -> str:
    """Who holds a flock on a file."""
    return _holder(path, "FLOCK", None)


def byte_lock_holder(path: str | os.PathLike[str], offset: int) -> str:
    """Who holds a byte of a file by an exclusive POSIX lock."""
    return _holder(path, "POSIX", offset)


def _holder(path: str | os.PathLike[str], kind: str, offset: int | None) -> str:
    found: list[str] = []
    # No file, no /proc, or processes that may not be looked at.
    with contextlib.suppress(OSError, ValueError):
        inode = os.stat(path).st_ino
        for line in _LOCKS.read_text("ascii").splitlines():
            # "1: POSIX  ADVISORY  WRITE 4711 fe:00:123456 120 120"; who waits has "->" before the kind.
            _, of_kind, _, access, owner, place, first, last = line.split()[:8]
            if of_kind != kind or int(place.rpartition(":")[2]) != inode:
                continue
            is_there = offset is None or (int(first) <= offset and (last == "EOF" or offset <= int(last)))
            if is_there and (offset is None or access == "WRITE") and int(owner) > 0:
                found.append(_described(int(owner)))
    return " and ".join(dict.fromkeys(found[:_MOST_NAMED])) or _UNKNOWN


def _described(process: int) -> str:
    """A process by its number, name and state.

    >>> _described(os.getpid()) == f"another thread of this process ({os.getpid()})"
    True
    """
    if process == os.getpid():
        return f"another thread of this process ({process})"
    try:
        # "4711 (a name) S 1 ..."; the name may have parentheses.
        status = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
    except OSError:
        return f"process {process}"
    name = printable(status[status.index("(") + 1 : status.rindex(")")])
    return f"process {process} ({name}{_STATES.get(status[status.rindex(')') + 2], '')})"
