"""Files that a killed process left beside the database: notes half written, a database half rebuilt, tries of space.

Those inside an ingest go with the ingest, and nameless temporary files with their process.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = re.compile(
    r"\.?check\.json\.[0-9a-f]+\.tmp|records\.jsonl\.tmp|metadata\.db\.(rebuilt(-wal|-shm|-journal)?|[0-9a-f]{16}\.tmp)"
)


def clear(root: Path, *, before: float) -> None:
    """Remove what nobody has changed for long.

    Args:
        root: the store's folder.
        before: seconds since 1970; younger files may still be in use.

    Raises:
        StoreError: the folder can't be read, or a file not removed.
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
