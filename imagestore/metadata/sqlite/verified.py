"""The note that a database's indexes were found whole, so that not every removal has to check all of them.

``verified`` next to the database names the file that was checked. It counts as long as only stores write that file:
each open store holds a shared flock on the note, and the last one that closes the database notes its size and time of
change. A database that no process has open, and that isn't as it was closed, is checked again: after a crash, or when
something else wrote to it; so is another file in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from imagestore.util.files import open_regular

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

NOTE: Final = "verified"
_MOST_BYTES: Final = 4096
#: How often, and how long in between, to try for a lock that others hold only while they open or close the database.
_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.001


class VerifiedNote:
    """Whether the indexes of a database are known to be whole; where the note can't be used, they never are.

    Args:
        database: its file.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Look at the database before anything is written to it; repeated calls do nothing."""
        if self._file is not None:
            return
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            descriptor = open_regular(self._database.with_name(NOTE), os.O_RDWR | os.O_CREAT)
            file = stack.enter_context(open(descriptor, "r+b", buffering=0))
            if _lock(file, fcntl.LOCK_EX, tries=1) and not self._is_as_closed(file):
                file.truncate(0)
            if _lock(file, fcntl.LOCK_SH, tries=_TRIES):
                stack.pop_all()
                self._file = file
                weakref.finalize(self, file.close)

    def is_so(self) -> bool:
        """Whether the database is known to be whole."""
        with contextlib.suppress(OSError):
            return self._file is not None and _read(self._file).get("file") == self._identity()
        return False

    def note(self) -> None:
        """The database was found whole, or was just made."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                _write(self._file, {"file": self._identity()})

    def close(self) -> None:
        """Note how the database was left, after SQLite closed it; only the last store that has it open can say."""
        file, self._file = self._file, None
        if file is None:
            return
        with file, contextlib.suppress(OSError):
            if not _lock(file, fcntl.LOCK_EX, tries=1):
                return
            said = _read(file)
            if said.get("file") == self._identity() and said.get("closed") != self._state():
                # Clocks of file systems are coarse: a change that comes at once must not leave the same time.
                now = time.time_ns()
                os.utime(self._database, ns=(now, now - now % 10**9 + secrets.randbelow(10**9)))
                _write(file, {**said, "closed": self._state()})

    def _is_as_closed(self, file: BinaryIO) -> bool:
        said = _read(file)
        try:
            state = self._state()
            return state is not None and (said.get("file"), said.get("closed")) == (self._identity(), state)
        except FileNotFoundError:
            return False

    def _identity(self) -> list[int]:
        status = os.stat(self._database)
        return [status.st_dev, status.st_ino]

    def _state(self) -> list[int] | None:
        """Differs after every change; None while the log next to the database may hold some."""
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"{self._database}-wal").st_size:
                return None
        status = os.stat(self._database)
        return [status.st_size, status.st_mtime_ns]


def _lock(file: BinaryIO, kind: int, *, tries: int) -> bool:
    for _ in range(tries):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        else:
            return True
    return False


def _read(file: BinaryIO) -> dict[str, Any]:
    try:
        said = json.loads(os.pread(file.fileno(), _MOST_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _write(file: BinaryIO, said: dict[str, Any]) -> None:
    data = json.dumps(said).encode()
    file.truncate(0)
    os.pwrite(file.fileno(), data, 0)
