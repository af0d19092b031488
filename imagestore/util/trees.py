"""Trees of files removed or walked through, however deep and full their folders are.

A folder is read name by name, and its names are removed while it is read: memory doesn't grow with what is in it. Some
file systems skip names while others are removed, so each folder is read twice; folders that stay are looked into the
second time. One descriptor is open for each folder on the way down, and no link is followed.
"""

from __future__ import annotations

import enum
import errno
import os
from typing import TYPE_CHECKING, Final

from imagestore.util.cancel import never_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: What open() and unlink() say when a name isn't a folder's, or is one.
_NO_FOLDER: Final = (errno.ENOTDIR, errno.ELOOP)
_IS_FOLDER: Final = (errno.EISDIR, errno.EPERM)
_OPEN_MODE: Final = 0o700


class Choice(enum.Enum):
    """What becomes of a name: it is removed with all below it, stays as it is, or, a folder, is looked into."""

    REMOVE = enum.auto()
    KEEP = enum.auto()
    ENTER = enum.auto()


class _Level:
    """A folder on the way down.

    Attributes:
        name: in the folder above.
        path: from where the walk began, with a slash behind it; empty there.
        is_going: it is removed itself.
        status: when it was opened.
        names: what is still to be read of it.
        is_second: it is read for the second time.
    """

    __slots__ = ("is_going", "is_second", "name", "names", "path", "status")

    def __init__(self, descriptor: int, name: str, path: str, *, is_going: bool) -> None:
        self.name = name
        self.path = path
        self.is_going = is_going
        self.status = os.fstat(descriptor)
        self.names = os.scandir(descriptor)
        self.is_second = False


class _Walk:
    def __init__(
        self,
        folder: int,
        choose: Callable[[str], Choice],
        check: Callable[[], None],
        on_leaving: Callable[[int, str], None] | None,
    ) -> None:
        self._choose = choose
        self._check = check
        self._on_leaving = on_leaving
        #: The folder of the last level.
        self._here = os.dup(folder)
        self._levels: list[_Level] = []

    def run(self) -> None:
        """Walk."""
        try:
            self._levels.append(_Level(self._here, "", "", is_going=False))
            while self._levels:
                self._check()
                level = self._levels[-1]
                found = next(level.names, None)
                if found is not None:
                    self._take(level, found.name)
                elif not level.is_second:
                    level.names.close()
                    level.names, level.is_second = os.scandir(self._here), True
                else:
                    self._leave(self._levels.pop())
        finally:
            for level in self._levels:
                level.names.close()
            os.close(self._here)

    def _take(self, level: _Level, name: str) -> None:
        path = level.path + name
        choice = Choice.REMOVE if level.is_going else self._choose(path)
        if choice is Choice.KEEP or (choice is Choice.ENTER and not level.is_second):
            return
        is_going = choice is Choice.REMOVE
        if is_going and self._unlinked(name):
            return
        try:
            inner = _opened(self._here, name, is_going=is_going)
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
            if is_going:  # the system refuses to remove it, and said so with a folder's errno
                raise OSError(errno.EPERM, os.strerror(errno.EPERM), path) from error
            return
        os.close(self._here)
        self._here = inner
        self._levels.append(_Level(inner, name, f"{path}/", is_going=is_going))

    def _unlinked(self, name: str) -> bool:
        """Remove what is no folder; False for a folder."""
        try:
            os.unlink(name, dir_fd=self._here)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in _IS_FOLDER:
                raise
            return False
        return True

    def _leave(self, level: _Level) -> None:
        level.names.close()
        above = os.open("..", _FOLDER, dir_fd=self._here) if self._levels else -1
        try:
            if not level.is_going:
                # Reading and removing have changed them.
                os.utime(self._here, ns=(level.status.st_atime_ns, level.status.st_mtime_ns))
                if self._on_leaving is not None:
                    self._on_leaving(self._here, level.path.rstrip("/"))
            if above < 0:
                return
            parent = self._levels[-1]
            if not os.path.samestat(parent.status, os.fstat(above)):
                raise OSError(errno.ESTALE, "a folder was moved while it was read", level.path)
            os.close(self._here)
            self._here, above = above, -1
            if level.is_going:
                os.rmdir(level.name, dir_fd=self._here)
        finally:
            if above >= 0:
                os.close(above)


def _opened(above: int, name: str, *, is_going: bool) -> int:
    """A folder, opened; one that is removed is opened for its owner first."""
    try:
        inner = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        if not is_going:
            raise
        set_mode(above, name, _OPEN_MODE)
        inner = os.open(name, _FOLDER, dir_fd=above)
    if is_going and os.geteuid() != 0:
        os.fchmod(inner, _OPEN_MODE)
    return inner


def set_mode(above: int, name: str, mode: int) -> None:
    """Give a file its mode by a name that isn't followed.

    Raises:
        OSError: ENOTSUP for a link, which has no mode.
    """
    try:
        # fchmodat(2) with AT_SYMLINK_NOFOLLOW: glibc has it from 2.32, with a system call of its own on Linux 6.6.
        os.chmod(name, mode, dir_fd=above, follow_symlinks=False)
    except (NotImplementedError, ValueError) as error:  # Python's for ENOTSUP
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), name) from error


def prune(
    folder: int,
    choose: Callable[[str], Choice],
    *,
    check: Callable[[], None] = never_cancelled,
    on_leaving: Callable[[int, str], None] | None = None,
) -> None:
    """Remove what is chosen of all that is below an open folder. Folders that stay keep their times.

    Args:
        choose: gets the path of each name, from the folder on, at most twice.
        check: called before each step; what it raises ends the walk.
        on_leaving: gets each folder that stays, the given one too, after all below it: its descriptor and path.

    Raises:
        OSError: something can't be read or removed, or somebody else moves folders at the same time.
    """
    _Walk(folder, choose, check, on_leaving).run()


def remove_content(folder: int, *, check: Callable[[], None] = never_cancelled) -> None:
    """Remove all that is below an open folder; arguments and errors as for prune()."""
    prune(folder, lambda _: Choice.REMOVE, check=check)


def remove_folder(above: int, name: str, *, check: Callable[[], None] = never_cancelled) -> None:
    """Remove a folder of an open folder with all below it; arguments and errors as for prune()."""
    folder = _opened(above, name, is_going=True)
    try:
        remove_content(folder, check=check)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)
