"""Files and folders of the local store: durable folders, left-over files, and the system's errors as ours."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Disk
from imagestore.errors import StoreError, StoreFullError, StoreReadOnlyError
from imagestore.util.failpoint import reach
from imagestore.util.files import sync_directory
from imagestore.util.permissions import permission_hint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: Number, time of change and size of a file.
Signature = tuple[int, int, int]
_REFUSED: Final = {errno.EROFS, errno.EACCES, errno.EPERM}


class translated:  # noqa: N801 - reads as the statement that it makes
    """Turn an OSError of a block into a StoreError that names what was tried and where.

    Args:
        what: completes "can't".

    Raises:
        StoreFullError, StoreReadOnlyError, StoreError: by errno.
    """

    __slots__ = ("_path", "_what")

    def __init__(self, what: str, path: Path | str) -> None:
        self._what = what
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if not isinstance(error, OSError):
            return
        reason = error.strerror or str(error)
        message = f"{self._path}: can't {self._what}: {reason}"
        if error.errno in _FULL:
            raise StoreFullError(message, hint="free space there, or run 'imagestore gc'") from error
        if error.errno in _REFUSED:
            hint = StoreReadOnlyError.MOUNTED_HINT if error.errno == errno.EROFS else StoreReadOnlyError.HINT
            if error.errno == errno.EACCES:
                hint = permission_hint(self._path, error.filename, error.filename2)
            raise StoreReadOnlyError(message, hint=hint) from error
        raise StoreError(message) from error


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


_NAME: Final = re.compile(
    r"\.?(check|last-change)\.json\.[0-9a-f]+\.tmp|metadata\.db\.(rebuilt(-wal|-shm|-journal)?|[0-9a-f]{16}\.tmp)"
)


def clear(root: Path, *, before: float) -> None:
    """Remove left-over temporary files of the store that were not changed for long.

    Args:
        before: seconds since 1970; younger files may still be in use.
    """
    with translated("clear", root), os.scandir(root) as entries:
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < before:
                    reach("leftover-unlink")
                    os.unlink(entry.path)


def disk_of(path: Path) -> Disk:
    """The file system a folder is on."""
    with translated("look at the free space", path):
        status = os.statvfs(path)
    return Disk(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)
