"""Deleting blobs while others wait: names go at once, many side by side, the space of large files afterwards.

Where a disk is told of each block that becomes free, every deletion waits for that; so many go in several threads. And
taking a gigabyte's blocks and cached pages back takes the kernel a tenth of a second, which happens when the last name
and the last open file are gone. So large files are held open until the caller has let go of whatever others wait for.
Who is killed meanwhile lets go of them too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.digest import VERIFIABLE
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self


#: Smaller files go in less than a millisecond.
_LARGE_BYTES: Final = 8 * 1024 * 1024
#: However many descriptors the process may have, these few it can spare.
_MOST_OPEN: Final = 64
#: They wait for the disk most of the time.
_THREADS: Final = 8
#: Fewer are gone before threads would have started.
_FEWEST_FOR_THREADS: Final = 64
#: How often it is looked at whether time is up, while threads delete.
_LOOK_SECONDS: Final = 0.001
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Deletion:
    """Blobs on their way out.

    Args:
        texts: the blobs' digests in text form.
        is_shared: other threads work on it; otherwise the one that waits for it does.

    Attributes:
        sizes: bytes by digest, in text form, of those that are gone; None for what wasn't there.
    """

    def __init__(self, texts: Sequence[str], *, is_shared: bool) -> None:
        self.sizes: dict[str, int | None] = {}
        self._texts = texts
        self._is_shared = is_shared
        # A list's iterator gives each item once, whichever threads ask.
        self._rest = iter(list(texts))
        # A thread first says that it began, then looks whether this is closed; who settles closes this first, then
        # looks who began. So it doesn't matter how many threads come, or how late.
        self._is_closed = False
        self._begun: list[None] = []
        self._ended: list[BaseException | None] = []
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(self, delete: Callable[[str], int | None]) -> None:
        """One thread's part: delete what no other took, until there is no more or time is up."""
        failure: BaseException | None = None
        self._begun.append(None)
        try:
            # Looks before it takes one: what is taken is deleted, also when another thread finds no more.
            while not self._is_closed and (text := next(self._rest, None)) is not None:
                self.sizes[text] = delete(text)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            failure = error
        self._is_closed = True
        self._ended.append(failure)
        self._news.put(None)

    def wait(self, delete: Callable[[str], int | None], is_due: Callable[[], bool]) -> list[str]:
        """Until it has ended; once time is up, no further blob is begun, but at least one was.

        Returns:
            What there was no time for.

        Raises:
            StoreError: a blob can't be deleted.
        """
        if not self._is_shared:
            for text in self._rest:
                self.sizes[text] = delete(text)
                if is_due():
                    break
        else:
            while not self._is_closed and not (self.sizes and is_due()):
                self._listen()
        self.settle()
        for failure in self._ended:
            if failure is not None:
                raise failure
        return [text for text in self._texts if text not in self.sizes]

    def settle(self) -> None:
        """No further blob is begun; until no thread works on it any more."""
        self._is_closed = True
        while len(self._ended) < len(self._begun):
            self._listen()

    def _listen(self) -> None:
        """Until a thread has ended, but not for long."""
        with contextlib.suppress(queue.Empty):
            self._news.get(timeout=_LOOK_SECONDS)


class Deleting:
    """Deletes blobs; their space is free when the block ends.

    Args:
        blobs: the folder of all blobs.
    """

    def __init__(self, blobs: Path) -> None:
        self._blobs = os.fspath(blobs)
        self._open: list[int] = []
        self._folders: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self._inbox: queue.SimpleQueue[Deletion | None] = queue.SimpleQueue()
        self._under_way: list[Deletion] = []

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form, and return its size in bytes; None when it wasn't there.

        Raises:
            StoreError: it can't be deleted.
        """
        algorithm, _, name = text.partition(":")
        # Labels may name anything, and such a blob never was here.
        if len(name) != VERIFIABLE.get(algorithm) or not name.isalnum():
            return None
        with translated("delete", f"{self._blobs}/{algorithm}/{name}"):
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
        """Whatever was begun in the block has ended with it, however the block ends."""
        try:
            yield
        finally:
            while self._under_way:
                # Not even an impatient user may let go of the lock while a thread deletes under it.
                with contextlib.suppress(KeyboardInterrupt):
                    self._under_way[-1].settle()
                    self._under_way.pop()

    def begin(self, texts: Sequence[str]) -> Deletion:
        """Remove blobs: at once, in threads beside this one, where many are expected. To be waited for by end().

        Only inside of a settled() block.
        """
        if not texts or not self._threads:
            return Deletion(texts, is_shared=False)
        deletion = Deletion(texts, is_shared=True)
        self._under_way.append(deletion)
        for _ in self._threads:
            self._inbox.put(deletion)
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
        with contextlib.suppress(RuntimeError):  # no more threads for this process: with those there are, or none
            while len(self._threads) < _THREADS:
                thread = threading.Thread(target=self._work, name="deleting", daemon=True)
                # Listed first: an interrupt may arrive while it is waited for the thread to start.
                self._threads.append(thread)
                try:
                    thread.start()
                except RuntimeError:
                    self._threads.remove(thread)
                    raise

    def _work(self) -> None:
        while (deletion := self._inbox.get()) is not None:
            deletion.work(self.delete)
        self._inbox.put(None)  # for the next thread, however many there are

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if self._threads:
            self._inbox.put(None)
        while self._threads:
            # Refused for a thread whose start was interrupted; should it still come up, it finds nothing to do.
            with contextlib.suppress(RuntimeError):
                self._threads.pop().join()
        self.let_go()
        while self._folders:
            os.close(self._folders.popitem()[1])
