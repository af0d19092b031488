"""How many transfers one host serves at the same time, over all pulls of a client.

A registry (or the address translator before it) counts connections, not images: ten pulls with three layers each must
not become thirty connections. Whoever wants to transfer a blob takes a place at its host and gives it back at the end.
A host that turns out to serve fewer has fewer places, until it is idle; meanwhile one more is tried now and then, since
nobody says whether it was a rule or only a bad moment.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import PreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.cancel import CancelToken
    from imagestore.registry.exchange import Origin

#: As many as a pull begins with.
_LEFT: Final = 3
# After this time a host is asked for one place more than it granted; each time that it refuses that, after twice the
# time before: a rule that doesn't change costs a refusal now and then.
_FIRST_PATIENCE_SECONDS: Final = 60.0
_LONGEST_PATIENCE_SECONDS: Final = 16 * 60.0
# Longer than a connection may be silent: who doesn't even try to read for so long won't.
_UNREAD_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Fewer:
    """What a host granted.

    Attributes:
        places: at a time.
        until: when one more is tried, by the clock.
        patience_seconds: from one such try to the next.
        is_tried: whether more were tried since the last refusal.
    """

    places: int
    until: float
    patience_seconds: float
    is_tried: bool = False


class Place:
    """One of a host's places, taken.

    Args:
        places: where it was taken.
        origin: the host.
        ended: transfers that the host had served by then.
    """

    __slots__ = ("_origin", "_places", "ended", "is_served", "reads", "thread")

    def __init__(self, places: HostPlaces, origin: Origin, ended: int) -> None:
        self._places = places
        self._origin = origin
        self.ended = ended
        #: Whether the host began to serve it; for who takes it to say.
        self.is_served = False
        #: How often it was read; for who takes it to count.
        self.reads = 0
        #: Who took it.
        self.thread = threading.get_ident()

    def give_back(self) -> None:
        """It is free for others; may be called again."""
        self._places.give_back(self._origin, self)

    def refuse(self) -> bool:
        """The host serves no more than it does now: give the place back, and let nobody have it.

        Returns:
            Whether it serves anybody of us, or has while this place was taken: then another time it may have room.
        """
        return self._places.refuse(self._origin, self)


class HostPlaces:
    """Places at each host; thread-safe.

    Args:
        most: places at one host, at least 1.
        clock: seconds from an arbitrary start.

    Raises:
        ValueError: there would be none.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if most < 1:
            raise ValueError(f"expected at least one connection for each host, got {most}")
        self._most = most
        self._clock = clock
        # Re-entrant, as conditions are: a signal handler that cancels may run while this thread holds it.
        self._changed = threading.Condition()
        self._taken: dict[Origin, list[Place]] = {}
        self._waiting: dict[Origin, deque[object]] = {}
        # Of hosts that have fewer.
        self._fewer: dict[Origin, _Fewer] = {}
        # How many transfers each host served to their end since it was idle.
        self._ended: dict[Origin, int] = {}

    def take(self, origin: Origin, *, cancel: CancelToken) -> Place:
        """Wait for a place.

        Raises:
            OperationCancelledError: cancelled while waiting, or past the deadline.
            PreconditionError: this thread took all of them, and nobody reads what it got.
        """
        with self._changed:
            if not self._waiting and self._is_free(origin):
                return self._take(origin)
        ticket = object()
        with cancel.on_cancel(self._wake), self._changed:
            queue = self._waiting.setdefault(origin, deque())
            queue.append(ticket)
            try:
                reads, since = self._own_reads(origin), self._clock()
                while queue[0] is not ticket or not self._is_free(origin):
                    cancel.check()
                    self._changed.wait(self._longest_wait(origin, ticket, cancel, is_own=reads is not None))
                    before, reads = reads, self._own_reads(origin)
                    if reads is None or reads != before:
                        since = self._clock()
                    elif self._clock() >= since + _UNREAD_SECONDS:
                        raise PreconditionError(
                            f"{origin}: all {len(reads)} transfers at a time that it serves belong to this thread, and "
                            f"none of them was read for {_UNREAD_SECONDS:.0f} s",
                            hint="read and close one before the next is opened",
                        )
                return self._take(origin)
            finally:
                queue.remove(ticket)
                if not queue:
                    del self._waiting[origin]
                self._changed.notify_all()

    def give_back(self, origin: Origin, place: Place) -> None:
        """See Place."""
        with self._changed:
            self._drop(origin, place)

    def refuse(self, origin: Origin, place: Place) -> bool:
        """See Place."""
        with self._changed:
            has_ended = self._ended.get(origin, 0) > place.ended
            self._drop(origin, place)
            served = len(self._taken.get(origin, ()))
            if served or has_ended:
                self._narrow(origin, max(1, served))
            return bool(served) or has_ended

    def have_room(self) -> bool:
        """Whether a pull may take one place more than it began with: nobody waits, and others find some too."""
        with self._changed:
            is_scarce = self._waiting or any(fewer.places < self._most for fewer in self._fewer.values())
            return not is_scarce and max(map(len, self._taken.values()), default=0) + 1 + _LEFT <= self._most

    def _narrow(self, origin: Origin, places: int) -> None:
        until = self._clock()
        fewer = self._fewer.setdefault(origin, _Fewer(places, until, _FIRST_PATIENCE_SECONDS))
        if fewer.is_tried:
            fewer.patience_seconds = min(2 * fewer.patience_seconds, _LONGEST_PATIENCE_SECONDS)
            fewer.is_tried = False
        fewer.places = min(fewer.places, places)
        fewer.until = until + fewer.patience_seconds

    def _is_free(self, origin: Origin) -> bool:
        taken, fewer = len(self._taken.get(origin, ())), self._fewer.get(origin)
        is_granted = fewer is None or taken < fewer.places or self._clock() >= fewer.until
        return is_granted and taken < self._most

    def _take(self, origin: Origin) -> Place:
        taken, fewer = self._taken.setdefault(origin, []), self._fewer.get(origin)
        if fewer is not None and len(taken) >= fewer.places:
            # Only one more, also where nobody wanted any for long.
            fewer.places, fewer.is_tried = len(taken) + 1, True
            fewer.until = self._clock() + fewer.patience_seconds
        place = Place(self, origin, self._ended.get(origin, 0))
        taken.append(place)
        return place

    def _drop(self, origin: Origin, place: Place) -> None:
        taken = self._taken.get(origin, [])
        if place not in taken:
            return
        taken.remove(place)
        if place.is_served:
            self._ended[origin] = self._ended.get(origin, 0) + 1
        if not taken:
            del self._taken[origin]
            self._ended.pop(origin, None)
            if origin not in self._waiting:
                self._fewer.pop(origin, None)
        if self._waiting:
            self._changed.notify_all()

    def _own_reads(self, origin: Origin) -> tuple[tuple[int, int], ...] | None:
        """How often each transfer was read, where all are this thread's; None where any is another's."""
        taken, thread = self._taken.get(origin, ()), threading.get_ident()
        is_own = bool(taken) and all(place.thread == thread for place in taken)
        return tuple((id(place), place.reads) for place in taken) if is_own else None

    def _longest_wait(self, origin: Origin, ticket: object, cancel: CancelToken, *, is_own: bool) -> float | None:
        """Until something may have changed that nobody tells of."""
        limits = [cancel.remaining_seconds(), _UNREAD_SECONDS if is_own else None]
        fewer = self._fewer.get(origin)
        if fewer is not None and self._waiting[origin][0] is ticket and len(self._taken.get(origin, ())) < self._most:
            limits.append(max(0.0, fewer.until - self._clock()))
        return min((limit for limit in limits if limit is not None), default=None)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
