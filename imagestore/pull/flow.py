"""Bringing several blobs at once: some threads receive, others verify, write and name what came.

A connection that waits while its last blob is hashed and synced is lost time, so whoever received a blob asks for the
next one at once. As many blobs may wait to be settled as may be received at a time; that bounds the memory they hold.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from imagestore.cancel import CancelToken

_SETTLERS: Final = 2

T = TypeVar("T")
A = TypeVar("A")


class Flow(Generic[T, A]):
    """Brings some things through two steps; used once.

    Args:
        things: in the order in which to begin.
        receive: the first step; None where there is nothing to settle.
        settle: the second step; says how many bytes came. It is taken for everything that was received.
        parallel: how many are received at once.
        cancel: ended by the first failure.
    """

    def __init__(
        self,
        things: Iterable[T],
        *,
        receive: Callable[[T], A | None],
        settle: Callable[[A], int],
        parallel: int,
        cancel: CancelToken,
    ) -> None:
        self._todo = deque(things)
        self._receive = receive
        self._settle = settle
        self._parallel = min(parallel, len(self._todo))
        self._cancel = cancel
        self._arrived: SimpleQueue[A | None] = SimpleQueue()
        self._room = threading.Semaphore(max(1, self._parallel))
        self._failures: deque[BaseException] = deque()
        self._counts: deque[int] = deque()

    def run(self) -> int:
        """Bring everything and say how many bytes came.

        Raises:
            BaseException: the first failure of either step; the other steps under way have ended.
        """
        receivers = [self._thread(self._receive_all, "fetch") for _ in range(self._parallel)]
        settlers = [self._thread(self._settle_all, "settle") for _ in range(min(_SETTLERS, self._parallel))]
        try:
            _join(receivers)
        except BaseException:
            self._todo.clear()
            self._cancel.cancel("the pull was interrupted")
            _join(receivers)
            raise
        finally:
            for _ in settlers:
                self._arrived.put(None)
            _join(settlers)
        if self._failures:
            raise self._failures[0]
        return sum(self._counts)

    def _thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"imagestore-{name}", daemon=True)
        thread.start()
        return thread

    def _receive_all(self) -> None:
        while (thing := self._next()) is not None:
            try:
                arrival = self._receive(thing)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that runs the flow
                self._fail(error)
                return
            if arrival is not None:
                self._room.acquire()
                self._arrived.put(arrival)

    def _next(self) -> T | None:
        try:
            return self._todo.popleft()
        except IndexError:
            return None

    def _settle_all(self) -> None:
        while (arrival := self._arrived.get()) is not None:
            try:
                self._counts.append(self._settle(arrival))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that runs the flow
                self._fail(error)
            finally:
                self._room.release()

    def _fail(self, error: BaseException) -> None:
        self._failures.append(error)
        self._todo.clear()
        self._cancel.cancel("another part of the pull failed")


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
