"""What the local store does to the disk, and how the system's errors become ours."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError, StoreFullError, StoreReadOnlyError
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED: Final = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def translated(what: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError into a StoreError that names what was tried and where.

    Raises:
        StoreFullError, StoreReadOnlyError, StoreError: by errno.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        message = f"{path}: can't {what}: {reason}"
        if error.errno in _FULL:
            raise StoreFullError(message, hint="free space there, or run 'imagestore gc'") from error
        if error.errno in _REFUSED:
            raise StoreReadOnlyError(message, hint="choose a folder you may write with --root") from error
        raise StoreError(message) from error


def sync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that readers see the old or the new text, never a part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    reach("note-write")
    temporary.write_text(text, "utf-8")
    reach("note-rename")
    os.replace(temporary, path)


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Make a folder and its parents durable where they are missing."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        reach("folder-make")
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode)
        sync_directory(directory.parent)
