"""Deleting blobs while others wait: names go at once, many side by side, the space of large files afterwards.

Where a disk is told of each block that becomes free, every deletion waits for that; so many go in several threads. And
taking a gigabyte's blocks and cached pages back takes the kernel a tenth of a second, which happens when the last name
and the last open file are gone. So large files are held open until the caller has let go of whatever others wait for.
Who is killed meanwhile lets go of them too.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from imagestore.content.deletion import Deletion
from imagestore.content.disk import translated
from imagestore.digest import VERIFIABLE
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from imagestore.content.crew import Crew, SharedDeletion

#: Smaller files go in less than a millisecond.
_LARGE_BYTES: Final = 8 * 1024 * 1024
#: However many descriptors the process may have, these few it can spare.
_MOST_OPEN: Final = 64
#: Fewer are gone before threads would have started.
_FEWEST_FOR_THREADS: Final = 64
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Deleting:
    """Deletes blobs; their space is free when the block ends.

    Args:
        blobs: the folder of all blobs.
    """

    def __init__(self, blobs: Path) -> None:
        self._blobs = os.fspath(blobs)
        self._open: list[int] = []
        self._folders: dict[str, int] = {}
        self._crew: Crew | None = None
        self._under_way: list[SharedDeletion] = []

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form, and return its size in bytes; None when it wasn't there.

        Raises:
            StoreError: it can't be deleted.
        """
        algorithm, _, name = text.partition(":")
        # Labels may name anything, and such a blob never was here.
        if len(name) != VERIFIABLE.get(algorithm) or not name.isalnum():
            return None
        try:
            folder = self._folder(algorithm)
            size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
            if size >= _LARGE_BYTES and len(self._open) < _MOST_OPEN:
                with contextlib.suppress(OSError):  # whoever has no descriptor left waits a little longer
                    self._open.append(os.open(name, _FLAGS, dir_fd=folder))
            reach("delete-unlink")
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError:
            with translated("delete", f"{self._blobs}/{algorithm}/{name}"):
                raise
        return size

    def _folder(self, algorithm: str) -> int:
        """An open folder: a path of many parts for each of many thousand files takes its time."""
        folder = self._folders.get(algorithm)
        if folder is None:
            opened = os.open(f"{self._blobs}/{algorithm}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            folder = self._folders.setdefault(algorithm, opened)
            if folder != opened:  # another thread was faster
                os.close(opened)
        return folder

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Whatever was begun in the block has ended with it, however the block ends.

        Only while the lock is held is the folder that was opened certainly the one that everybody sees (``put_away``).
        """
        try:
            yield
        finally:
            while self._under_way:
                # Not even an impatient user may let go of the lock while a thread deletes under it.
                with contextlib.suppress(KeyboardInterrupt):
                    self._under_way[-1].settle()
                    self._under_way.pop()
            self._close_folders()

    def begin(self, texts: Sequence[str]) -> Deletion:
        """Remove blobs: at once, in threads beside this one, where many are expected. To be waited for by end().

        Only inside of a settled() block.
        """
        if not texts or self._crew is None or self._crew.is_empty:
            return Deletion(texts)
        deletion = self._crew.deletion(texts)
        self._under_way.append(deletion)
        self._crew.begin(deletion)
        return deletion

    def end(self, deletion: Deletion, is_due: Callable[[], bool]) -> list[str]:
        """Wait for what was begun, as Deletion.wait()."""
        left = deletion.wait(self.delete, is_due)
        if deletion in self._under_way:
            self._under_way.remove(deletion)
        return left

    def let_go(self) -> None:
        """Give the space of large files back."""
        while self._open:
            os.close(self._open.pop())

    def expect(self, count: int) -> None:
        """Be ready for so many blobs; before the lock is taken, since threads take a while to start."""
        if count < _FEWEST_FOR_THREADS:
            return
        if self._crew is None:
            try:
                from imagestore.content.crew import Crew
            except (ImportError, OSError):  # no descriptor is left to read it with: it goes without threads
                return
            self._crew = Crew(self.delete)
        self._crew.assemble()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if self._crew is not None:
            self._crew.dismiss()
        self.let_go()
        self._close_folders()

    def _close_folders(self) -> None:
        while self._folders:
            os.close(self._folders.popitem()[1])
