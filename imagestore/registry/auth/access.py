"""What sends an endpoint's requests, and what authorizes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from imagestore.errors import ProtocolError
from imagestore.registry.transport import urls

if TYPE_CHECKING:
    import httpx

    from imagestore.registry.transport.addresses import Origin
    from imagestore.registry.transport.messages import Sender
    from imagestore.util.cancel import CancelToken


class Authenticator(Protocol):
    """Gives the value of ``Authorization`` for an origin and a repository."""

    def authorization(self, origin: Origin, repository: str) -> str:
        """The header value known so far; empty to send the request without."""

    def provenance(self, origin: Origin, repository: str) -> str:
        """Where the credentials behind the last answer to a challenge came from; empty when it was anonymous."""

    def forget(self, origin: Origin, repository: str, refused: str) -> None:
        """Forget the header value for a repository, if it is still the refused one."""

    def stored_login(self, origin: Origin, repository: str, *, cancel: CancelToken) -> str:
        """Where a login for the registry is stored; empty when there is none.

        Raises:
            ConfigError, InvalidInputError: the place or the login can't be read.
        """

    def respond(self, origin: Origin, repository: str, headers: httpx.Headers, *, cancel: CancelToken) -> str:
        """Answer a 401: read the challenges, obtain credentials or a token, return the header value to try once.

        Raises:
            AuthenticationError: no usable challenge, no credentials, or they were refused.
        """


class NoLogin:
    """An Authenticator for hosts that only an image names: they get no credentials."""

    def authorization(self, origin: Origin, repository: str) -> str:
        """See Authenticator."""
        return ""

    def provenance(self, origin: Origin, repository: str) -> str:
        """See Authenticator."""
        return ""

    def forget(self, origin: Origin, repository: str, refused: str) -> None:
        """See Authenticator."""

    def stored_login(self, origin: Origin, repository: str, *, cancel: CancelToken) -> str:
        """See Authenticator."""
        return ""

    def respond(self, origin: Origin, repository: str, headers: httpx.Headers, *, cancel: CancelToken) -> str:
        """See Authenticator."""
        host = urls.host_port(origin)
        raise ProtocolError(f"{host}: wants a login for a foreign layer, which is never given", host=host, status=401)


@dataclass(frozen=True, slots=True)
class Access:
    """The sender and the authenticator of one endpoint."""

    sender: Sender
    authenticator: Authenticator
