"""All blobs at once, where nothing keeps any: their folders are put away under the lock, and emptied without it.

One step changes the name of ten thousand, so nobody waits; and threads that delete where no lock is held don't take the
interpreter from one that works for those who wait. The folders change places with empty ones below the ingests, in a
folder that is locked while it is ours: whoever dies leaves it, and the next collection deletes what is in it.

Where that can't be done (a mount point, a link, another disk, a system without that step), or a folder isn't quite what
it was when it was listed, blobs go one by one, as ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import TYPE_CHECKING, Final

from imagestore.cancel import CancelToken
from imagestore.content.disk import sync_directory
from imagestore.content.emptying import Emptied
from imagestore.content.scratch import Scratch
from imagestore.digest import VERIFIABLE
from imagestore.errors import StoreError
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path
    from types import TracebackType
    from typing import Self

#: Relative to where the process is, and "exchange": from fcntl.h and linux/fs.h.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
#: File systems note times by the kernel's tick: a change after so long is told from the one before.
_TICK_SECONDS: Final = 0.02


class PutAway:
    """The folders of blobs on their way out.

    Args:
        blobs: the folder of all blobs.
        ingests: the folder of all ingests.
        locks: the folder of lock files.
    """

    def __init__(self, blobs: Path, ingests: Path, locks: Path) -> None:
        self._blobs = os.fspath(blobs)
        self._scratch = Scratch(ingests, locks, CancelToken())
        self._names: dict[str, list[str]] = {}
        # By algorithm: what its folder was when listed, and what changes places with it.
        self._statuses: dict[str, os.stat_result] = {}
        self._others: dict[str, str] = {}
        self._taken: list[str] = []
        self._is_emptied = False
        self._exchange: Callable[[str, str], None]

    def prepare(self, texts: Collection[str]) -> bool:
        """Get ready to put away these blobs, before the lock is taken; False when there is anything else, or no way.

        Args:
            texts: digests in text form.
        """
        wanted = set(texts)
        # Whatever the reason, it is told when they go one by one.
        with contextlib.suppress(StoreError, OSError, ImportError):
            self._exchange = _exchange()
            self._statuses = self._look()
            device = os.stat(self._blobs).st_dev
            if not all(_is_settled(status, device) for status in self._statuses.values()):
                return False
            for algorithm, status in self._statuses.items():
                names = self._names[algorithm] = []
                with os.scandir(f"{self._blobs}/{algorithm}") as entries:
                    for entry in entries:
                        if f"{algorithm}:{entry.name}" not in wanted or not entry.is_file(follow_symlinks=False):
                            return False
                        names.append(entry.name)
                self._others[algorithm] = self._like(algorithm, status)
            return any(self._names.values())
        return False

    def _look(self) -> dict[str, os.stat_result]:
        found = {}
        for algorithm in VERIFIABLE:
            with contextlib.suppress(FileNotFoundError):
                found[algorithm] = os.lstat(f"{self._blobs}/{algorithm}")
        return found

    def _like(self, algorithm: str, status: os.stat_result) -> str:
        """An empty folder; whoever may write to the one may write to the other."""
        import shutil

        made = self._scratch.place(algorithm)
        os.mkdir(made)
        ours = os.stat(made)
        if (ours.st_uid, ours.st_gid) != (status.st_uid, status.st_gid):
            os.chown(made, status.st_uid, status.st_gid)
        shutil.copystat(f"{self._blobs}/{algorithm}", made)
        sync_directory(made)
        return made

    def take(self) -> bool:
        """Put the folders away, and empty ones in their places; False when that can't be, and then nothing is changed.

        Only under the lock, and where nothing keeps any content.
        """
        try:
            now = self._look()
            if now.keys() != self._statuses.keys() or not all(
                _is_same(now[algorithm], status) for algorithm, status in self._statuses.items()
            ):
                return False
            for algorithm, other in self._others.items():
                self._taken.append(algorithm)
                reach("away-exchange")
                self._exchange(f"{self._blobs}/{algorithm}", other)
            # Else what is written to the new folders could be lost with them, though synced.
            reach("away-sync")
            sync_directory(self._blobs)
        except BaseException as error:
            self._put_back()
            if not isinstance(error, OSError):
                raise
            return False
        return True

    def _put_back(self) -> None:
        """As it was, as far as it goes; before the lock is let go."""
        while self._taken:
            algorithm = self._taken.pop()
            folder = f"{self._blobs}/{algorithm}"
            with contextlib.suppress(OSError):
                if not os.path.samestat(os.lstat(folder), self._statuses[algorithm]):
                    self._exchange(folder, self._others[algorithm])
                    sync_directory(self._blobs)

    def empty(self) -> Emptied:
        """Delete what was put away.

        Raises:
            StoreError: a folder can't be opened.
        """
        emptied = Emptied()
        for algorithm in self._taken:
            emptied.empty(algorithm, self._others[algorithm], self._names.get(algorithm, ()))
        self._is_emptied = not emptied.failures
        return emptied

    def __enter__(self) -> Self:
        self._scratch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if self._taken and not self._is_emptied:
            # Who is interrupted doesn't wait for it, and what is said to be there is there. A collection takes it.
            self._scratch.leave()
        self._scratch.__exit__(kind, value, traceback)


def _exchange() -> Callable[[str, str], None]:
    """What lets two names of one file system change places in one step: Linux's renameat2, which Python lacks.

    Raises:
        OSError: this system has no such step.
        ImportError: this Python can't call it.
    """
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None

    def exchange(one: str, other: str) -> None:
        if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return exchange


def _is_settled(status: os.stat_result, device: int) -> bool:
    """Whether this is a folder (no link, mount point or subvolume) whose next change will be seen by its time.

    Waits a moment for that. Where times have whole seconds only, it isn't.
    """
    age = time.time() - status.st_ctime
    if 0 <= age < _TICK_SECONDS:
        time.sleep(_TICK_SECONDS)
    is_fine = age >= 0 and status.st_ctime_ns % 10**9 != 0
    return is_fine and stat.S_ISDIR(status.st_mode) and status.st_dev == device


def _is_same(now: os.stat_result, before: os.stat_result) -> bool:
    return os.path.samestat(now, before) and now.st_ctime_ns == before.st_ctime_ns
