"""Back-off: how long to wait after a failed pull.

Rule (kubelet, client-go's flowcontrol): 10, 20, 40, 80, 160, 300, 300, … seconds, no jitter. An attempt may start as
soon as the delay has passed, equality included. A key whose last failure is more than twice the longest delay ago is
forgotten; at exactly twice it still doubles. Success resets nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.util.durations import NANOSECONDS, Duration

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_DELAY: Final = Duration(10 * NANOSECONDS)
LONGEST_DELAY: Final = Duration(300 * NANOSECONDS)


@dataclass(slots=True)
class _Entry:
    delay: int
    failed_at: int


class BackOff:
    """Delays by key; safe from any thread.

    Args:
        first: delay after the first failure.
        longest: upper limit of a delay.
        clock: monotonic nanoseconds.

    Raises:
        InvalidInputError: a delay is negative, or the first is longer than the longest.
    """

    def __init__(
        self,
        first: Duration = FIRST_DELAY,
        longest: Duration = LONGEST_DELAY,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if not 0 <= first.nanoseconds <= longest.nanoseconds:
            raise InvalidInputError(f"back-off from {first} to {longest}: expected 0 <= first <= longest")
        self._first = first
        self._longest = longest
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def remaining(self, key: str) -> Duration:
        """How long the key still has to wait; zero if it may try now."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or self._is_forgotten(entry):
                return Duration(0)
            return Duration(max(0, entry.delay - (self._clock() - entry.failed_at)))

    def failed(self, key: str) -> Duration:
        """Record a failure; return the delay that starts now."""
        with self._lock:
            entry = self._entries.get(key)
            now = self._clock()
            if entry is None or self._is_forgotten(entry):
                delay = self._first.nanoseconds
            else:
                delay = min(entry.delay * 2, self._longest.nanoseconds)
            self._entries[key] = _Entry(delay, now)
            return Duration(delay)

    def sweep(self) -> frozenset[str]:
        """Drop forgotten keys; return those that are left."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if self._is_forgotten(entry)]:
                del self._entries[key]
            return frozenset(self._entries)

    def _is_forgotten(self, entry: _Entry) -> bool:
        return self._clock() - entry.failed_at > 2 * self._longest.nanoseconds
