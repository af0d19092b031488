"""Remembers dead mirrors, so that forty layers don't each wait for the same one.

A mirror that can't be reached is left out for a while; then one request probes it, and its result decides. The registry
itself is never left out: behind it there is nothing. With a folder the memory is shared by every process that uses it,
and outlives them; losing it costs one wasted try, so it is written without ceremony.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import RegistryUnavailableError
from imagestore.oci.digest import Digest
from imagestore.util.files import opener, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.errors import ImageStoreError
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.transport.addresses import Origin

#: How long a dead mirror is left out, in seconds: short enough to notice its return, long enough for a pull.
REST_SECONDS: Final = 60.0
#: Below a store's root: the folder where its processes share what they know about mirrors.
STATE_FOLDER: Final = "hosts"
_MOMENT: Final = re.compile(r"[0-9]{1,12}\.[0-9]{3}")


class Memory(Protocol):
    """Keeps until when each origin rests; seconds on the breaker's clock."""

    def get(self, origin: Origin) -> float | None:
        """The moment, or None for an origin that isn't resting."""

    def set(self, origin: Origin, until: float | None) -> None:
        """Keep a moment, or forget the origin."""


class ProcessMemory:
    """Forgets when the process ends."""

    def __init__(self) -> None:
        self._until: dict[Origin, float] = {}

    def get(self, origin: Origin) -> float | None:
        """See Memory."""
        return self._until.get(origin)

    def set(self, origin: Origin, until: float | None) -> None:
        """See Memory."""
        if until is None:
            self._until.pop(origin, None)
        else:
            self._until[origin] = until


class FolderMemory:
    """Shared by processes: one small file for each resting origin.

    Args:
        folder: made when first needed; where it can't be written, nothing is remembered.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get(self, origin: Origin) -> float | None:
        """See Memory."""
        try:
            with open(self._path(origin), encoding="ascii", errors="replace", opener=opener) as stream:
                text = stream.read(32)
        except OSError:
            return None
        return float(text) if _MOMENT.fullmatch(text) else None

    def set(self, origin: Origin, until: float | None) -> None:
        """See Memory."""
        with contextlib.suppress(OSError):
            if until is None:
                os.unlink(self._path(origin))
                return
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            replace(self._path(origin), f"{until:.3f}".encode())

    def _path(self, origin: Origin) -> str:
        return os.path.join(self._folder, Digest.of(str(origin).encode()).encoded)


class Breaker:
    """A circuit breaker for each mirror; thread-safe.

    Args:
        memory: by default this process's.
        clock: seconds; of a clock that all users of the memory share.
    """

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory or ProcessMemory()
        self._clock = clock
        self._lock = threading.Lock()

    @classmethod
    def shared(cls, folder: str) -> Breaker:
        """One whose memory is a folder, by the wall clock."""
        return cls(FolderMemory(folder), clock=time.time)

    def permits(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint may be tried; after its rest one caller gets to probe it."""
        with self._lock:
            until = self._memory.get(endpoint.origin)
            now = self._clock()
            # A rest longer than any we give: the wall clock was set back.
            if until is None or until > now + REST_SECONDS:
                return True
            if now < until:
                return False
            # Half open: whoever asks next waits for this probe's result, or for another rest.
            self._memory.set(endpoint.origin, now + REST_SECONDS)
            return True

    def is_resting(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint is left out at the moment; changes nothing."""
        with self._lock:
            until = self._memory.get(endpoint.origin)
            now = self._clock()
            return until is not None and now < until <= now + REST_SECONDS

    def failed(self, endpoint: Endpoint, error: ImageStoreError) -> None:
        """An endpoint failed; only being unreachable counts, and any other answer shows that it is alive."""
        if endpoint.is_upstream:
            return
        if not isinstance(error, RegistryUnavailableError) or error.status != 0:
            self.succeeded(endpoint)
            return
        with self._lock:
            self._memory.set(endpoint.origin, self._clock() + REST_SECONDS)

    def succeeded(self, endpoint: Endpoint) -> None:
        """An endpoint answered; a registry itself never rests."""
        if endpoint.is_upstream:
            return
        with self._lock:
            if self._memory.get(endpoint.origin) is not None:
                self._memory.set(endpoint.origin, None)
