"""Deleting all files of folders that nobody uses any more: no lock is held, so only speed counts."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.content.waits import Waits
from imagestore.failpoint import reach
from imagestore.threads import start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: As many are deleted before it is looked whether threads are worth it.
_MEASURED: Final = 256
#: Beside the thread that waits, where a disk makes them wait.
_THREADS: Final = 7


class Emptied:
    """Blobs that are gone.

    Attributes:
        sizes: bytes by digest, in text form, of those that are gone.
        failures: why others can't be deleted, by digest.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.failures: dict[str, str] = {}
        self._path = ""
        self._is_stopped = False

    def empty(self, algorithm: str, path: str, names: Sequence[str]) -> None:
        """Delete files of one folder.

        Args:
            algorithm: of their digests.
            path: the folder.
            names: the files.

        Raises:
            StoreError: the folder can't be opened.
        """
        with translated("delete from", path):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._path = path
        try:
            rest, waits = iter(names), Waits()
            while not waits.is_long and (some := list(itertools.islice(rest, _MEASURED))):
                with waits.measured():
                    self._delete(algorithm, folder, iter(some))
            if waits.is_long:
                self._side_by_side(algorithm, folder, rest)
        finally:
            os.close(folder)

    def _side_by_side(self, algorithm: str, folder: int, names: Iterator[str]) -> None:
        # A list's iterator gives each item once, whichever threads ask.
        threads: list[threading.Thread] = []
        try:
            for _ in range(_THREADS):
                # Listed first: an interrupt may arrive while it is waited for the thread to start.
                threads.append(self._thread(algorithm, folder, names))
                if not start(threads[-1]):  # with those there are, or none
                    threads.pop()
                    break
            self._delete(algorithm, folder, names)
            for thread in threads:
                thread.join()
        except BaseException:
            # Not even an impatient user may close the folder while a thread deletes in it: its number may be reused.
            self._is_stopped = True
            while threads:
                with contextlib.suppress(KeyboardInterrupt):
                    if threads[-1].is_alive():
                        threads[-1].join()
                    threads.pop()
            raise

    def _thread(self, algorithm: str, folder: int, names: Iterator[str]) -> threading.Thread:
        return threading.Thread(target=self._delete, args=(algorithm, folder, names), name="emptying", daemon=True)

    def _delete(self, algorithm: str, folder: int, names: Iterator[str]) -> None:
        """One thread's part."""
        sizes: dict[str, int] = {}
        try:
            while not self._is_stopped and (name := next(names, None)) is not None:
                try:
                    size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
                    reach("away-unlink")
                    os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self.failures[f"{algorithm}:{name}"] = f"{self._path}/{name}: can't delete: {error.strerror}"
                else:
                    sizes[f"{algorithm}:{name}"] = size
        finally:
            self.sizes.update(sizes)
