"""Exchanges of refresh tokens, one at a time for each login at a service.

A service may replace the refresh token with every exchange and refuse the old one from then on, or end the whole login
when it comes again (RFC 9700 section 4.14.2). Two exchanges at once would both send the old one.
"""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Final

from imagestore.errors import AuthenticationError, RegistryUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.registry.auth.tokens import TokenReply
    from imagestore.util.cancel import CancelToken
    from imagestore.util.secret import Secret

_POLL_SECONDS: Final = 0.1


class Renewal:
    """One login's exchanges with one token service; thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        # The newest refresh token, where the service has replaced the login's own.
        self._refresh: Secret | None = None
        # How many exchanges have ended, and why the last one had no answer at all.
        self._ended = 0
        self._outage: RegistryUnavailableError | None = None

    def exchange(self, fetch: Callable[[Secret | None], TokenReply], *, cancel: CancelToken) -> TokenReply:
        """Wait until no other exchange of the login is under way, then make this one.

        Args:
            fetch: makes it; given the newest refresh token, or None when the login's own is the newest.
            cancel: ends the wait.

        Raises:
            OperationCancelledError: cancelled while waiting.
            RegistryUnavailableError: as ``fetch``, or as the exchange that was waited for, if the service didn't answer
                it: nobody in the line waits for another time limit.
            Exception: whatever ``fetch`` raised.
        """
        ended = self._ended
        while not self._turn.acquire(timeout=_POLL_SECONDS):
            cancel.check()
        try:
            if self._outage is not None and self._ended != ended:
                # Each its own, since callers add what they know to an error.
                raise copy.copy(self._outage) from self._outage.__cause__
            return self._exchange(fetch)
        finally:
            self._turn.release()

    def _exchange(self, fetch: Callable[[Secret | None], TokenReply]) -> TokenReply:
        outage: RegistryUnavailableError | None = None
        try:
            reply = self._fetch(fetch)
        except RegistryUnavailableError as error:
            if not error.status:  # an answer may be about the scope alone
                # Without the traceback, which would keep the caller's whole work.
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
            # The remembered token was refused; the login's own has the last word.
            self._refresh = None
            return fetch(None)
