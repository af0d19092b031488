"""A lock on an open file or folder that is taken at once or not at all."""

from __future__ import annotations

import errno
import os
import sys


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock (flock(2)); whether that was possible.

    Raises:
        OSError: the file system has no locks; ENOTSUP on Windows.
    """
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def unlock(descriptor: int) -> None:
    """Give the lock back. Closing alone doesn't: a child that was forked in between has the same open file.

    Raises:
        OSError: the file system has no locks.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
