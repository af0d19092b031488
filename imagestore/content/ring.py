"""Buffers that go round: filled by one thread, then worked on by some steps, each of which sees them in order.

A step may have a thread of its own, so that the next buffer is filled while the last is hashed and the one before
written. A buffer comes round again when every step is done with it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.threads import start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    #: Called with each piece.
    Step = Callable[["Piece"], None]


#: News may come before it is listened for.
_LOOK_SECONDS: Final = 0.05


@dataclass(slots=True)
class Piece:
    """A part of a blob in a buffer.

    Attributes:
        buffer: all of it.
        begun: where the new bytes begin; those before them are in the file already.
        filled: where they end.
        offset: place of the buffer's first byte in the blob.
    """

    buffer: memoryview
    begun: int
    filled: int
    offset: int


class Ring:
    """Some buffers and what is done to each.

    Leaving it waits for every step, whoever is impatient: afterwards nothing is read or written any more. It raises
    what failed in a step, unless the work was interrupted.

    Args:
        buffers: as many as may be under way.
        beside: steps that have a thread of their own, as far as there are threads for this process.
        here: steps in the thread that gives, in this order.
    """

    def __init__(self, buffers: list[memoryview], *, beside: Sequence[Step] = (), here: Sequence[Step] = ()) -> None:
        self._buffers = buffers
        self._turn = 0
        self._threads: list[_Thread] = []
        try:
            for step in beside:
                thread = _Thread(step, len(buffers))
                # Listed first: an interrupt may arrive while it is waited for the thread to start.
                self._threads.append(thread)
                if not thread.start():  # the other steps are taken here
                    self._threads.pop()
                    break
        except BaseException:
            self._settle()
            raise
        self._here = (*beside[len(self._threads) :], *here)

    @property
    def is_over(self) -> bool:
        """Whether no step is at work any more, nor will be."""
        return all(each.is_over for each in self._threads)

    def take(self) -> memoryview:
        """The next buffer, when every step is done with it.

        Raises:
            BaseException: what a step raised.
        """
        for each in self._threads:
            each.wait_for_one()
        buffer = self._buffers[self._turn % len(self._buffers)]
        self._turn += 1
        return buffer

    def give(self, piece: Piece) -> None:
        """Have the buffer that was taken last worked on."""
        for each in self._threads:
            each.give(piece)
        for step in self._here:
            step(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        interruption = self._settle()
        for each in self._threads:
            each.join()
        if value is not None and not isinstance(value, Exception):
            return
        if interruption is not None:
            raise interruption
        for each in self._threads:
            if each.failure is not None and each.failure is not value:
                raise each.failure

    def _settle(self) -> BaseException | None:
        """Until every thread has ended; returns what interrupted the waiting."""
        interruption: BaseException | None = None
        waiting = list(self._threads)
        while waiting:
            try:
                for each in waiting:
                    each.end()
                while waiting:
                    waiting[-1].wait()
                    waiting.pop()
            except BaseException as error:  # noqa: BLE001 - raised when the buffers are nobody's any more
                interruption = interruption or error
        return interruption


class _Thread:
    """One step, in a thread of its own.

    Args:
        step: called with each piece.
        ahead: pieces that may wait for it.
    """

    def __init__(self, step: Step, ahead: int) -> None:
        self.failure: BaseException | None = None
        self._step = step
        self._todo: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(ahead):
            self._done.put(None)
        self._has_ended = False
        # Says so. Not join(), whose interruption makes a thread count as ended, nor an Event, whose lock may be kept by
        # an interruption.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="imagestore-step", daemon=True)

    def start(self) -> bool:
        """Begin; False where there are no more threads for this process."""
        return start(self._thread)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or never began."""
        return self._has_ended or self._thread.ident is None

    def give(self, piece: Piece) -> None:
        self._todo.put(piece)

    def wait_for_one(self) -> None:
        """Wait until the oldest piece is done."""
        self._done.get()
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        """What was given is still done."""
        self._todo.put(None)

    def wait(self) -> None:
        """Until it has ended; can be interrupted, and called again."""
        while not self.is_over:
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=_LOOK_SECONDS)

    def join(self) -> None:
        """After wait(): the thread does nothing any more, and is gone."""
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            while (piece := self._todo.get()) is not None:
                if self.failure is None:
                    try:
                        self._step(piece)
                    except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
                        self.failure = error
                self._done.put(None)
        finally:
            self._has_ended = True
            self._news.put(None)
