"""Failover: one endpoint after the other until one serves, and a circuit breaker for each mirror.

A mirror that fails, refuses or lacks the content is passed over. The last endpoint is the registry itself, and its
error is the one raised: a mirror's "not found" says nothing about the registry. If the registry can't be reached, a
mirror that only rate limited us is asked once more, and waited for.

An unreachable mirror is skipped for one minute; then one request probes it, and any answer closes its circuit. The
registry itself is never skipped. With a folder this memory is shared by all processes that use the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import (
    DocumentError,
    IntegrityError,
    ProtocolError,
    RateLimitedError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.events import SourceSwitched
from imagestore.oci.digest import Digest
from imagestore.util.files import opener, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.errors import ImageStoreError
    from imagestore.events import Observer
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.transport.addresses import Origin

S = TypeVar("S")
T = TypeVar("T")

_FAILURES: Final = (RegistryError, IntegrityError, DocumentError)
#: How long an unreachable mirror is skipped: short enough to notice its return, long enough for a pull.
OPEN_SECONDS: Final = 60.0
#: Below a store's root: the folder where its processes share what they know about mirrors.
STATE_FOLDER: Final = "hosts"
_MOMENT: Final = re.compile(r"[0-9]{1,12}\.[0-9]{3}")


def first_served(
    endpoints: Sequence[Endpoint],
    ask: Callable[[S], T],
    *,
    session: Callable[[Endpoint, bool], S],
    what: str,
    breaker: Breaker,
    observer: Observer,
) -> T:
    """Ask endpoints in order, each in its ``session``, which is made knowing whether it is the last one.

    Raises:
        RegistryError, IntegrityError, DocumentError: that of the last endpoint; the others' texts are in its hint.
    """
    if not endpoints:
        raise ProtocolError(
            f"{what}: no configured host may serve this",
            hint="give a host in hosts.toml the capability 'pull', for tags also 'resolve'",
        )

    candidates = [endpoint for endpoint in endpoints if not breaker.is_open(endpoint)] or list(endpoints[-1:])
    failures: list[RegistryError | IntegrityError | DocumentError] = []
    limited: Endpoint | None = None
    for position, endpoint in enumerate(candidates):
        behind = len(candidates) - position - 1
        # Not earlier: after the minute one caller gets the probe, and must not get it for a host that isn't needed.
        if behind and not breaker.allows(endpoint):
            continue
        try:
            served = ask(session(endpoint, not behind))
        except _FAILURES as error:
            breaker.record_failure(endpoint, error)
            failures.append(error)
            if behind:
                observer(SourceSwitched(endpoint.host, candidates[position + 1].host, str(error)))
                if limited is None and isinstance(error, RateLimitedError):
                    limited = endpoint
        else:
            breaker.record_answer(endpoint)
            return served
    last = failures[-1]
    if limited is not None and isinstance(last, RegistryUnavailableError) and not last.status:
        observer(SourceSwitched(candidates[-1].host, limited.host, str(last)))
        try:
            served = ask(session(limited, True))
        except _FAILURES as error:
            breaker.record_failure(limited, error)
        else:
            breaker.record_answer(limited)
            return served
    if failures[:-1]:
        before = "before that: " + "; ".join(map(str, failures[:-1]))
        last.hint = f"{last.hint}; {before}" if last.hint else before
        last.__cause__ = ExceptionGroup("all hosts failed", failures[:-1])
    raise last


class Breaker:
    """A circuit breaker for each mirror; thread-safe. A registry itself is always allowed.

    The folder has one small file for each mirror that is skipped, for all processes; it is made when first needed. If
    it can't be written, nothing is remembered. Without a folder, only this process remembers.
    """

    def __init__(self, folder: str = "", *, clock: Callable[[], float] | None = None) -> None:
        self._folder = folder
        self._clock = clock or (time.time if folder else time.monotonic)
        self._lock = threading.Lock()
        # Without a folder: until when each mirror is skipped.
        self._until: dict[Origin, float] = {}

    def allows(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint may be tried; when its minute is over, one caller may probe it."""
        if endpoint.is_upstream:
            return True
        with self._lock:
            until, now = self._get(endpoint.origin), self._clock()
            # Later than any moment that is set here: the wall clock was set back.
            if until is None or until > now + OPEN_SECONDS:
                return True
            if now < until:
                return False
            # Half open: others skip it until the probe has its result, or for another minute.
            self._set(endpoint.origin, now + OPEN_SECONDS)
            return True

    def is_open(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint is skipped at the moment; changes nothing."""
        if endpoint.is_upstream:
            return False
        with self._lock:
            until, now = self._get(endpoint.origin), self._clock()
            return until is not None and now < until <= now + OPEN_SECONDS

    def record_failure(self, endpoint: Endpoint, error: ImageStoreError) -> None:
        """An endpoint failed. Only an unreachable one is skipped; any answer shows that it is alive."""
        if not isinstance(error, RegistryUnavailableError) or error.status != 0:
            self.record_answer(endpoint)
        elif not endpoint.is_upstream:
            with self._lock:
                self._set(endpoint.origin, self._clock() + OPEN_SECONDS)

    def record_answer(self, endpoint: Endpoint) -> None:
        """An endpoint answered."""
        if not endpoint.is_upstream:
            with self._lock:
                if self._get(endpoint.origin) is not None:
                    self._set(endpoint.origin, None)

    def _get(self, origin: Origin) -> float | None:
        if not self._folder:
            return self._until.get(origin)
        try:
            with open(self._path(origin), encoding="ascii", errors="replace", opener=opener) as stream:
                text = stream.read(32)
        except OSError:
            return None
        return float(text) if _MOMENT.fullmatch(text) else None

    def _set(self, origin: Origin, until: float | None) -> None:
        if not self._folder:
            self._until.pop(origin, None)
            if until is not None:
                self._until[origin] = until
            return
        # A lost file costs one try at an unreachable mirror.
        with contextlib.suppress(OSError):
            if until is None:
                os.unlink(self._path(origin))
            else:
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                replace(self._path(origin), f"{until:.3f}".encode())

    def _path(self, origin: Origin) -> str:
        return os.path.join(self._folder, Digest.of(str(origin).encode()).encoded)
