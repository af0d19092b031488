"""Bringing several blobs at once: some threads receive, others verify, write and name what came.

A connection that waits while its last blob is hashed and synced is lost time, so whoever received a blob asks for the
next one at once. Few may wait to be settled at a time, which bounds the memory they hold.

A few at a time keep this process busy when the registry is near. One that is far away or slow leaves it idle, and gives
more to who asks for more at a time: then there are up to five.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from imagestore.threads import start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from imagestore.cancel import CancelToken

#: However many more are received at a time. Each holds buffers.
_MOST: Final = 5
#: How often it is looked whether there are enough, and how many looks must agree that there aren't.
_LOOK_SECONDS: Final = 0.04
_LOOKS: Final = 2
#: Seconds of a processor in each second, with all this process does; with less, it waits for others most of the time.
_BUSY: Final = 0.5
_SETTLERS: Final = 2
# Being settled, or waiting for it.
_MOST_UNSETTLED: Final = 3

T = TypeVar("T")
A = TypeVar("A")


class Flow(Generic[T, A]):
    """Brings things in two steps while the block runs; at its end all of them are settled.

    Leaving the block raises the first failure of any step, once the other steps under way have ended.

    Args:
        receive: the first step; None where there is nothing to settle.
        settle: the second step; it is taken for everything that was received.
        parallel: how many are received at once.
        may_grow: asked before more than that are received at once, since this process waits; never by default.
        cancel: ended by the first failure.
    """

    def __init__(
        self,
        *,
        receive: Callable[[T], A | None],
        settle: Callable[[A], object],
        parallel: int,
        may_grow: Callable[[], bool] | None = None,
        cancel: CancelToken,
    ) -> None:
        self._todo: deque[T] = deque()
        self._receive = receive
        self._settle = settle
        self._parallel = parallel
        self._may_grow = may_grow
        #: Ended by the first failure.
        self.cancel = cancel
        self._arrived: queue.SimpleQueue[A | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_MOST_UNSETTLED)
        self._receivers: list[_Hand] = []
        # There is nothing more to receive.
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._settlers: list[_Hand] = []
        self._failures: deque[BaseException] = deque()

    def settle(self, arrival: A) -> None:
        """Let something be settled that was received otherwise."""
        # First of all: whatever happens now, the end of the block finds it.
        self._arrived.put(arrival)
        if not self._settlers and not _employ(self._settlers, self._settle_all, "settle"):
            self._settle_rest()
        self._room.acquire()

    def bring(self, things: Sequence[T]) -> None:
        """Receive and settle things, begun in this order; settling may go on afterwards."""
        self._todo.extend(things)
        if len(things) == 1:
            self._receive_all()
            return
        count = min(self._parallel, len(things))
        while len(self._settlers) < min(count, _SETTLERS):
            if not _employ(self._settlers, self._settle_all, "settle"):
                break
        # Those there are do it all; where no thread is left for us, this one does.
        if not sum(_employ(self._receivers, self._receive_all, "fetch") for _ in range(count)):
            self._receive_all()
        if self._may_grow is not None:
            self._employ_more(self._may_grow)
        _join(self._receivers)
        self._receivers.clear()

    def _employ_more(self, may_grow: Callable[[], bool]) -> None:
        """Have more received at a time as long as this process could do more."""
        idle = 0
        while self._todo and len(self._receivers) < _MOST:
            spent, started = time.process_time(), time.monotonic()
            try:
                self._ended.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                is_idle = time.process_time() - spent < (time.monotonic() - started) * _BUSY
                idle = idle + 1 if is_idle and may_grow() else 0
            if idle == _LOOKS:
                idle = 0
                if not _employ(self._receivers, self._receive_all, "fetch"):
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if error is not None:
            self._fail(error)
        while not self._has_ended():
            pass
        told = self._told(error)
        # A failure knows the frames it passed, and they know what was received: it must not be known from there too.
        self._failures.clear()
        try:
            if told is not None:
                raise told
        finally:
            del told

    def _has_ended(self) -> bool:
        """Wait until every step has; False when that was interrupted."""
        try:
            _join(self._receivers)
            self._dismiss()
            _join(self._settlers)
            self._settle_rest()
            # Once more, for one that begins only now since its start was interrupted: the rest had what was for it.
            self._dismiss()
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block, which nobody is too impatient for
            self._fail(error)
            return False
        return True

    def _dismiss(self) -> None:
        """Let settlers end once everything is settled."""
        for _ in self._settlers:
            self._arrived.put(None)

    def _told(self, error: BaseException | None) -> BaseException | None:
        """What the end of the block raises in place of its error; an interrupt goes before any failure."""
        if not self._failures or not isinstance(error, Exception | None):
            return None
        interrupts = (each for each in self._failures if not isinstance(each, Exception))
        told = next(interrupts, self._failures[0])
        return None if told is error else told

    def _receive_all(self) -> None:
        while (thing := self._next()) is not None:
            try:
                arrival = self._receive(thing)
            except BaseException as error:  # noqa: BLE001 - raised at the end of the block
                self._fail(error)
                break
            if arrival is not None:
                self.settle(arrival)
        self._ended.put(None)

    def _next(self) -> T | None:
        try:
            return self._todo.popleft()
        except IndexError:
            return None

    def _settle_all(self) -> None:
        while (arrival := self._arrived.get()) is not None:
            self._settle_one(arrival)

    def _settle_rest(self) -> None:
        """Do in this thread what waits for a settler."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (arrival := self._arrived.get_nowait()) is not None:
                    self._settle_one(arrival)

    def _settle_one(self, arrival: A) -> None:
        try:
            self._settle(arrival)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._fail(error)
        finally:
            self._room.release()

    def _fail(self, error: BaseException) -> None:
        self._failures.append(error)
        self._todo.clear()
        self.cancel.cancel("another part of the pull failed")


class _Hand(threading.Thread):
    """A thread that works with others, and says when it has ended."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=f"imagestore-{name}", daemon=True)
        self._is_over = False
        # Not join() alone, whose interruption makes a thread count as ended.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._is_over = True
            self._news.put(None)

    def wait(self) -> None:
        """Until it has ended; can be interrupted, and called again."""
        # One whose start was interrupted has no identity.
        while self.ident is not None and not self._is_over:
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=_LOOK_SECONDS)
        if self.ident is not None:
            self.join()


def _employ(team: list[_Hand], work: Callable[[], None], name: str) -> bool:
    """Start a thread that works with others; False where the system gives no more."""
    hand = _Hand(work, name)
    # Known before it works: an interrupt meanwhile must not leave a thread that nobody ends.
    team.append(hand)
    if not start(hand):
        team.remove(hand)
        return False
    return True


def _join(hands: list[_Hand]) -> None:
    for hand in hands:
        hand.wait()
