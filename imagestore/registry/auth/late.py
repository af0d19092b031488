"""An authenticator that is made when a registry asks for one: most public pulls never need it, nor what it loads."""

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
        make: makes the one that answers; called once, at the first challenge.
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

    def respond(self, origin: Origin, repository: str, headers: Headers, *, cancel: CancelToken) -> str:
        """See Authenticator."""
        with self._lock:
            made = self._made
            if made is None:
                made = self._make()
                # The request went out without anything, which the one that answers has to know.
                made.authorization(origin, repository)
                self._made = made
        return made.respond(origin, repository, headers, cancel=cancel)
