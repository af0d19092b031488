"""Files that other programs read while they are written: replaced by rename, so that a reader never sees a part.

Rules: the new content is written to a temporary name in the same folder, then renamed (rename(2) is atomic). The file
keeps its mode. A symbolic link stays a link, and what it points at is replaced. Pipes, devices and names of open files
such as /dev/stdout have nothing to replace, so they are written directly.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid

from imagestore.util.failpoint import reach
from imagestore.util.links import followed
from imagestore.util.unwritable import refusal

_OPEN_FILES = "/dev/"


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Give a file this content, all at once; on an error the old content stays.

    Args:
        path: the file; its folder must be there.
        data: all of the new content.

    Raises:
        InvalidInputError, PreconditionError: it can't be written.
    """
    try:
        mode = _mode(path)
        if os.fspath(path).startswith(_OPEN_FILES) or (mode is not None and not stat.S_ISREG(mode)):
            with open(path, "wb") as file:
                file.write(data)
        else:
            replace(followed(os.fspath(path)), data, mode=None if mode is None else stat.S_IMODE(mode))
    except OSError as error:
        raise refusal(path, error) from error


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def replace(target: str | os.PathLike[str], data: bytes, *, mode: int | None = 0o600, is_durable: bool = False) -> None:
    """Put a new file in a file's place; on an error the old one stays.

    Args:
        target: the file, no link to it; its folder must be there.
        data: all of the new content.
        mode: of the new file, whatever the umask is; None: as open() would make it.
        is_durable: sync the data before the rename, and the folder after it.

    Raises:
        OSError: it can't be written.
    """
    folder, name = os.path.split(target)
    # Hidden, and with another ending: collectors read every *.prom of a folder.
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:12]}.tmp")
    reach("note-write")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
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
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
