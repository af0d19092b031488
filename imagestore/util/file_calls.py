"""What kernels do for open files, where there is such a call; else the nearest that every POSIX system can do.

Linux shares blocks, takes space ahead, syncs one file system and keeps extended attributes. Python has none of these
calls on macOS.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import uuid
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# _IOW(0x94, 9, int) of linux/fs.h; the same on every architecture whose direction bits are the usual ones.
_FICLONE: Final = 0x40049409
_CANT_ALLOCATE: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_PIECE_BYTES: Final = 1024 * 1024


def allocate(descriptor: int, size: int) -> None:
    """Take disk space for the first bytes of an empty file.

    Raises:
        OSError: there isn't so much.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in _CANT_ALLOCATE:  # else this file system or C library can't
                raise
    # Bytes take the same space.
    for offset in range(0, size, _PIECE_BYTES):
        piece = bytes(min(_PIECE_BYTES, size - offset))
        if os.pwrite(descriptor, piece, offset) < len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def reflink(target: int, source: int) -> bool:
    """Let an empty file share another's blocks; returns whether that was possible.

    Raises:
        OSError: it should have been, and failed.
    """
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        # Another file system, or one that can't share blocks.
        if error.errno in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM):
            return False
        raise
    return True


def sync_file_system(descriptor: int) -> None:
    """Make all durable that is written to the file system of an open file or folder (syncfs(2)).

    Raises:
        OSError: it failed.
    """
    import ctypes  # Python has no call for it

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "syncfs"):
        os.sync()  # every disk of the machine
    elif library.syncfs(descriptor) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def nameless_file(folder: int) -> IO[bytes]:
    """A new, unbuffered file without a name, on the file system of an open folder.

    Raises:
        OSError: it can't be made.
    """
    if hasattr(os, "O_TMPFILE"):
        return tempfile.TemporaryFile(dir=f"/proc/self/fd/{folder}", buffering=0)
    name = f".{uuid.uuid4().hex}"
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    os.unlink(name, dir_fd=folder)
    return os.fdopen(descriptor, "w+b", buffering=0)


def xattr_names(descriptor: int) -> list[str]:
    """Names of an open file's extended attributes; none where it can't have any.

    Raises:
        OSError: they can't be read.
    """
    if not hasattr(os, "listxattr"):
        return []
    try:
        names: list[str] = os.listxattr(descriptor)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []
    return names


def get_xattr(descriptor: int, name: str) -> bytes:
    """An extended attribute of an open file.

    Raises:
        OSError: it has none of this name; ENOTSUP where it can't have any.
    """
    if not hasattr(os, "getxattr"):
        raise _no_xattrs()
    value: bytes = os.getxattr(descriptor, name)
    return value


def set_xattr(file: int | str, name: str, value: bytes) -> None:
    """Give a file, open or by a path that isn't followed, an extended attribute.

    Raises:
        OSError: it can't have it; ENOTSUP where it can't have any.
    """
    if not hasattr(os, "setxattr"):
        raise _no_xattrs()
    os.setxattr(file, name, value, follow_symlinks=isinstance(file, int))


def remove_xattrs(descriptor: int, names: Iterable[str]) -> None:
    """Take extended attributes from an open file.

    Those that it doesn't have, or that may not be changed, don't matter.
    """
    if hasattr(os, "removexattr"):
        for name in names:
            try:
                os.removexattr(descriptor, name)
            except OSError:
                continue


def _no_xattrs() -> OSError:
    return OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
