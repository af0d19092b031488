"""Files that a user names and that are read whole: regular ones only, and never more than a bound.

A FIFO keeps the reader waiting for a writer, a device may never end. Both are refused with an ``OSError`` whose text
says what was found, so callers word it like every other reason why a file can't be read.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    StrPath = str | os.PathLike[str]

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class TooLongError(OSError):
    """The file is longer than it may be."""


def read(path: StrPath, limit_bytes: int) -> bytes:
    """The content of a regular file; symbolic links are followed.

    Args:
        path: as the user gave it.
        limit_bytes: how long it may be.

    Raises:
        TooLongError: it is longer.
        OSError: it can't be opened or read, or isn't a regular file.
        ValueError: the path holds a NUL.
    """
    # Without O_NONBLOCK, open() itself would wait for the other end of a FIFO.
    with open(path, "rb", opener=_opener) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise TooLongError(errno.EINVAL, f"expected at most {limit_bytes} bytes, found more", os.fspath(path))
    return data


def check(path: StrPath) -> None:
    """Refuse what isn't a regular file, for libraries that open a path themselves.

    Raises:
        OSError: it can't be examined, or isn't a regular file.
    """
    _refuse_others(os.stat(path).st_mode, os.fspath(path))


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(mode: int, path: str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    kind = _KINDS.get(stat.S_IFMT(mode), "no file")
    raise OSError(errno.EINVAL, f"expected a regular file, found {kind}", path)
