"""A little space kept back, so that images can still be removed from a full disk.

SQLite needs room for its log even to delete rows, and two files, for which a disk may have no inode. The reserve is
released when a command that frees space can't open the database for lack of it, or when records or leases are removed
while hardly any space is left. Commands that only read, and work that releases its own lease, don't use it.

While it is released no content is written, so that pulls don't take the space from the removal. The next opening, pull
or collection that finds enough space makes it again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.util.file_calls import allocate, nameless_file, sync_file_system
from imagestore.util.files import open_regular

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

#: Enough for SQLite's log of some thousand removals.
BALLAST_BYTES: Final = 512 * 1024
#: More than a commit writes into the mapped index of SQLite's log.
_PROBED: Final = bytes(16 * 1024)
#: File systems that write each changed page to a new place.
_NEVER_OVERWRITING: Final = frozenset({"btrfs", "bcachefs", "zfs"})


class SpaceProbe:
    """Tries whether a disk takes anything, which a quota only shows to who writes.

    SQLite writes the index of its log through a mapping. File systems that never overwrite need space for that each
    time, and where they have none, it ends the process by a signal (SIGBUS) instead of an error. On others nothing is
    tried: SQLite gets its space there before it maps it.

    Args:
        file_system: what kind it is, as in /proc/mounts.
    """

    def __init__(self, file_system: str) -> None:
        self._is_needed = file_system in _NEVER_OVERWRITING
        self._path: Path | None = None
        self._file: IO[bytes] | None = None

    def open(self, path: Path) -> None:
        """Make a file without a name next to ``path``; where that isn't possible, nothing is tried."""
        if not self._is_needed:
            return
        with contextlib.suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._path, self._file = path, nameless_file(folder)
            finally:
                os.close(folder)
            weakref.finalize(self, self._file.close)

    def check(self) -> None:
        """Write something, and take it back.

        Raises:
            OSError: the disk, or a quota, has no room for it; with the path.
        """
        if self._file is None or self._path is None:
            return
        try:
            os.pwrite(self._file.fileno(), _PROBED, 0)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error
        finally:
            os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        """Close its file."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True)
class Ballast:
    """The reserve: a file at ``path``, next to the database, and an empty one. Failures to make it are ignored."""

    path: Path

    def keep(self) -> None:
        """Make the files if the first is missing and there is more space than what was just released."""
        if os.path.lexists(self.path) or self._has_less_than(2 * BALLAST_BYTES):
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                allocate(descriptor, BALLAST_BYTES)
            except OSError:
                os.unlink(self.path)
                raise
            finally:
                os.close(descriptor)
            os.close(open_regular(self._second, os.O_CREAT | os.O_WRONLY))

    def check(self) -> None:
        """Refuse content while the reserve is released; called before and after its bytes are written.

        Afterwards too, since the write may have taken that space; a refused writer gives it back.

        Raises:
            OSError: ENOSPC.
        """
        if not os.path.lexists(self.path):
            raise OSError(
                errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: what is left is for removing images", os.fspath(self.path)
            )

    def release_where_full(self) -> None:
        """Release the space if hardly any other is left; before changes that will free more than they take."""
        with contextlib.suppress(OSError):
            if self._has_less_than(BALLAST_BYTES):
                os.unlink(self.path)

    def release(self) -> bool:
        """Release the space and the inodes; return whether there was a reserve."""
        with contextlib.suppress(OSError):
            os.unlink(self._second)
        try:
            os.unlink(self.path)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_file_system(folder)  # btrfs gives the space back with its next transaction
            finally:
                os.close(folder)
        return True

    def _has_less_than(self, size: int) -> bool:
        try:
            status = os.statvfs(self.path.parent)
        except OSError:
            return False
        # A file system that reports no blocks is never full.
        return bool(status.f_blocks) and status.f_bavail * status.f_frsize < size

    @property
    def _second(self) -> Path:
        return self.path.with_name(f"{self.path.name}.inode")
