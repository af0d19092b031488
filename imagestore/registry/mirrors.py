"""One endpoint after the other until one serves, and an error that tells about each.

A mirror that fails, refuses or doesn't have the thing is passed over. The last endpoint is the registry itself, and its
verdict is the one raised: a mirror's "not found" says nothing about the registry. Where the registry can't be reached,
a mirror that only asked for patience is asked once more, and waited for.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from imagestore.errors import (
    DocumentError,
    IntegrityError,
    ProtocolError,
    RateLimitedError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.oci.digest import Digest
from imagestore.registry.events import SourceSwitched
from imagestore.util.files import opener, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.errors import ImageStoreError
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.events import Observer
    from imagestore.registry.transport.addresses import Origin


T = TypeVar("T")


def first_served(
    endpoints: Sequence[Endpoint],
    attempt: Callable[[Endpoint, int], T],
    *,
    what: str,
    breaker: Breaker,
    observer: Observer,
) -> T:
    """Try endpoints in order.

    Args:
        endpoints: those that have the needed capability.
        attempt: asks one endpoint; the number says how many remain behind it.
        what: names the thing in errors.
        breaker: remembers dead mirrors.
        observer: told when the next endpoint is tried.

    Raises:
        RegistryError, IntegrityError, DocumentError: what the last endpoint said; the others' words are in its hint.
    """
    if not endpoints:
        raise ProtocolError(
            f"{what}: no configured host may serve this",
            hint="give a host in hosts.toml the capability 'pull', for tags also 'resolve'",
        )
    candidates = [endpoint for endpoint in endpoints if endpoint.is_upstream or not breaker.is_resting(endpoint)]
    candidates = candidates or list(endpoints[-1:])
    failures: list[RegistryError | IntegrityError | DocumentError] = []
    limited: Endpoint | None = None
    for position, endpoint in enumerate(candidates):
        behind = len(candidates) - position - 1
        # Asked only now: a permit after a rest is the one probe, and must not be taken for a host that isn't needed.
        if behind and not endpoint.is_upstream and not breaker.permits(endpoint):
            continue
        try:
            served = attempt(endpoint, behind)
        except (RegistryError, IntegrityError, DocumentError) as error:
            breaker.failed(endpoint, error)
            failures.append(error)
            if behind:
                observer(SourceSwitched(endpoint.host, candidates[position + 1].host, str(error)))
                if limited is None and isinstance(error, RateLimitedError):
                    limited = endpoint
        else:
            breaker.succeeded(endpoint)
            return served
    last = failures[-1]
    if limited is not None and isinstance(last, RegistryUnavailableError) and not last.status:
        observer(SourceSwitched(candidates[-1].host, limited.host, str(last)))
        try:
            served = attempt(limited, 0)
        except (RegistryError, IntegrityError, DocumentError) as error:
            breaker.failed(limited, error)
        else:
            breaker.succeeded(limited)
            return served
    raise _combined(failures)


def _combined(
    failures: list[RegistryError | IntegrityError | DocumentError],
) -> RegistryError | IntegrityError | DocumentError:
    last = failures[-1]
    if len(failures) > 1:
        before = "before that: " + "; ".join(str(error) for error in failures[:-1])
        last.hint = f"{last.hint}; {before}" if last.hint else before
        last.__cause__ = ExceptionGroup("all hosts failed", list(failures[:-1]))
    return last


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
