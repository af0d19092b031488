"""Deleting blobs while others wait for the lock that is held: names go at once, the space of large files afterwards.

Most disks make each unlink wait, so a few threads delete many files together. To take a gigabyte's blocks and cached
pages back takes the kernel a tenth of a second, which happens when the last name and the last open file are gone. So
large files are held open until the caller has let go of the lock; if the process dies, the kernel closes them.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Deleted
from imagestore.errors import StoreError
from imagestore.oci.digest import VERIFIABLE
from imagestore.util.disk_errors import translated
from imagestore.util.executors import work_off
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Self

_THREADS: Final = 4
#: Fewer are gone before threads would have begun.
_FEWEST_FOR_THREADS: Final = 64
#: Smaller files go in less than a millisecond.
_LARGE_BYTES: Final = 8 * 1024 * 1024
#: However many descriptors the process may have, these few it can spare.
_MOST_OPEN: Final = 64
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LocalDeleter:
    """Deletes blobs, as a context manager entered before the lock is taken; their space is free when the block ends."""

    def __init__(self, blobs: Path) -> None:
        self._blobs = os.fspath(blobs)
        self._open: deque[int] = deque()
        self._folders: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "imagestore-delete")

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form, and return the bytes freed; None when it wasn't there.

        Raises:
            StoreError: it can't be deleted.
        """
        algorithm, _, name = text.partition(":")
        # Labels may name anything, and such a blob never was here.
        if len(name) != VERIFIABLE.get(algorithm) or not name.isalnum():
            return None
        try:
            folder = self._folder(algorithm)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            size = status.st_size
            if size >= _LARGE_BYTES and len(self._open) < _MOST_OPEN:
                with contextlib.suppress(OSError):  # without a descriptor left the others wait a little longer
                    self._open.append(os.open(name, _FLAGS, dir_fd=folder))
            reach("delete-unlink")
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError:
            with translated("delete", f"{self._blobs}/{algorithm}/{name}"):
                raise
        # With another name, as in containerd's content folder, the file stays.
        return size if status.st_nlink == 1 else 0

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        """Remove blobs until time is up, but at least one; a blob that can't be deleted doesn't stop the others.

        However this ends, no thread deletes any more: the caller may let go of the lock.

        Args:
            texts: the blobs' digests in text form.
            is_due: whether time is up; called by any thread after each blob.
        """
        deleted, waiting = Deleted(), deque(texts)

        def _delete(text: str) -> None:
            try:
                deleted.sizes[text] = self.delete(text)
            except StoreError as error:
                # Text: an error would keep its frames alive, and there may be one for every blob.
                deleted.failures[text] = str(error)
            if is_due():
                waiting.clear()

        if len(texts) < _FEWEST_FOR_THREADS:
            while waiting:
                _delete(waiting.popleft())
        else:
            work_off(self._threads, _THREADS, waiting, _delete)
        deleted.left = [text for text in texts if text not in deleted.sizes and text not in deleted.failures]
        return deleted

    def let_go(self) -> None:
        """Give the space of large files back; after the lock."""
        while self._open:
            os.close(self._open.popleft())

    def _folder(self, algorithm: str) -> int:
        """An open folder: resolving a long path for each of many thousand files would take long."""
        folder = self._folders.get(algorithm)
        if folder is None:
            opened = os.open(f"{self._blobs}/{algorithm}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            folder = self._folders.setdefault(algorithm, opened)
            if folder != opened:  # another thread was faster
                os.close(opened)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self.let_go()
        while self._folders:
            os.close(self._folders.popitem()[1])
