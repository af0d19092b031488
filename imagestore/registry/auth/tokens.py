"""Bearer tokens: a token service's answer, how long a token is used, and for which requests.

A token is remembered for one registry origin, realm, service, account and set of scopes, never for another origin, even
if both name the same realm. Threads that need the same token share one exchange. Nothing is written to disk.

Refresh tokens are exchanged one at a time for each login at a service. A service may replace the refresh token with
every exchange and refuse the old one from then on, or end the whole login when it comes again (RFC 9700 section
4.14.2). Two exchanges at once would both send the old one.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import AuthenticationError, OperationCancelledError, RegistryUnavailableError
from imagestore.util.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.registry.auth.challenge import Scope
    from imagestore.registry.transport.addresses import Origin
    from imagestore.util.cancel import CancelToken


#: Largest answer of a token service that is read. Large group claims make tokens of some ten kilobytes.
MAX_REPLY_BYTES: Final = 256 * 1024
DEFAULT_LIFETIME_SECONDS: Final = 60.0
# Longer than any service hands out; beyond it the number is a mistake.
_MAX_LIFETIME_SECONDS: Final = 7 * 24 * 3600
_MAX_TOKENS: Final = 1024
_POLL_SECONDS: Final = 0.1
# RFC 6750's b68token would refuse some services' tokens; what a header can't carry is refused.
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class TokenKey:
    """What two requests must have in common to share a token.

    The account is the fingerprint of the credentials, empty for anonymous; the scopes are sorted.
    """

    origin: Origin
    realm: str
    service: str
    account: str
    scopes: tuple[Scope, ...]

    def __repr__(self) -> str:
        # The realm's query may hold a secret.
        return f"TokenKey({self.origin}, {[str(scope) for scope in self.scopes]})"


@dataclass(frozen=True, slots=True)
class TokenReply:
    """A token service's answer, checked; with a refresh token for the next exchange, or an empty one."""

    token: Secret
    lifetime_seconds: float
    refresh_token: Secret


@dataclass(frozen=True, slots=True)
class Token:
    """A remembered token; from ``renew_at`` (on the cache's clock) on it is not used any more."""

    value: Secret
    renew_at: float


def parse_reply(body: bytes, where: str) -> TokenReply:
    """Read the JSON of a token service.

    Raises:
        AuthenticationError: no object, no token, or one that no header can carry.
    """
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise AuthenticationError(f"{where}: expected a JSON object with a token, another answer came") from None
    if not isinstance(value, dict):
        raise AuthenticationError(f"{where}: expected a JSON object with a token, another value came")
    given = [value[name] for name in ("token", "access_token") if value.get(name) not in (None, "")]
    if not given:
        raise AuthenticationError(f"{where}: expected 'token' or 'access_token' in the answer, neither came")
    # They should be the same; if they aren't, either is valid (distribution, token specification).
    token = given[0]
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise AuthenticationError(f"{where}: expected a token of printable ASCII without spaces, another came")
    refresh = value.get("refresh_token")
    usable = refresh if isinstance(refresh, str) and _TOKEN.fullmatch(refresh) else ""
    return TokenReply(Secret(token), lifetime(value.get("expires_in")), Secret(usable))


def lifetime(expires_in: object) -> float:
    """Seconds a token lives; anything but a sensible whole number counts as the specification's default of 60.

    >>> lifetime(300), lifetime("300"), lifetime(True), lifetime(-1)
    (300.0, 60.0, 60.0, 60.0)
    """
    if not isinstance(expires_in, int) or isinstance(expires_in, bool):
        return DEFAULT_LIFETIME_SECONDS
    return float(expires_in) if 0 < expires_in <= _MAX_LIFETIME_SECONDS else DEFAULT_LIFETIME_SECONDS


def usable_seconds(lifetime_seconds: float) -> float:
    """How long a token is used: to 80 % of its life or 10 s before its end, whichever is sooner.

    >>> usable_seconds(300), usable_seconds(20), usable_seconds(5)
    (240.0, 10.0, 0.0)
    """
    return max(0.0, min(lifetime_seconds * 0.8, lifetime_seconds - 10.0))


class TokenCache:
    """Remembers tokens; thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: dict[TokenKey, Token] = {}
        self._exchanges: dict[TokenKey, Future[Token]] = {}

    def get(self, key: TokenKey) -> Token | None:
        """The remembered token, unless it is due for renewal."""
        with self._lock:
            token = self._tokens.get(key)
            return token if token is not None and self._clock() < token.renew_at else None

    def discard(self, key: TokenKey, refused: Secret) -> None:
        """Forget a token the registry refused, unless another has replaced it already."""
        with self._lock:
            token = self._tokens.get(key)
            if token is not None and token.value.reveal() == refused.reveal():
                del self._tokens[key]

    def obtain(self, key: TokenKey, exchange: Callable[[], TokenReply], *, cancel: CancelToken) -> tuple[Token, bool]:
        """The remembered token, or one from a single exchange of all threads; and whether it is new.

        An exception of ``exchange`` is raised in every thread that waited for it.
        """
        while True:
            cancel.check()
            with self._lock:
                token = self._tokens.get(key)
                if token is not None and self._clock() < token.renew_at:
                    return token, False
                running = self._exchanges.get(key)
                if running is None:
                    ours = self._exchanges[key] = Future()
            if running is None:
                return self._run(key, ours, exchange), True
            while not wait([running], _POLL_SECONDS).done:
                cancel.check()
            if not running.cancelled():
                error = running.exception()
                if error is None:
                    return running.result(), True
                if not isinstance(error, OperationCancelledError):
                    # A copy for each thread, since callers add what they know to an error.
                    raise copy.copy(error) from error.__cause__

    def _run(self, key: TokenKey, future: Future[Token], exchange: Callable[[], TokenReply]) -> Token:
        try:
            reply = exchange()
        except BaseException as error:
            with self._lock:
                del self._exchanges[key]
            if isinstance(error, Exception):
                future.set_exception(error)
            else:
                future.cancel()
            raise
        # Counted from receipt on our own clock: the service's clock may be wrong, and so may ours.
        token = Token(reply.token, self._clock() + usable_seconds(reply.lifetime_seconds))
        with self._lock:
            del self._exchanges[key]
            self._remember(key, token)
        future.set_result(token)
        return token

    def _remember(self, key: TokenKey, token: Token) -> None:
        if len(self._tokens) >= _MAX_TOKENS and key not in self._tokens:
            del self._tokens[min(self._tokens, key=lambda known: self._tokens[known].renew_at)]
        self._tokens[key] = token


class Renewal:
    """One login's exchanges with one token service; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The newest refresh token, where the service has replaced the login's own.
        self._refresh: Secret | None = None
        # How many exchanges have ended, and why the last one had no answer at all.
        self._ended = 0
        self._outage: RegistryUnavailableError | None = None

    def exchange(self, fetch: Callable[[Secret | None], TokenReply], *, cancel: CancelToken) -> TokenReply:
        """Wait until no other exchange of the login is running, then run this one.

        ``fetch`` gets the newest refresh token, or None when the login's own is the newest. If the service didn't
        answer the exchange that was waited for, that error is raised instead of waiting for another timeout.
        """
        ended = self._ended
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            cancel.check()
        try:
            if self._outage is not None and self._ended != ended:
                # A copy for each thread, since callers add what they know to an error.
                raise copy.copy(self._outage) from self._outage.__cause__
            return self._exchange(fetch)
        finally:
            self._lock.release()

    def _exchange(self, fetch: Callable[[Secret | None], TokenReply]) -> TokenReply:
        outage: RegistryUnavailableError | None = None
        try:
            reply = self._fetch(fetch)
        except RegistryUnavailableError as error:
            if not error.status:  # an answer may be about the scope alone
                # Without the traceback, which would keep the caller's objects alive.
                outage = copy.copy(error)
                outage.__cause__ = error.__cause__
            raise
        finally:
            self._outage = outage
            self._ended += 1
        if reply.refresh_token:
            self._refresh = reply.refresh_token
        return reply

    def _fetch(self, fetch: Callable[[Secret | None], TokenReply]) -> TokenReply:
        if self._refresh is None:
            return fetch(None)
        try:
            return fetch(self._refresh)
        except AuthenticationError:
            # The remembered token was refused; the login's own one is tried last.
            self._refresh = None
            return fetch(None)
