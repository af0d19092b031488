"""All blobs at once, where nothing keeps any: their folders are put away under the lock, and emptied without it.

Two names change instead of ten thousand, so nobody waits; and threads that delete where no lock is held don't take the
interpreter from one that works for those who wait. Folders go to one below the ingests, which is locked while it is
ours: whoever dies leaves it, and the next collection deletes what is in it.

Where a folder can't be moved (a mount point, a link to another disk, another's) blobs go one by one, as ever.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from imagestore.cancel import CancelToken
from imagestore.content.disk import sync_directory, translated
from imagestore.content.emptying import Emptied
from imagestore.content.names import entries
from imagestore.content.scratch import Scratch
from imagestore.errors import StoreError
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path
    from types import TracebackType
    from typing import Self


class PutAway:
    """The folders of blobs on their way out.

    Args:
        blobs: the folder of all blobs.
        ingests: the folder of all ingests.
        locks: the folder of lock files.
    """

    def __init__(self, blobs: Path, ingests: Path, locks: Path) -> None:
        self._blobs = blobs
        self._scratch = Scratch(ingests, locks, CancelToken())
        self._away = ""
        self._names: dict[str, list[str]] = {}
        # By algorithm, what takes the place of its folder.
        self._empty: dict[str, str] = {}

    def prepare(self, texts: Collection[str]) -> bool:
        """Get ready to put away these blobs, before the lock is taken; False when there is anything else, or no way.

        Args:
            texts: digests in text form.
        """
        wanted = set(texts)
        # Whatever the reason, it is told when they go one by one.
        with contextlib.suppress(StoreError, OSError):
            for algorithm, entry in entries(self._blobs):
                if f"{algorithm}:{entry.name}" not in wanted or not entry.is_file(follow_symlinks=False):
                    return False
                self._names.setdefault(algorithm, []).append(entry.name)
            self._away = self._scratch.place()
            os.mkdir(self._away, 0o700)
            return all(map(self._prepare, self._names))
        return False

    def _prepare(self, algorithm: str) -> bool:
        """An empty folder that can take the place of this algorithm's."""
        folder = self._blobs / algorithm
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            return False
        import shutil

        empty = self._scratch.place()
        os.mkdir(empty)
        # Whoever may write to the one may write to the other: owner, mode, and what else is noted with a folder.
        made = os.stat(empty)
        if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
            os.chown(empty, status.st_uid, status.st_gid)
        shutil.copystat(folder, empty)
        sync_directory(empty)
        self._empty[algorithm] = empty
        return True

    def take(self) -> bool:
        """Put the folders away, whatever is in them by now, and empty ones in their places; False when one can't be.

        Only under the lock, and where nothing keeps any content.

        Raises:
            StoreError: the disk failed. A folder that is missing is made by the next who writes to it.
        """
        for algorithm, empty in self._empty.items():
            folder = self._blobs / algorithm
            try:
                reach("away-rename")
                os.rename(folder, f"{self._away}/{algorithm}")
            except OSError:
                return False
            with translated("replace", folder):
                reach("away-replace")
                os.rename(empty, folder)
        with translated("make durable", self._blobs):
            # Else what is written to the new folders could be lost with them, though synced.
            reach("away-sync")
            sync_directory(self._blobs)
        return True

    def empty(self) -> Emptied:
        """Delete what was put away. What somebody wrote there meanwhile, without a lease, goes with the folders."""
        emptied = Emptied(self._away)
        for algorithm, names in self._names.items():
            emptied.empty(algorithm, names)
        return emptied

    def __enter__(self) -> Self:
        self._scratch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._scratch.__exit__(kind, value, traceback)
