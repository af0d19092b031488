"""How many transfers one host serves at the same time, over all pulls of a client.

A registry (or the address translator before it) counts connections, not images: ten pulls with three layers each must
not become thirty connections. Whoever wants to transfer a blob takes a place at its host and gives it back at the end.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.cancel import CancelToken
    from imagestore.registry.exchange import Origin

#: As many as a pull begins with.
_LEFT: Final = 3


class HostPlaces:
    """Places at each host; thread-safe.

    Args:
        most: places at one host, at least 1.

    Raises:
        ValueError: there would be none.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"expected at least one connection for each host, got {most}")
        self._most = most
        # Re-entrant, as conditions are: a signal handler that cancels may run while this thread holds it.
        self._changed = threading.Condition()
        self._taken: dict[Origin, int] = {}
        self._waiting: dict[Origin, deque[object]] = {}

    def take(self, origin: Origin, *, cancel: CancelToken) -> Callable[[], None]:
        """Wait for a place.

        Returns:
            Gives the place back; may be called again.

        Raises:
            OperationCancelledError: cancelled while waiting, or past the deadline.
        """
        with self._changed:
            if not self._waiting and self._taken.get(origin, 0) < self._most:
                self._taken[origin] = self._taken.get(origin, 0) + 1
                return self._giving_back(origin)
        ticket = object()
        with cancel.on_cancel(self._wake), self._changed:
            queue = self._waiting.setdefault(origin, deque())
            queue.append(ticket)
            try:
                while queue[0] is not ticket or self._taken.get(origin, 0) >= self._most:
                    cancel.check()
                    self._changed.wait(cancel.remaining_seconds())
                self._taken[origin] = self._taken.get(origin, 0) + 1
            finally:
                queue.remove(ticket)
                if not queue:
                    del self._waiting[origin]
                self._changed.notify_all()
        return self._giving_back(origin)

    def have_room(self) -> bool:
        """Whether a pull may take one place more than it began with: nobody waits, and others find some too."""
        with self._changed:
            return not self._waiting and max(self._taken.values(), default=0) + 1 + _LEFT <= self._most

    def _giving_back(self, origin: Origin) -> Callable[[], None]:
        is_held = [True]

        def give_back() -> None:
            with self._changed:
                if not is_held:
                    return
                is_held.clear()
                left = self._taken[origin] - 1
                if left:
                    self._taken[origin] = left
                else:
                    del self._taken[origin]
                if self._waiting:
                    self._changed.notify_all()

        return give_back

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
