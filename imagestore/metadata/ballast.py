"""A little space kept back, so that a full disk can be emptied with our own tools.

SQLite needs room for its log even to delete rows, and two files, for which a disk may have no inode. What is kept back
is given up when who is going to free space can't open the database for want of it, or when records or leases are
removed while there is hardly any left, whoever else has the database open. Who only reads, and work that gives its own
lease up, leave it: something else may take what they would give. It is made again by the next opening or collection
that finds some space.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.own_files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

#: Enough for SQLite's log of some thousand removals.
BALLAST_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class Ballast:
    """One file, and an empty second one; everything about them is best effort.

    Attributes:
        path: beside the database.
    """

    path: Path

    def keep(self) -> None:
        """Make the files if the first isn't there and there is space."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            except OSError:
                os.unlink(self.path)
                raise
            finally:
                os.close(descriptor)
            os.close(open_regular(self._second, os.O_CREAT | os.O_WRONLY))

    def release_where_full(self) -> None:
        """Give the space back if there is hardly any other; before changes that will free more than they take."""
        with contextlib.suppress(OSError):
            status = os.statvfs(self.path.parent)
            # Where there are no blocks at all, nobody counts them.
            if status.f_blocks and status.f_bavail * status.f_frsize < BALLAST_BYTES:
                os.unlink(self.path)

    def release(self) -> bool:
        """Give the space and the inodes back; say whether there were any."""
        with contextlib.suppress(OSError):
            os.unlink(self._second)
        try:
            os.unlink(self.path)
        except OSError:
            return False
        return True

    @property
    def _second(self) -> Path:
        return self.path.with_name(f"{self.path.name}.inode")
