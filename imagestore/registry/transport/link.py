"""A connection whose every wait is bounded by the exchange it serves at the moment."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, Final

from imagestore.registry.transport.faults import ConnectError, ConnectWaitError, TransportError, WaitError

if TYPE_CHECKING:
    import ssl

    from imagestore.registry.transport.network import Exchange

# Each change of a socket's time limit is a system call.
_WORTH_CHANGING: Final = 1.25


class Link:
    """One connection; serves one exchange at a time.

    Args:
        connection: connected.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._tls: ssl.SSLSocket | None = None
        self._exchange: Exchange | None = None
        self._limit: float | None = connection.gettimeout()

    def serve(self, exchange: Exchange) -> None:
        """From now on it belongs to this exchange."""
        self._exchange = exchange

    @property
    def is_readable(self) -> bool:
        """Whether something is to be read: bytes nobody asked for, or the peer's good-bye."""
        if self._tls is not None and self._tls.pending():
            return True
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def secure(self, context: ssl.SSLContext, host: str, seconds: float) -> None:
        """Shake hands for TLS.

        Raises:
            ConnectError, ConnectWaitError: no TLS connection.
            OperationCancelledError: cancelled, or past the deadline.
        """
        self._begin(seconds)
        try:
            self._socket = self._tls = context.wrap_socket(self._socket, server_hostname=host)
        except TimeoutError as error:
            raise ConnectWaitError(str(error)) from error
        except OSError as error:
            raise ConnectError(error) from error
        self._limit = self._socket.gettimeout()

    def send(self, data: bytes, seconds: float) -> None:
        """Write all of it.

        Raises:
            WaitError, TransportError: the peer takes nothing, or the connection broke.
            OperationCancelledError: cancelled, or past the deadline.
        """
        rest = memoryview(data)
        while rest:
            self._begin(seconds)
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError as error:
                raise WaitError(str(error)) from error
            except OSError as error:
                raise TransportError(error) from error

    def receive_into(self, buffer: memoryview, seconds: float) -> int:
        """Read what is there; 0 when the peer closed its side.

        Raises:
            WaitError, TransportError: nothing comes, or the connection broke.
            OperationCancelledError: cancelled, or past the deadline.
        """
        exchange = self._begin(seconds)
        started = time.monotonic()
        try:
            count = self._socket.recv_into(buffer)
        except TimeoutError as error:
            raise WaitError(str(error)) from error
        except OSError as error:
            raise TransportError(error) from error
        if not count:
            exchange.saw_end = True
        exchange.note_read(count, time.monotonic() - started)
        return count

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.close()

    def _begin(self, seconds: float) -> Exchange:
        """Before each wait: whose it is, and how long it may last."""
        exchange = self._exchange
        assert exchange is not None
        exchange.use(self._socket)
        allowed, limit = exchange.allowed_seconds(seconds), self._limit
        if allowed is None or limit is None or not allowed / _WORTH_CHANGING <= limit <= allowed:
            self._socket.settimeout(allowed)
            self._limit = allowed
        return exchange
