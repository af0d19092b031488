"""Serial or parallel pulls: whose turn it is.

Rule (kubelet): serial is one pull at a time in the order of arrival, parallel is at most ``maxParallelImagePulls`` at a
time, or any number. Waiting counts into the "including waiting" duration of the event, not into the other.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from imagestore.util.cancel import CancelToken


class Turns:
    """Lets a bounded number of pulls run at once, first come, first served.

    Args:
        limit: how many; None, zero and less mean any number.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit if limit is not None and limit >= 1 else None
        self._running = 0
        self._waiting: collections.deque[threading.Event] = collections.deque()
        self._lock = threading.Lock()

    @classmethod
    def serial(cls) -> Self:
        """One pull at a time."""
        return cls(1)

    @property
    def waiting(self) -> int:
        """How many wait for their turn now."""
        with self._lock:
            return len(self._waiting)

    @contextlib.contextmanager
    def turn(self, cancel: CancelToken | None = None) -> Iterator[None]:
        """Wait for a turn and hold it while the block runs.

        Args:
            cancel: ends the wait.

        Raises:
            OperationCancelledError, DeadlineExceededError: the token ended the wait.
        """
        if self.limit is None:
            yield
            return
        mine = threading.Event()
        with self._lock:
            if self._running < self.limit and not self._waiting:
                self._running += 1
                mine.set()
            else:
                self._waiting.append(mine)
        self._wait(mine, cancel)
        try:
            yield
        finally:
            self._pass_on()

    def _wait(self, mine: threading.Event, cancel: CancelToken | None) -> None:
        try:
            if cancel is None:
                mine.wait()
                return
            with cancel.on_cancel(mine.set):
                # A wait may end a moment before the deadline; going on then would be a turn that nobody gave.
                while not mine.wait(cancel.remaining_seconds()):
                    cancel.check()
                cancel.check()
        except BaseException:
            with self._lock:
                is_queued = mine in self._waiting
                if is_queued:
                    self._waiting.remove(mine)
            if not is_queued:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._running -= 1
