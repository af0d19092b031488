"""The lock that makes one process the publisher of a store into one containerd."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final

from imagestore.content.locks import FileLock
from imagestore.errors import StoreBusyError
from imagestore.util.files import read_regular, replace

_FOLDER: Final = "locks"
_MOST_BYTES: Final = 32


class PublisherRunningError(StoreBusyError):
    """Another process publishes this store into this containerd: ``process_id``, or 0 if it isn't known."""

    def __init__(self, place: str, process_id: int) -> None:
        who = f"process {process_id}" if process_id else "another process"
        super().__init__(
            f"{place}: {who} publishes this store already",
            hint="a running server follows the store; 'imagestore publish --status' shows what it did",
        )
        self.process_id = process_id


class OwnerLock:
    """An advisory lock ``<root>/locks/publish-<hash>``, with its owner's process id beside it.

    Args:
        root: the store's folder.
        place: which containerd and namespace, in words.
    """

    def __init__(self, root: Path, place: str) -> None:
        name = f"publish-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        self._place = place
        self._folder = Path(root) / _FOLDER
        self._lock = FileLock(self._folder / name)
        self._note = self._folder / f"{name}.pid"
        self.is_held = False

    def acquire(self) -> None:
        """Become the publisher; again is no error.

        Raises:
            PublisherRunningError: another process is.
            StoreError: the lock can't be made.
        """
        if self.is_held:
            return
        self._folder.mkdir(exist_ok=True)
        if not self._lock.try_acquire():
            raise PublisherRunningError(self._place, self.holder())
        self.is_held = True
        replace(self._note, str(os.getpid()).encode())

    def holder(self) -> int:
        """The process id that the owner noted; 0 if none can be read."""
        try:
            return int(read_regular(self._note, _MOST_BYTES))
        except (OSError, ValueError):
            return 0

    def release(self) -> None:
        """Let another process publish; harmless when not held."""
        if self.is_held:
            with contextlib.suppress(FileNotFoundError):
                self._note.unlink()
            self._lock.release()
            self.is_held = False
