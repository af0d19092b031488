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
        # Of hosts that have fewer.
        self._fewer: dict[Origin, int] = {}

    def take(self, origin: Origin, *, cancel: CancelToken) -> Callable[[], None]:
        """Wait for a place.

        Returns:
            Gives the place back; may be called again.

        Raises:
            OperationCancelledError: cancelled while waiting, or past the deadline.
        """
        with self._changed:
            if not self._waiting and self._is_free(origin):
                self._taken[origin] = self._taken.get(origin, 0) + 1
                return self._giving_back(origin)
        ticket = object()
        with cancel.on_cancel(self._wake), self._changed:
            queue = self._waiting.setdefault(origin, deque())
            queue.append(ticket)
            try:
                while queue[0] is not ticket or not self._is_free(origin):
                    cancel.check()
                    self._changed.wait(cancel.remaining_seconds())
                self._taken[origin] = self._taken.get(origin, 0) + 1
            finally:
                queue.remove(ticket)
                if not queue:
                    del self._waiting[origin]
                self._changed.notify_all()
        return self._giving_back(origin)

    def narrow(self, origin: Origin) -> bool:
        """The host serves no more than it does now. Who was refused has given its place back, and may take one again.

        Returns:
            Whether it serves anybody of us, so that a place will be given back.
        """
        with self._changed:
            served = self._taken.get(origin, 0)
            if served:
                self._fewer[origin] = min(served, self._fewer.get(origin, served))
            return bool(served)

    def have_room(self) -> bool:
        """Whether a pull may take one place more than it began with: nobody waits, and others find some too."""
        with self._changed:
            is_scarce = self._waiting or self._fewer
            return not is_scarce and max(self._taken.values(), default=0) + 1 + _LEFT <= self._most

    def _is_free(self, origin: Origin) -> bool:
        return self._taken.get(origin, 0) < self._fewer.get(origin, self._most)

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
                    if origin not in self._waiting:
                        self._fewer.pop(origin, None)
                if self._waiting:
                    self._changed.notify_all()

        return give_back

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
