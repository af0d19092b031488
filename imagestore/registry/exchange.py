"""One HTTP exchange as plain values, so that nothing but ``registry/transport/http.py`` knows the HTTP library.

Everything above (authentication, retry, redirects, the client) is written against these types, and tested with a fake
sender of ten lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from imagestore.cancel import CancelToken


@dataclass(frozen=True, slots=True)
class Headers:
    """Header fields in order, names compared without case; a name may repeat.

    >>> Headers((("Link", "a"), ("link", "b"))).get_all("LINK")
    ('a', 'b')
    """

    items: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        """First value of a field; empty when it isn't there."""
        wanted = name.lower()
        return next((value for key, value in self.items if key.lower() == wanted), "")

    def get_all(self, name: str) -> tuple[str, ...]:
        """Every value of a field, in order."""
        wanted = name.lower()
        return tuple(value for key, value in self.items if key.lower() == wanted)


@dataclass(frozen=True, slots=True)
class Request:
    """What to send. ``url`` is absolute; ``headers`` hold no secret in their repr (see __repr__)."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.headers)
        return f"Request({self.method} {self.url.partition('?')[0]}, headers: {names})"


class Response(Protocol):
    """An answer whose body has not been read. Close it, or use it as a context manager."""

    @property
    def status(self) -> int:
        """HTTP status code."""

    @property
    def headers(self) -> Headers:
        """Header fields as received."""

    @property
    def url(self) -> str:
        """Absolute address that answered."""

    @property
    def proxy(self) -> str:
        """Address of the proxy that may have answered instead, without its login; empty where none can have."""

    def chunks(self) -> Iterator[bytes]:
        """Body bytes as they come off the wire, in sizes of the transport's choosing; never decoded."""

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes of the body into a buffer; 0 only at its end. Not to be mixed with chunks()."""

    def read(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            ProtocolError: the body is longer than the limit.
        """

    def close(self) -> None:
        """Give the connection back, or drop it when the body wasn't read to its end."""

    def __enter__(self) -> Self:
        """Use as a context manager that closes."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Close."""


class Sender(Protocol):
    """Sends one request, follows nothing, retries nothing."""

    def send(self, request: Request, *, cancel: CancelToken) -> Response:
        """Exchange one request for a response.

        Raises:
            RegistryUnavailableError: no connection, TLS failure, timeout, or the peer hung up.
            ProtocolError: the answer is no HTTP, or the request can't be sent as it is.
            OperationCancelledError: cancelled while waiting.
        """


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what a secret is bound to (RFC 6454).

    >>> str(Origin("https", "registry.example", 443))
    'https://registry.example'
    """

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        default = {"https": 443, "http": 80}.get(self.scheme)
        return f"{self.scheme}://{shown}" + ("" if self.port == default else f":{self.port}")


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

    def respond(self, origin: Origin, repository: str, headers: Headers, *, cancel: CancelToken) -> str:
        """Answer a 401: read the challenges, obtain credentials or a token, return the header value to try once.

        Raises:
            AuthenticationError: no usable challenge, no credentials, or they were refused.
        """
