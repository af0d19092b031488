"""What the requests of one operation share: hosts, retries left, bytes per second, warnings that were shown.

A cancel token and its children are one operation, a pull with all its layers for example.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from imagestore.util.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.policy import TransferPolicy
    from imagestore.registry.retry import Timing
    from imagestore.registry.transport.addresses import Origin
    from imagestore.util.cancel import CancelToken


# A limited transfer reads as much at a time as it may in this many seconds, but never less than a few packets.
_SHARE_SECONDS: Final = 0.1
_LEAST_SHARE_BYTES: Final = 4096
# Warnings that one operation shows; a hostile registry could send another one with each answer.
_MAX_WARNINGS: Final = 100
# If an authorization that the operation obtained is refused within this time, no other one is looked for.
_TRIED_SECONDS: Final = 10.0


class Operation:
    """Shared state of one operation; thread-safe."""

    def __init__(self, policy: TransferPolicy, timing: Timing) -> None:
        self._timing = timing
        self._lock = threading.Lock()
        self._retries_left = policy.total_retries
        self._bytes_per_second = policy.bytes_per_second
        # Without a burst: a pause must not be followed by one.
        self._bytes = TokenBucket(policy.bytes_per_second or 0, clock=timing.monotonic)
        self._shown: set[str] = set()
        self._endpoints: dict[str, tuple[Endpoint, ...]] = {}
        # By origin, repository and a hash of the header, which is a secret.
        self._tried: dict[tuple[Origin, str, int], float] = {}
        self._login_remarks: dict[tuple[Origin, str], str] = {}
        #: Held by a request that looks for a better authorization; the others wait for what it finds.
        self.login_lock = threading.Lock()

    def endpoints(self, host: str, resolve: Callable[[str], tuple[Endpoint, ...]]) -> tuple[Endpoint, ...]:
        """Who serves a registry host's references: looked up once, so that one operation has one answer.

        Raises:
            ConfigError: the host's configuration can't be used.
        """
        found = self._endpoints.get(host)
        if found is None:
            found = self._endpoints[host] = resolve(host)
        return found

    def take_retry(self) -> bool:
        """Spend one retry; False when none is left."""
        with self._lock:
            if self._retries_left <= 0:
                return False
            self._retries_left -= 1
            return True

    def share(self, byte_count: int) -> int:
        """How many of so many bytes to read at once, so that a limited transfer goes on evenly."""
        if self._bytes_per_second is None:
            return byte_count
        return min(byte_count, max(_LEAST_SHARE_BYTES, int(self._bytes_per_second * _SHARE_SECONDS)))

    def throttle(self, byte_count: int, *, cancel: CancelToken) -> None:
        """Sleep so long that the operation stays within its bytes per second."""
        if seconds := self._bytes.take(byte_count):
            self._timing.sleep(cancel, seconds)

    def note_tried(self, origin: Origin, repository: str, authorization: str) -> None:
        """Note that the operation has just obtained this authorization, or found no better one."""
        now = self._timing.monotonic()
        with self._lock:
            self._tried = {key: since for key, since in self._tried.items() if now - since < _TRIED_SECONDS}
            self._tried[origin, repository, hash(authorization)] = now

    def has_tried(self, origin: Origin, repository: str, authorization: str) -> bool:
        """Whether note_tried() was called with this a moment ago."""
        with self._lock:
            since = self._tried.get((origin, repository, hash(authorization)))
        return since is not None and self._timing.monotonic() - since < _TRIED_SECONDS

    def remark_on_login(self, origin: Origin, repository: str, remark: str) -> None:
        """Keep why no login was sent, for the error of any later request."""
        with self._lock:
            self._login_remarks[origin, repository] = remark

    def login_remark(self, origin: Origin, repository: str) -> str:
        """Why no login was sent; empty if unknown."""
        with self._lock:
            return self._login_remarks.get((origin, repository), "")

    def is_new(self, text: str) -> bool:
        """Whether a message was not shown before in the operation, nor too many others."""
        with self._lock:
            is_new = text not in self._shown and len(self._shown) < _MAX_WARNINGS
            if is_new:
                self._shown.add(text)
            return is_new


class Operations:
    """Finds the operation of a cancel token; thread-safe."""

    def __init__(self, policy: TransferPolicy, timing: Timing) -> None:
        self._policy = policy
        self._timing = timing
        self._lock = threading.Lock()
        self._by_token: weakref.WeakKeyDictionary[CancelToken, Operation] = weakref.WeakKeyDictionary()

    def of(self, cancel: CancelToken) -> Operation:
        """The operation of a token or of its parent; it ends with the outermost token."""
        with self._lock:
            found = self._by_token.get(cancel.operation)
            if found is None:
                found = self._by_token[cancel.operation] = Operation(self._policy, self._timing)
            return found
