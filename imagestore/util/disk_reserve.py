"""A little space kept back, so that a full disk can be emptied with our own tools.

SQLite needs room for its log even to delete rows, and two files, for which a disk may have no inode. What is kept back
is given up when a command that frees space can't open the database for want of it, or when records or leases are
removed while there is hardly any left. Commands that only read, and work that gives its own lease up, leave it.

While it is given up no content is written, so that pulls don't take the space from the removal. It is made again by the
next opening, pull or collection that finds some space.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.util.files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

#: Enough for SQLite's log of some thousand removals.
BALLAST_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class Ballast:
    """One file, and an empty second one; to keep and to release them is best effort.

    Attributes:
        path: next to the database.
    """

    path: Path

    def keep(self) -> None:
        """Make the files if the first isn't there and there is space, not only what was just given up."""
        if os.path.lexists(self.path) or self._has_less_than(2 * BALLAST_BYTES):
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                _allocate(descriptor)
            except OSError:
                os.unlink(self.path)
                raise
            finally:
                os.close(descriptor)
            os.close(open_regular(self._second, os.O_CREAT | os.O_WRONLY))

    def check(self) -> None:
        """Refuse content while the space is given up; asked before and after its bytes are written.

        Afterwards too, since the write may have taken that space; a refused writer gives it back.

        Raises:
            OSError: ENOSPC, as where there is no space at all.
        """
        if not os.path.lexists(self.path):
            raise OSError(
                errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: what is left is for removing images", os.fspath(self.path)
            )

    def release_where_full(self) -> None:
        """Give the space back if there is hardly any other; before changes that will free more than they take."""
        with contextlib.suppress(OSError):
            if self._has_less_than(BALLAST_BYTES):
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

    def _has_less_than(self, size: int) -> bool:
        try:
            status = os.statvfs(self.path.parent)
        except OSError:
            return False
        # A disk that counts no blocks is never full.
        return bool(status.f_blocks) and status.f_bavail * status.f_frsize < size

    @property
    def _second(self) -> Path:
        return self.path.with_name(f"{self.path.name}.inode")


def _allocate(descriptor: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
    except OSError as error:
        # Not every file system and C library allocates; bytes take the same space.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        if os.pwrite(descriptor, bytes(BALLAST_BYTES), 0) < BALLAST_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
