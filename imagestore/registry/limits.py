"""How many transfers one host serves at the same time, over all pulls of a client.

A registry (or the address translator before it) counts connections, not images: ten pulls with three layers each must
not become thirty connections. Whoever wants to transfer a blob takes a place at its host and gives it back at the end.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.registry.transport.addresses import Origin
    from imagestore.util.cancel import CancelToken


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
        self._hosts: dict[Origin, Host] = {}

    def take(self, origin: Origin, *, cancel: CancelToken) -> Place:
        """Wait for a place.

        Raises:
            OperationCancelledError: cancelled while waiting, or past the deadline.
        """
        return self.at(origin).take(cancel=cancel)

    def at(self, origin: Origin) -> Host:
        """The places at one host."""
        return self._hosts.setdefault(origin, Host(self._most))


class Host:
    """A semaphore whose waiting ends when the caller's work is cancelled; who asked first goes first.

    Args:
        most: places in all.
    """

    def __init__(self, most: int) -> None:
        # Re-entrant, as conditions are: a signal handler that cancels may run while this thread holds it.
        self._changed = threading.Condition()
        self._free = most
        self._waiting: deque[object] = deque()
        self._served = self._ended = 0

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def take(self, *, cancel: CancelToken) -> Place:
        """See HostPlaces."""
        return Place(self, self.wait_for_place(cancel=cancel))

    def wait_for_place(self, *, cancel: CancelToken) -> int:
        """Wait for a place and take it; gives how many transfers had ended by then."""
        ticket = object()
        with cancel.on_cancel(self._wake), self._changed:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or not self._free:
                    cancel.check()
                    self._changed.wait(cancel.remaining_seconds())
                self._free -= 1
                return self._ended
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def note_served(self, place: Place) -> None:
        """See Place."""
        with self._changed:
            place.is_served = True
            self._served += 1

    def give_back(self, place: Place) -> None:
        """See Place."""
        with self._changed:
            if place.is_taken:
                place.is_taken = False
                self._free += 1
                self._served -= place.is_served
                self._ended += place.is_served
                self._changed.notify_all()

    def wait_for_end(self, ended: int, *, cancel: CancelToken) -> bool:
        """Wait until more transfers have ended; False when none is served whose end could be waited for."""
        with cancel.on_cancel(self._wake), self._changed:
            while self._ended == ended and self._served:
                cancel.check()
                self._changed.wait(cancel.remaining_seconds())
            return self._ended != ended

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Place:
    """One of a host's places, taken.

    Args:
        host: where it was taken.
        ended: transfers that the host had served by then.
    """

    __slots__ = ("_ended", "_host", "is_served", "is_taken")

    def __init__(self, host: Host, ended: int) -> None:
        self._host = host
        self._ended = ended
        # Changed by the host, which has the lock.
        self.is_served = False
        self.is_taken = True

    def note_served(self) -> None:
        """The host began to serve it."""
        self._host.note_served(self)

    def give_back(self) -> None:
        """It is free for others; may be called again."""
        self._host.give_back(self)

    @contextmanager
    def lent(self, *, cancel: CancelToken) -> Iterator[None]:
        """Others may have it during the block; then it is waited for again. A block that fails leaves it given back.

        Raises:
            OperationCancelledError: cancelled while waiting, or past the deadline.
        """
        self.give_back()
        yield
        self._ended = self._host.wait_for_place(cancel=cancel)
        self.is_served, self.is_taken = False, True

    def wait_for_another(self, *, cancel: CancelToken) -> bool:
        """Wait, once given back, until the host has ended another transfer.

        Returns:
            False when it serves none of ours.

        Raises:
            OperationCancelledError: cancelled while waiting, or past the deadline.
        """
        return self._host.wait_for_end(self._ended, cancel=cancel)
