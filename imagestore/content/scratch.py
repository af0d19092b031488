"""A folder of ours below the ingests, for what gets or loses its place in one step: locked while it is used.

Who dies leaves a folder of ingests without a name, which a collection takes when it is old enough.
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
from typing import TYPE_CHECKING

from imagestore.content.disk import translated
from imagestore.content.ingest_folder import ingest_name, remove_ingest
from imagestore.content.locks import FileLock
from imagestore.errors import StoreCorruptError
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from imagestore.cancel import CancelToken


class Scratch:
    """Such a folder, made when first asked for and removed at the end of the block; thread-safe.

    Args:
        ingests: the folder of all ingests.
        locks: the folder of lock files.
        cancel: ends the wait for somebody who looks through the lock files.
    """

    def __init__(self, ingests: Path, locks: Path, cancel: CancelToken) -> None:
        name = ingest_name(f"batch-{os.urandom(16).hex()}")
        self._folder = ingests / name
        self._file_lock = FileLock(locks / f"ingest-{name}")
        self._cancel = cancel
        self._lock = threading.Lock()
        self._made = ""
        self._numbers = itertools.count()

    def place(self, name: str = "") -> str:
        """A path in it that nobody else uses.

        Args:
            name: of the file or folder; a number where none is given.

        Raises:
            StoreError: the folder can't be made.
            OperationCancelledError: cancelled.
        """
        if not self._made:
            with self._lock:
                if not self._made:
                    self._make()
        return f"{self._made}/{name or next(self._numbers)}"

    def leave(self) -> None:
        """Let a collection remove it."""
        self._made = ""

    def _make(self) -> None:
        self._file_lock.acquire(self._cancel)
        try:
            with translated("make a folder", self._folder):
                reach("batch-make")
                self._folder.mkdir(0o755)
        except BaseException:
            # Whoever tries again must not wait for us.
            self._file_lock.release()
            raise
        self._made = os.fspath(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        try:
            if self._made:
                remove_ingest(self._folder)
        finally:
            self._file_lock.release()


def is_taken(target: str) -> bool:
    """Whether a blob has this name already; one look, since a collection may take it between two.

    Raises:
        StoreCorruptError: something that is no file has it.
    """
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise StoreCorruptError(f"{target}: something that is no file stands in a blob's place")
    return True
