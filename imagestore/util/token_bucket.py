"""A rate: so much a second on average, and so much at once."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenBucket:
    """Gains ``rate`` tokens a second up to ``burst``; thread-safe.

    Args:
        rate: zero means no limit.
        burst: capacity; the bucket starts full.
        clock: monotonic seconds.

    Raises:
        InvalidInputError: a number is negative.
    """

    def __init__(self, rate: float, burst: float = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate >= 0 or burst < 0:
            raise InvalidInputError(f"token bucket of {rate} a second and {burst} at once: expected no negative number")
        self._rate = rate
        self._burst = burst
        self._clock = clock
        # Below zero, so many were taken in advance.
        self._tokens = float(burst)
        self._at = clock()
        self._lock = threading.Lock()

    def take(self, amount: float) -> float:
        """Take tokens, in advance if there aren't enough; the seconds to wait until they would have been there."""
        if not self._rate:
            return 0.0
        with self._lock:
            self._refill()
            self._tokens -= amount
            return max(0.0, -self._tokens / self._rate)

    def try_take(self) -> bool:
        """Take one token; False if there is none."""
        if not self._rate:
            return True
        with self._lock:
            self._refill()
            # Fractions add up to slightly less than a whole token.
            if self._tokens < 1 - 1e-6:
                return False
            self._tokens -= 1
            return True

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
