"""The local store's disk: left-over files, and how much is free."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Disk
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from pathlib import Path

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
