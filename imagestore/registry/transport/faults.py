"""What can go wrong with an exchange on the network; never leaves this package (``http.py`` words it for callers)."""

from __future__ import annotations

from typing import Final

#: What to do about a proxy that answers 407.
PROXY_LOGIN: Final = (
    "it wants a login, or another one than it was given: http://USER:PASSWORD@HOST:PORT in HTTP_PROXY or HTTPS_PROXY"
)


class TransportError(Exception):
    """The connection broke."""


class UnsendableError(TransportError):
    """The request can't be put on the wire."""


class InvalidAnswerError(TransportError):
    """What came is no HTTP."""


class OtherProtocolError(InvalidAnswerError):
    """What came doesn't even begin as HTTP does."""


class StaleError(TransportError):
    """A connection that was kept turned out to be closed before anything of an answer came."""


class WaitError(TransportError):
    """Nothing came for too long."""


class ConnectWaitError(WaitError):
    """No connection for too long."""


class ConnectError(TransportError):
    """No connection."""


class ProxyError(TransportError):
    """The proxy refused."""
