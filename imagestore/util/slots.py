"""Slots for work that only so much of may run at once; threads get them in the order in which they asked."""

from __future__ import annotations

import math
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class SlotQueue:
    """Slots, first come, first served; thread-safe.

    Args:
        most: how many; None for any number.

    Raises:
        InvalidInputError: less than one.
    """

    def __init__(self, most: int | None) -> None:
        if most is not None and most < 1:
            raise InvalidInputError(f"expected at least one slot, got {most}")
        #: Held while a state is looked at or changed; notified of each change. Its lock is re-entrant: a signal handler
        #: may cancel, and so notify, while this thread holds it.
        self.changed = threading.Condition()
        self._free = math.inf if most is None else most
        self._waiting: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """The number of threads that wait for a slot."""
        return len(self._waiting)

    def take(self, cancel: CancelToken) -> None:
        """Wait for a slot.

        Raises:
            OperationCancelledError: cancelled, or past the deadline.
        """
        own = object()
        with self.changed:
            self._waiting.append(own)
            try:
                self.wait_while(lambda: self._waiting[0] is not own or not self._free, cancel)
                self._free -= 1
            finally:
                self._waiting.remove(own)
                self.changed.notify_all()

    def give_back(self) -> None:
        """Release a slot that was taken."""
        with self.changed:
            self._free += 1
            self.changed.notify_all()

    @contextmanager
    def slot(self, cancel: CancelToken | None = None) -> Iterator[None]:
        """Hold a slot while the block runs; see take()."""
        self.take(cancel or CancelToken())
        try:
            yield
        finally:
            self.give_back()

    def wait_while(self, condition: Callable[[], bool], cancel: CancelToken) -> None:
        """Wait until a change ends the condition; see take() for errors."""
        with cancel.on_cancel(self._wake), self.changed:
            while condition():
                cancel.check()
                self.changed.wait(cancel.remaining_seconds())

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()
