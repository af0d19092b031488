"""The lock that makes one process the publisher of a store into one containerd, and what that process says of its work.

Both are files in the store's folder of locks, so that commands beside a running server learn what it does without a
call to it: ``publish-<hash>`` is the lock, ``publish/<hash>.json`` the state (owner_state). A state without a held lock
is what a killed process left, and says nothing. It has a folder of its own, since a collection takes every other file
among the locks for a lock, and removes those that nobody holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Final

import imagestore.publish.owner_state as owner_state
from imagestore.errors import StoreBusyError, StoreCorruptError, StoreError
from imagestore.publish.owner_state import OwnerState
from imagestore.util.disk_errors import translated
from imagestore.util.file_locks import FileLock, is_taken

log = logging.getLogger(__name__)

_FOLDER: Final = "locks"
_STATES: Final = "publish"
_BEGIN: Final = "publish-"
#: Who looks whether the lock is held has a share of it for an instant.
_TRIES: Final = 3
_BETWEEN_SECONDS: Final = 0.02


class PublisherRunningError(StoreBusyError):
    """Another process publishes this store into this containerd: ``process_id``, or 0 if it isn't known."""

    def __init__(self, place: str, process_id: int) -> None:
        super().__init__(
            f"{place}: {describe_process(process_id)} publishes this store already",
            hint="a running server follows the store; 'imagestore publish --status' shows what it did",
        )
        self.process_id = process_id


def describe_process(process_id: int) -> str:
    """A process in words; 0 is one that isn't known."""
    return f"process {process_id}" if process_id else "another process"


class OwnerLock:
    """An advisory lock ``<root>/locks/publish-<hash>``.

    Args:
        root: the store's folder.
        address: of containerd's socket.
        namespace: containerd's.
    """

    def __init__(self, root: Path, address: str, namespace: str) -> None:
        self._address, self._namespace = address, namespace
        self._place = f"{address} {namespace}"
        name, folder = hashlib.sha256(self._place.encode()).hexdigest()[:16], Path(root) / _FOLDER
        self._path = folder / f"{_BEGIN}{name}"
        self._lock = FileLock(self._path)
        self._state = folder / _STATES / f"{name}{owner_state.SUFFIX}"
        self._taking = threading.Lock()
        self._noted: OwnerState | None = None
        self.is_held = False

    def acquire(self) -> None:
        """Become the publisher; again is no error.

        Raises:
            PublisherRunningError: another process is.
            StoreError: the lock can't be made.
        """
        with self._taking:
            if self.is_held:
                return
            self._take()
            self.is_held = True
        self.note(OwnerState(os.getpid(), self._address, self._namespace, "not connected yet"))

    def _take(self) -> None:
        with translated("make", self._state.parent):
            self._state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(_TRIES):
            if number:
                time.sleep(_BETWEEN_SECONDS)
            if self._lock.try_acquire():
                return
        raise PublisherRunningError(self._place, self._holder())

    def note(self, state: OwnerState) -> None:
        """Let others read this; nothing is written by who doesn't hold the lock. On a full disk the older one stays."""
        if not self.is_held or state == self._noted:
            return
        self._noted = state
        try:
            owner_state.write(self._state, state)
        except StoreError as error:
            log.warning("the publisher's state can't be written", extra={"error": str(error)})

    def owner(self) -> OwnerState | None:
        """What the process that holds the lock says of its work; None if none does.

        Raises:
            StoreCorruptError: it is unreadable.
        """
        return owner_state.read(self._state) if is_taken(self._path) else None

    def _holder(self) -> int:
        try:
            owner = self.owner()
        except StoreCorruptError:
            owner = None
        return owner.process_id if owner is not None else 0

    def release(self) -> None:
        """Let another process publish; harmless when not held."""
        if self.is_held:
            with contextlib.suppress(FileNotFoundError):
                self._state.unlink()
            self._lock.release()
            self.is_held = False


def owners(root: Path) -> list[OwnerState]:
    """What the running publishers of a store say, in no particular order.

    Raises:
        StoreCorruptError: a state is unreadable.
    """
    folder = Path(root) / _FOLDER
    states = (folder / _STATES).glob(f"*{owner_state.SUFFIX}")
    return [owner_state.read(path) for path in states if is_taken(folder / f"{_BEGIN}{path.stem}")]
