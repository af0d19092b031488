"""Locks on files: waiting for one, and who holds it, as the kernel tells (proc(5)); that may be outdated at once."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore.util.cancel import never_cancelled
from imagestore.util.long_waits import LongWait
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCKS: Final = Path("/proc/locks")
_UNKNOWN: Final = "another process"
_STATES: Final = {"T": ", stopped", "t": ", stopped", "Z": ", dead", "D": ", waiting for its disk"}
_MOST_NAMED: Final = 3
_PAUSE_SECONDS: Final = 0.002


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
