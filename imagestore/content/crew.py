"""Threads that delete side by side, for collections of many blobs."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Final

from imagestore.content.deletion import Deletion
from imagestore.content.waits import Waits
from imagestore.threads import start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Where they wait for the disk most of the time; else one, beside the thread that asks the database.
_THREADS: Final = 8
#: How often it is looked at whether time is up, while threads delete.
_LOOK_SECONDS: Final = 0.001


class SharedDeletion(Deletion):
    """Blobs on their way out that several threads work on.

    Args:
        texts: the blobs' digests in text form.
        waits: learns how long deletions wait.
    """

    def __init__(self, texts: Sequence[str], waits: Waits) -> None:
        super().__init__(texts)
        self._waits = waits
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
            with self._waits.measured():
                while not self._is_closed and (text := next(self._rest, None)) is not None:
                    self._delete(text, delete)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            failure = error
        self._is_closed = True
        self._ended.append(failure)
        self._news.put(None)

    def wait(self, delete: Callable[[str], int | None], is_due: Callable[[], bool]) -> list[str]:
        """Until it has ended, as Deletion.wait(); who waits deletes too."""
        while not self._is_closed and (text := next(self._rest, None)) is not None:
            self._delete(text, delete)
            if is_due():
                break
        while not self._is_closed and not ((self.sizes or self.failures) and is_due()):
            self._listen()
        self.settle()
        for failure in self._ended:
            if failure is not None:
                raise failure
        return self._left()

    def settle(self) -> None:
        """No further blob is begun; until no thread works on it any more."""
        self._is_closed = True
        while len(self._ended) < len(self._begun):
            self._listen()

    def _listen(self) -> None:
        """Until a thread has ended, but not for long."""
        with contextlib.suppress(queue.Empty):
            self._news.get(timeout=_LOOK_SECONDS)


class Crew:
    """The threads.

    Args:
        delete: removes a blob, given by its digest in text form.
    """

    def __init__(self, delete: Callable[[str], int | None]) -> None:
        self._delete = delete
        self._waits = Waits()
        self._threads: list[threading.Thread] = []
        self._inbox: queue.SimpleQueue[SharedDeletion | None] = queue.SimpleQueue()

    def assemble(self) -> None:
        """Start those that are missing."""
        while len(self._threads) < (_THREADS if self._waits.is_long else 1):
            thread = threading.Thread(target=self._work, name="deleting", daemon=True)
            # Listed first: an interrupt may arrive while it is waited for the thread to start.
            self._threads.append(thread)
            if not start(thread):  # with those there are, or none
                self._threads.remove(thread)
                break

    @property
    def is_empty(self) -> bool:
        """Whether not a single thread could be started."""
        return not self._threads

    def deletion(self, texts: Sequence[str]) -> SharedDeletion:
        """For begin()."""
        return SharedDeletion(texts, self._waits)

    def begin(self, deletion: SharedDeletion) -> None:
        """Have every thread work on it."""
        for _ in self._threads:
            self._inbox.put(deletion)

    def dismiss(self) -> None:
        """End the threads, and wait for them."""
        if self._threads:
            self._inbox.put(None)
        while self._threads:
            # Refused for a thread whose start was interrupted; should it still come up, it finds nothing to do.
            with contextlib.suppress(RuntimeError):
                self._threads.pop().join()

    def _work(self) -> None:
        while (deletion := self._inbox.get()) is not None:
            deletion.work(self._delete)
        self._inbox.put(None)  # for the next thread, however many there are
