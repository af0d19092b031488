"""Ingests on disk, in containerd's form: their folders, which process holds each, and how stale ones are removed.

ingest/<sha256 of the ref>/ref         the ingest's name
                          /data        the bytes so far; its size is the offset
                          /startedat   RFC 3339 with nanoseconds
                          /updatedat   the same
                          /total       decimal, only when known
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagestore.content.api import IngestStatus
from imagestore.errors import IngestLockedError, InvalidInputError, StoreError
from imagestore.oci.digest import Digest
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach
from imagestore.util.file_locks import FileLock
from imagestore.util.files import opener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.content.api import IngestStatus
    from imagestore.util.cancel import CancelToken

_INGEST_NAME: Final = re.compile(r"[a-f0-9]{64}")


def ingest_name(ref: str) -> str:
    """The folder of an ingest: lower-case sha256 of its name, whatever the content's algorithm.

    >>> ingest_name("hello-ref")[:12]
    '9e2b3b72513e'
    """
    return Digest.of(ref.encode()).encoded


def read_status(directory: Path) -> IngestStatus | None:
    """Read an ingest's folder; None when it isn't one (or is just being made or removed)."""
    try:
        # Not as text: a carriage return is a part of the name.
        ref = _read(directory / "ref")
        data = os.lstat(directory / "data")
    except (OSError, UnicodeDecodeError):
        return None
    if not stat.S_ISREG(data.st_mode):
        return None
    return IngestStatus(
        ref=ref,
        offset=data.st_size,
        total=_read_total(directory),
        started_at=_read_time(directory / "startedat", data.st_mtime),
        updated_at=max(_read_time(directory / "updatedat", 0.0), data.st_mtime),
    )


def read_remains(directory: Path) -> IngestStatus | None:
    """A folder that has lost (or never got) its name, as an ingest named like the folder; None when it is gone."""
    size = 0
    try:
        made_at = updated_at = os.stat(directory).st_mtime
        with os.scandir(directory) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                size, updated_at = size + status.st_size, max(updated_at, status.st_mtime)
    except OSError:
        return None
    return IngestStatus(directory.name, size, 0, made_at, updated_at)


def remove_ingest(directory: Path) -> None:
    """Throw an ingest's folder away, its data last, so that a half removed one still says how big it is."""
    for name in ("ref", "startedat", "updatedat", "total"):
        reach("ingest-remove")
        with contextlib.suppress(OSError):
            os.unlink(directory / name)
    reach("ingest-remove-data")
    with contextlib.suppress(OSError):
        os.unlink(directory / "data")
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return
    except OSError:
        # Something is in it that isn't ours.
        shutil.rmtree(directory, ignore_errors=True)


def now_text() -> str:
    """The current time, as it is written."""
    nanoseconds = time.time_ns()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9))
    fraction = f"{nanoseconds % 10**9:09d}".rstrip("0")
    return whole + (f".{fraction}" if fraction else "") + "Z"


def _read(path: Path) -> str:
    with open(path, "rb", opener=opener) as file:
        return file.read().decode("utf-8")


def _read_total(directory: Path) -> int:
    try:
        text = _read(directory / "total")
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _read_time(path: Path, default: float) -> float:
    try:
        text = _read(path)
        whole, _, fraction = text.removesuffix("Z").partition(".")
        moment = datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.UTC)
        return moment.timestamp() + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)
    except (OSError, ValueError):
        return default


class IngestFolder:
    """The folder of all ingests and the locks that their writers hold; the methods are those of ContentStore."""

    def __init__(self, path: Path, locks: Path) -> None:
        self.path = path
        self.locks = locks
        # Joined as text: a path object costs more than the look it is made for.
        self._text, self._locks_text = os.fspath(path), os.fspath(locks)

    def status(self, ref: str) -> IngestStatus | None:
        """One unfinished ingest, or None."""
        return read_status(self.path / ingest_name(ref))

    def statuses(self) -> Iterator[IngestStatus]:
        """Every unfinished ingest."""
        with translated("list", self.path), os.scandir(self.path) as entries:
            for entry in entries:
                status = read_status(Path(entry.path))
                if status is not None:
                    yield status

    def abort(self, ref: str) -> bool:
        """Throw an ingest away unless a writer holds it; say whether it is gone."""
        return self._abort_folder(ingest_name(ref))

    def stale_ingests(self, before: float, *, beyond: float = float("inf")) -> Iterator[IngestStatus]:
        """Ingests that weren't touched since ``before``, or only ``beyond``, by a clock that was set back since.

        Both in seconds since 1970.

        What a process left that died while it made or removed an ingest counts too; its name is that of its folder.
        """
        with translated("list", self.path), os.scandir(self.path) as entries:
            for entry in entries:
                if _INGEST_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    path = Path(entry.path)
                    status = read_status(path) or read_remains(path)
                    if status is not None and not before <= status.updated_at <= beyond:
                        yield status

    def abort_stale(self, ingest: IngestStatus) -> bool:
        """Throw a stale ingest away unless a writer holds it; say whether it is gone."""
        is_remains = bool(_INGEST_NAME.fullmatch(ingest.ref)) and (self.path / ingest.ref).is_dir()
        return self._abort_folder(ingest.ref if is_remains else ingest_name(ingest.ref))

    def clear_locks(self) -> None:
        """Remove lock files that killed processes left behind."""
        with translated("list", self.locks), os.scandir(self.locks) as entries:
            for entry in entries:
                # One that stays only stops a writer that wants this lock, which then reports it.
                if entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(StoreError), FileLock(entry.path) as lock:
                        lock.try_acquire()

    def _abort_folder(self, name: str) -> bool:
        with self._lock(name) as lock:
            if not lock.try_acquire():
                return False
            folder = self.path / name
            with translated("remove ingest", folder):
                remove_ingest(folder)
                if self.is_begun(name):
                    shutil.rmtree(folder)  # says why it can't
            return True

    def _locked_error(self, ref: str) -> IngestLockedError:
        """As containerd says it: which, since when, and for how long."""
        message = f"ingest {ref!r} is locked by another writer"
        status = self.status(ref)
        if status is not None:
            since = datetime.datetime.fromtimestamp(status.started_at, datetime.UTC).isoformat(timespec="seconds")
            message = f"{message}; begun {max(0.0, time.time() - status.started_at):.1f} s ago, at {since}"
        return IngestLockedError(message, hint="try again when it ended")

    def lock(self, ref: str, cancel: CancelToken, on_wait: Callable[[], None] | None) -> tuple[str, FileLock]:
        """Take an ingest's lock, waiting if another writer holds it; returns the name of its folder, too."""
        name, lock = self._unlocked(ref)
        if not lock.try_acquire():
            if on_wait is not None:
                on_wait()
            lock.acquire(cancel, is_told=on_wait is not None)
        return name, lock

    def try_lock(self, ref: str) -> tuple[str, FileLock]:
        """As lock(), but without waiting.

        Raises:
            IngestLockedError: another writer holds it.
        """
        name, lock = self._unlocked(ref)
        if not lock.try_acquire():
            raise self._locked_error(ref)
        return name, lock

    def is_begun(self, name: str) -> bool:
        """Whether an ingest has a folder; ``name`` is the folder's."""
        return os.path.lexists(f"{self._text}/{name}")

    def _unlocked(self, ref: str) -> tuple[str, FileLock]:
        if not ref:
            raise InvalidInputError("an ingest needs a name")
        name = ingest_name(ref)
        return name, self._lock(name)

    def _lock(self, name: str) -> FileLock:
        return FileLock(f"{self._locks_text}/ingest-{name}")


class WithIngests:
    """The methods of a ContentStore that are those of its ingests' folder."""

    #: Where its ingests are.
    ingests: IngestFolder

    def status(self, ref: str) -> IngestStatus | None:
        """One unfinished ingest, or None."""
        return self.ingests.status(ref)

    def statuses(self) -> Iterator[IngestStatus]:
        """Every unfinished ingest of this machine."""
        return self.ingests.statuses()

    def abort(self, ref: str) -> bool:
        """Throw an ingest away unless a writer holds it; say whether it is gone."""
        return self.ingests.abort(ref)

    def stale_ingests(self, before: float, *, beyond: float = float("inf")) -> Iterator[IngestStatus]:
        """Ingests that weren't touched since ``before``, or only ``beyond``, in seconds since 1970."""
        return self.ingests.stale_ingests(before, beyond=beyond)

    def abort_stale(self, ingest: IngestStatus) -> bool:
        """Throw a stale ingest away unless a writer holds it; say whether it is gone."""
        return self.ingests.abort_stale(ingest)

    def clear_locks(self) -> None:
        """Remove what killed processes left of their locks."""
        self.ingests.clear_locks()
