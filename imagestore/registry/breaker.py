"""Remembers dead mirrors, so that forty layers don't each wait for the same one.

A mirror that can't be reached is left out for a while; then one request probes it, and its result decides. The registry
itself is never left out: behind it there is nothing.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import RegistryUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.errors import ImageStoreError
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.exchange import Origin

#: How long a dead mirror is left out, in seconds: short enough to notice its return, long enough for a pull.
REST_SECONDS: Final = 60.0


class Breaker:
    """A circuit breaker for each mirror; thread-safe.

    Args:
        rest_seconds: how long a dead mirror is left out.
        clock: seconds from an arbitrary start.
    """

    def __init__(self, *, rest_seconds: float = REST_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._open_until: dict[Origin, float] = {}

    def permits(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint may be tried; after its rest exactly one caller gets to probe it."""
        with self._lock:
            until = self._open_until.get(endpoint.origin)
            if until is None:
                return True
            now = self._clock()
            if now < until:
                return False
            # Half open: whoever asks next waits for this probe's result, or for another rest.
            self._open_until[endpoint.origin] = now + self._rest_seconds
            return True

    def failed(self, endpoint: Endpoint, error: ImageStoreError) -> None:
        """An endpoint failed; only being unreachable counts."""
        if isinstance(error, RegistryUnavailableError) and error.status == 0:
            with self._lock:
                self._open_until[endpoint.origin] = self._clock() + self._rest_seconds

    def succeeded(self, endpoint: Endpoint) -> None:
        """An endpoint served."""
        with self._lock:
            self._open_until.pop(endpoint.origin, None)
