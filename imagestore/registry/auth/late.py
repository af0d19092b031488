"""An authenticator that is made when a registry asks for a login or refuses: most public pulls don't need it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.cancel import CancelToken
    from imagestore.registry.exchange import Authenticator, Headers, Origin


class LateAuthenticator:
    """See Authenticator; thread-safe.

    Args:
        make: makes the one that answers; called once, at the first refusal.
    """

    def __init__(self, make: Callable[[], Authenticator]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Authenticator | None = None

    def authorization(self, origin: Origin, repository: str) -> str:
        """See Authenticator."""
        return "" if self._made is None else self._made.authorization(origin, repository)

    def provenance(self, origin: Origin, repository: str) -> str:
        """See Authenticator."""
        return "" if self._made is None else self._made.provenance(origin, repository)

    def forget(self, origin: Origin, repository: str, refused: str) -> None:
        """See Authenticator."""
        if self._made is not None:
            self._made.forget(origin, repository, refused)

    def stored_login(self, origin: Origin, repository: str, *, cancel: CancelToken) -> str:
        """See Authenticator."""
        return self._get(origin, repository).stored_login(origin, repository, cancel=cancel)

    def respond(self, origin: Origin, repository: str, headers: Headers, *, cancel: CancelToken) -> str:
        """See Authenticator."""
        return self._get(origin, repository).respond(origin, repository, headers, cancel=cancel)

    def _get(self, origin: Origin, repository: str) -> Authenticator:
        with self._lock:
            made = self._made
            if made is None:
                made = self._make()
                # The request went out without anything, which the one that answers has to know.
                made.authorization(origin, repository)
                self._made = made
        return made
