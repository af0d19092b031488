"""The token bucket in front of a registry: ``registryPullQPS`` and ``registryBurst``.

Rule: the bucket starts full, gains ``qps`` tokens each second up to ``burst``; a pull takes one or is refused at once
with ``pull QPS exceeded``. A rate of zero means no bucket.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.util.durations import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

QPS_EXCEEDED: Final = "pull QPS exceeded"


class TokenBucket:
    """Lets ``qps`` pulls a second through on average, ``burst`` at once.

    Args:
        qps: tokens gained each second; zero lets everything through.
        burst: tokens the bucket holds.
        clock: nanoseconds that only go forwards.

    Raises:
        InvalidInputError: a number is negative.
    """

    def __init__(self, qps: float, burst: int, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        if not qps >= 0 or burst < 0:
            raise InvalidInputError(f"token bucket of {qps} a second and {burst} at once: expected no negative number")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take a token; False when there is none."""
        if self._qps == 0:
            return True
        with self._lock:
            now = self._clock()
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) / NANOSECONDS * self._qps)
            self._at = now
            # Tokens gained in parts sum up to a hair less than whole ones.
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True
