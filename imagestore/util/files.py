"""Files: read whole within a limit, opened without following links, and replaced by rename.

Only regular files are read: a FIFO keeps the reader waiting for a writer, a device may never end.

Writing goes to a temporary name in the same folder, which is then renamed (rename(2) is atomic), so that a reader never
sees a part. The file keeps its mode, and a symbolic link stays a link. Pipes, devices and names of open files such as
/dev/stdout are written directly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import uuid
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError, PreconditionError
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from imagestore.errors import ImageStoreError

    StrPath = str | os.PathLike[str]

#: Number, time of change and size of a file.
Signature = tuple[int, int, int]
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_OPEN_FILES: Final = "/dev/"
#: Windows has none of these; its folders have no FIFOs, and its programs inherit no files by themselves.
_NO_FOLLOW, _NO_WAIT, _NOT_INHERITED = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
#: Errors that say that the path is wrong; a later try would fail too.
_OF_PATHS: Final = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
}
_TAKEN: Final = {errno.EEXIST, errno.ENOTEMPTY}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_HINT: Final = "free space there, or choose another place"


class TooLongError(OSError):
    """The file is longer than the limit."""


def read_regular(path: StrPath, limit_bytes: int) -> bytes:
    """The content of a regular file; symbolic links are followed.

    Raises:
        TooLongError: it is longer than the limit.
        OSError: it can't be opened or read, or isn't a regular file.
        ValueError: the path has a NUL.
    """
    # Without O_NONBLOCK, open() itself would wait for the other end of a FIFO.
    with open(path, "rb", opener=_opener) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise TooLongError(errno.EINVAL, f"expected at most {limit_bytes} bytes, found more", os.fspath(path))
    return data


def check_regular(path: StrPath) -> None:
    """Refuse a path that is no regular file, before a library opens it.

    Raises:
        OSError: it can't be examined, or isn't a regular file.
    """
    _refuse_others(os.stat(path).st_mode, os.fspath(path))


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _NO_WAIT | _NOT_INHERITED)
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


def open_regular(path: StrPath, flags: int, mode: int = 0o600) -> int:
    """Open a regular file, without following a link.

    Raises:
        OSError: it can't be opened; ELOOP for a link, EINVAL for what is no regular file.
    """
    if not _NO_FOLLOW and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    descriptor = os.open(path, flags | _NO_FOLLOW | _NO_WAIT | _NOT_INHERITED, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "expected a regular file", os.fspath(path))
    return descriptor


def opener(path: str, flags: int) -> int:
    """open_regular() for open()."""
    return open_regular(path, flags)


def follow_links(path: str) -> str:
    """The path (of a file that may not exist) without links.

    The kernel resolves it first: in folders that all users may write, as /tmp, it follows no other user's link (sysctl
    fs.protected_symlinks, proc(5)), which resolving the link's text would bypass.

    Raises:
        OSError: as opening it would.
    """
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
    return os.path.realpath(path)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a file's content; on an error the old content stays. Its folder must exist.

    Raises:
        InvalidInputError, PreconditionError: it can't be written.
    """
    try:
        mode = _mode(path)
        if os.fspath(path).startswith(_OPEN_FILES) or (mode is not None and not stat.S_ISREG(mode)):
            with open(path, "wb") as file:
                file.write(data)
        else:
            replace(follow_links(os.fspath(path)), data, mode=None if mode is None else stat.S_IMODE(mode))
    except OSError as error:
        raise write_refusal(path, error) from error


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def replace(target: str | os.PathLike[str], data: bytes, *, mode: int | None = 0o600, is_durable: bool = False) -> None:
    """Replace a file (no link); on an error the old one stays. Its folder must exist.

    Args:
        target: the file.
        data: its new content.
        mode: of the new file, whatever the umask is; None: as open() would make it.
        is_durable: sync the data before the rename, and the folder after it.

    Raises:
        OSError: it can't be written.
    """
    folder, name = os.path.split(target)
    # Hidden, and with another ending: Prometheus' node exporter reads every *.prom of a folder.
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:12]}.tmp")
    reach("note-write")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOT_INHERITED
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None and sys.platform != "win32":
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
        reach("note-rename")
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if is_durable:
        sync_directory(folder or os.curdir)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable; on Windows folders can't be opened, and nothing is done."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_refusal(path: str | os.PathLike[str], error: OSError) -> ImageStoreError:
    """This package's error for a path that the system refuses to write.

    >>> write_refusal("a/b.tar", FileNotFoundError(errno.ENOENT, ""))
    InvalidInputError("a/b.tar: can't be written: No such file or directory")
    """
    message = f"{os.fspath(path)}: can't be written: {os.strerror(error.errno or 0)}"
    if error.errno in _TAKEN:
        return AlreadyExistsError(message, hint="choose another place")
    if error.errno in _OF_PATHS:
        return InvalidInputError(message, hint="choose another place")
    return PreconditionError(message, hint=FULL_HINT if error.errno in _FULL else "choose another place")


class StreamReader:
    """Reads a stream of pieces into buffers."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._pieces = iter(stream)
        self._left = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer; 0 only at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def signature(path: Path) -> Signature | None:
    """Changes with a file's content, where each write makes a new file; None where there is no file."""
    with translated("look at", path):
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Make a folder and its parents durable where they are missing."""
    make_directories([path], mode)


def make_directories(paths: Iterable[Path], mode: int = 0o755) -> None:
    """Make folders and their parents durable where they are missing; each parent is synced once."""
    changed: dict[Path, None] = {}
    try:
        for path in paths:
            missing = []
            while not path.is_dir():
                missing.append(path)
                path = path.parent
            for directory in reversed(missing):
                reach("folder-make")
                with contextlib.suppress(FileExistsError):
                    directory.mkdir(mode)
                changed[directory.parent] = None
    finally:
        # Those that were made count as there the next time.
        for parent in changed:
            sync_directory(parent)
