"""When to retry and after how long: decisions as pure functions, and pauses for all requests to a host.

RFC 9110 section 10.2.3 gives Retry-After as seconds or as a date. Random waits have "full jitter": anything between
zero and a bound that doubles, so that many clients don't retry together. If a host limits requests and names no time,
the wait is never near zero.
"""

from __future__ import annotations

import datetime
import email.utils
import random
import re
import ssl
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.errors import RateLimitedError, RegistryUnavailableError
from imagestore.events import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.errors import ImageStoreError
    from imagestore.events import Observer
    from imagestore.registry.policy import TransferPolicy
    from imagestore.registry.transport.messages import Response
    from imagestore.util.cancel import CancelToken

#: Statuses that a later try may turn into success; 52x are those of a large delivery network for a lost origin.
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504, *range(520, 530)})
# How a proxy's final refusal begins.
_REFUSED: Final = frozenset({"400", "401", "403", "407"})
_SECONDS: Final = re.compile(r"[0-9]{1,19}")
# What a registry may answer without a login: Amazon's answers 403 and 404 without a challenge, Nexus hides private
# content by a 404.
_WITHOUT_LOGIN: Final = frozenset({400, 401, 403, 404})
# What it may answer to a login or token that is no longer valid: any client error, except about the range.
_WITH_LOGIN: Final = frozenset(range(400, 500)) - TRANSIENT_STATUSES - {416}


@dataclass(frozen=True, slots=True)
class Timing:
    """Clocks, random numbers and sleep; tests pass their own.

    ``now`` is for dates in headers; ``random`` is uniform in [0, 1); ``sleep`` ends early if the token is cancelled.
    """

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    random: Callable[[], float] = random.random
    sleep: Callable[[CancelToken, float], None] = lambda cancel, seconds: cancel.wait(seconds)


def parse_retry_after(value: str, now: datetime.datetime) -> float | None:
    """Seconds to wait by a Retry-After field; None when it says nothing usable.

    >>> parse_retry_after("7", datetime.datetime.now(datetime.UTC))
    7.0
    """
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - now).total_seconds())


def backoff_seconds(policy: TransferPolicy, retry: int, chance: float) -> float:
    """A random wait before the ``retry``-th repetition (from 1)."""
    return _doubled(policy.first_backoff_seconds, retry, policy.longest_backoff_seconds) * chance


def limited_seconds(policy: TransferPolicy, retry: int, chance: float) -> float:
    """A wait before the ``retry``-th repetition (from 1) at a host that limits requests and names no time.

    As long as other tools wait, but spread: transfers that retry at one moment meet the same limit again, and one of
    them may lose every time.
    """
    return _doubled(policy.first_limited_seconds, retry, policy.longest_limited_seconds) * (0.5 + chance)


def _doubled(first: float, retry: int, longest: float) -> float:
    # 2**60 overflows nothing and is far above any bound.
    return min(longest, first * 2.0 ** min(retry - 1, 60))


def is_transient(error: ImageStoreError) -> bool:
    """Whether the same request at the same host may succeed later.

    A refused TLS handshake is final: a retry meets the same certificate. So is a proxy's refusal.
    """
    if isinstance(error, RateLimitedError):
        return True
    if not isinstance(error, RegistryUnavailableError):
        return False
    if error.__cause__ is not None:
        if isinstance(error.__cause__, ssl.SSLError):
            return False
        # Repeated logins at a proxy may lock an account.
        if isinstance(error.__cause__, httpx.ProxyError) and str(error.__cause__)[:3] in _REFUSED:
            return False
    return error.status == 0 or error.status in TRANSIENT_STATUSES


class HostPauses:
    """When each host may be asked again: a registry's limit is for all transfers from it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._lock = threading.Lock()
        self._until: dict[str, tuple[float, str]] = {}

    def pause(self, host: str, seconds: float, reason: str) -> None:
        """No request is sent to the host before this time has passed."""
        until = self._timing.monotonic() + seconds
        with self._lock:
            known = self._until.get(host)
            if known is None or known[0] < until:
                self._until[host] = (until, reason)

    def wait(self, host: str, longest_seconds: float, *, cancel: CancelToken, observer: Observer) -> None:
        """Sleep until the host may be asked.

        Raises:
            RateLimitedError: that is longer than ``longest_seconds``.
        """
        while self._until:
            with self._lock:
                until, reason = self._until.get(host, (0.0, ""))
                seconds = until - self._timing.monotonic()
                if seconds <= 0:
                    self._until.pop(host, None)
                    return
            if seconds > longest_seconds:
                message = f"{host}: rate limited; not asked again for {seconds:.0f} s (Retry-After): {reason}"
                raise RateLimitedError(message, host=host, status=429, retry_after=seconds)
            observer(Waiting(host, seconds, reason))
            self._timing.sleep(cancel, seconds)


def is_refusal(request: httpx.Request, response: Response, *, had_login: bool) -> bool:
    """Whether another login may get another answer; ``had_login``: this request or the one before it sent one."""
    if had_login and (request.method, response.status) != ("HEAD", 405):  # any login gets that
        return response.status in _WITH_LOGIN
    return response.status in _WITHOUT_LOGIN
