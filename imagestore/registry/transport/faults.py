"""What can go wrong with an exchange on the network; never leaves this package (``http.py`` words it for callers)."""

from __future__ import annotations


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
