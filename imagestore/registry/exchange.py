"""Who sends requests (httpx's, see ``transport/messages.py``), and who authorises them.

Everything above (authentication, retry, redirects, the client) is tested with a fake sender of ten lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import httpx

    from imagestore.registry.transport.addresses import Origin
    from imagestore.registry.transport.messages import Response
    from imagestore.util.cancel import CancelToken


class Sender(Protocol):
    """Sends one request, follows nothing, retries nothing."""

    def send(self, request: httpx.Request, *, cancel: CancelToken) -> Response:
        """Exchange one request for a response.

        Raises:
            RegistryUnavailableError: no connection, TLS failure, timeout, or the peer hung up.
            ProtocolError: the answer is no HTTP, or the request can't be sent as it is.
            OperationCancelledError: cancelled while waiting.
        """


class Authenticator(Protocol):
    """Knows what to put into ``Authorization`` for an origin and a repository."""

    def authorization(self, origin: Origin, repository: str) -> str:
        """The header value known so far, or an empty text (then the request goes out without)."""

    def provenance(self, origin: Origin, repository: str) -> str:
        """Where the credentials behind the last answer to a challenge came from; empty when it was anonymous."""

    def forget(self, origin: Origin, repository: str, refused: str) -> None:
        """Drop what is remembered for a repository, if it is the header value that was refused."""

    def stored_login(self, origin: Origin, repository: str, *, cancel: CancelToken) -> str:
        """Where a login for the registry is stored; empty when there is none.

        Raises:
            ConfigError, InvalidInputError: the place or the login can't be read.
            OperationCancelledError: cancelled while a credential helper ran.
        """

    def respond(self, origin: Origin, repository: str, headers: httpx.Headers, *, cancel: CancelToken) -> str:
        """Answer a 401: read the challenges, obtain credentials or a token, return the header value to try once.

        Raises:
            AuthenticationError: no usable challenge, no credentials, or they were refused.
        """
