"""The folder of ingests: which there are, which process holds them, and how stale ones are removed."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.content.ingest_folder import ingest_name, read_remains, read_status, remove_ingest
from imagestore.content.locks import FileLock
from imagestore.errors import IngestLockedError, InvalidInputError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.content.api import IngestStatus
    from imagestore.util.cancel import CancelToken

_INGEST_NAME: Final = re.compile(r"[a-f0-9]{64}")


class Ingests:
    """What a content store does with its ingests as a whole.

    Args:
        ingests: the folder.
        locks: folder of lock files.
    """

    def __init__(self, ingests: Path, locks: Path) -> None:
        self._ingests = ingests
        self._locks = locks
        self._ingests_text, self._locks_text = os.fspath(ingests), os.fspath(locks)

    def status(self, ref: str) -> IngestStatus | None:
        """One unfinished ingest, or None."""
        return read_status(self._ingests / ingest_name(ref))

    def statuses(self) -> Iterator[IngestStatus]:
        """Every unfinished ingest."""
        with translated("list", self._ingests), os.scandir(self._ingests) as entries:
            for entry in entries:
                status = read_status(Path(entry.path))
                if status is not None:
                    yield status

    def abort(self, ref: str) -> bool:
        """Throw an ingest away unless a writer holds it; say whether it is gone.

        Raises:
            StoreError: its folder can't be removed.
        """
        return self._abort_folder(ingest_name(ref))

    def stale_ingests(self, before: float, *, beyond: float = float("inf")) -> Iterator[IngestStatus]:
        """Ingests that weren't touched since ``before``, or only ``beyond``, by a clock that was set back since.

        Both in seconds since 1970.

        What a process left that died while it made or removed an ingest counts too; its name is that of its folder.
        """
        with translated("list", self._ingests), os.scandir(self._ingests) as entries:
            for entry in entries:
                if _INGEST_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    path = Path(entry.path)
                    status = read_status(path) or read_remains(path)
                    if status is not None and not before <= status.updated_at <= beyond:
                        yield status

    def abort_stale(self, ingest: IngestStatus) -> bool:
        """Throw a stale ingest away unless a writer holds it; say whether it is gone.

        Raises:
            StoreError: its folder can't be removed.
        """
        is_remains = bool(_INGEST_NAME.fullmatch(ingest.ref)) and (self._ingests / ingest.ref).is_dir()
        return self._abort_folder(ingest.ref if is_remains else ingest_name(ingest.ref))

    def clear_locks(self) -> None:
        """Remove lock files that killed processes left behind."""
        with translated("list", self._locks), os.scandir(self._locks) as entries:
            for entry in entries:
                # One that stays only stops a writer that wants this lock, which then reports it.
                if entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(StoreError), FileLock(entry.path) as lock:
                        lock.try_acquire()

    def _abort_folder(self, name: str) -> bool:
        with self._lock(name) as lock:
            if not lock.try_acquire():
                return False
            folder = self._ingests / name
            with translated("remove ingest", folder):
                remove_ingest(folder)
                if self._is_begun(name):
                    shutil.rmtree(folder)  # says why it can't
            return True

    def _busy(self, ref: str) -> IngestLockedError:
        """As containerd says it: which, since when, and for how long."""
        message = f"ingest {ref!r} is locked by another writer"
        status = self.status(ref)
        if status is not None:
            since = datetime.datetime.fromtimestamp(status.started_at, datetime.UTC).isoformat(timespec="seconds")
            message = f"{message}; begun {max(0.0, time.time() - status.started_at):.1f} s ago, at {since}"
        return IngestLockedError(message, hint="try again when it ended")

    def _locked(self, ref: str, cancel: CancelToken, on_wait: Callable[[], None] | None) -> tuple[str, FileLock]:
        if not ref:
            raise InvalidInputError("an ingest needs a name")
        name = ingest_name(ref)
        lock = self._lock(name)
        if not lock.try_acquire():
            if on_wait is not None:
                on_wait()
            lock.acquire(cancel)
        return name, lock

    def _is_begun(self, name: str) -> bool:
        return os.path.lexists(f"{self._ingests_text}/{name}")

    def _lock(self, name: str) -> FileLock:
        return FileLock(f"{self._locks_text}/ingest-{name}")
