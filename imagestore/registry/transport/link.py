"""A connection whose every wait is bounded by the exchange it serves at the moment."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, Final

from imagestore.registry.transport.faults import ConnectError, ConnectWaitError, TransportError, WaitError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from imagestore.registry.transport.network import Exchange
    from imagestore.registry.transport.secure import SecureSocket

# Each change of a socket's time limit is a system call.
_WORTH_CHANGING: Final = 1.25
#: When a new connection on which nothing came yet counts as silent.
SILENT_SECONDS: Final = 1.0
#: A slow connection is read for so long at a time, so that progress is seen and what came is kept.
_PATIENCE_SECONDS: Final = 0.1


class Link:
    """One connection; serves one exchange at a time.

    Args:
        connection: connected.
        on_silence: called once if the peer says nothing at first.
    """

    def __init__(self, connection: socket.socket, on_silence: Callable[[], None] | None = None) -> None:
        self._socket = connection
        self._tls: SecureSocket | None = None
        #: What it was secured with.
        self.context: ssl.SSLContext | None = None
        self._read: Callable[[memoryview], int] = connection.recv_into
        self._write: Callable[[memoryview], int] = connection.send
        # How long a wait for a single byte may last, and until when all of them together.
        self._seconds = 0.0
        self._until: float | None = None
        self._exchange: Exchange | None = None
        self._limit: float | None = connection.gettimeout()
        self._on_silence = on_silence
        # What ended a read that had bytes to hand out first.
        self._failure: TransportError | None = None

    def serve(self, exchange: Exchange) -> None:
        """From now on it belongs to this exchange."""
        self._exchange = exchange
        # An earlier deadline's: to give up that soon would look as if the peer were late.
        self._limit = None

    def rest(self) -> None:
        """It belongs to nobody, and is kept."""
        self._exchange = None
        if self._tls is not None:
            self._tls.rest()

    def check(self) -> None:
        """Raise when the exchange it serves was cancelled or is past its deadline."""
        if self._exchange is not None:
            self._exchange.check()

    @property
    def is_readable(self) -> bool:
        """Whether something is to be read: bytes nobody asked for, or the peer's good-bye."""
        if self._failure is not None or (self._tls is not None and self._tls.has_received):
            return True
        return self._has_come(0.0)

    def secure(self, context: ssl.SSLContext, host: str, seconds: float) -> None:
        """Shake hands for TLS, in so many seconds at most.

        Raises:
            ConnectError, ConnectWaitError: no TLS connection.
            OperationCancelledError: cancelled, or past the deadline.
        """
        from imagestore.registry.transport.secure import SecureSocket

        self._seconds, self._until = seconds, time.monotonic() + seconds
        try:
            self._tls = SecureSocket(self._receive_raw, self._send_raw, context, host)
            self._tls.handshake()
        except TimeoutError as error:
            raise ConnectWaitError(str(error)) from error
        except (OSError, ValueError) as error:  # ValueError: a host that no certificate can name
            raise ConnectError(error) from error
        self._until, self.context = None, context
        self._read, self._write = self._tls.recv_into, self._tls.send

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
                rest = rest[self._write(rest) :]
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
        return self._receive(buffer, seconds, patience_seconds=0.0)

    def fill(self, buffer: memoryview, seconds: float) -> int:
        """Read until the buffer is full, the peer closed its side, or a moment is over; 0 only at the end.

        What came before something failed is handed out first.

        Raises:
            as receive_into().
        """
        return self._receive(buffer, seconds, patience_seconds=_PATIENCE_SECONDS)

    def _receive(self, buffer: memoryview, seconds: float, *, patience_seconds: float) -> int:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        exchange = self._begin(seconds if self._on_silence is None else self._first_wait(seconds))
        filled, size = 0, len(buffer)
        started = now = time.monotonic()
        try:
            # Over TLS a record comes at a time, 16 KiB: nothing else may be done for each.
            while count := self._read(buffer[filled:]):
                filled += count
                now = time.monotonic()
                if filled == size or now - started >= patience_seconds:
                    break
            else:
                exchange.saw_end = True
        except OSError as error:
            kind = WaitError if isinstance(error, TimeoutError) else TransportError
            failure = kind(str(error) if kind is WaitError else error)
            failure.__cause__ = error
            if not filled:
                raise failure from error
            self._failure = failure
        if self._tls is None:
            exchange.note_read(filled, now - started)
        return filled

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.close()
        # It refers to us, and holds half a mebibyte, which would wait for the garbage collector.
        self._tls = None
        self._read, self._write = self._socket.recv_into, self._socket.send

    def _receive_raw(self, buffer: memoryview) -> int:
        if self._on_silence is not None:
            self._first_wait(self._seconds)
        exchange = self._begin(self._seconds)
        started = time.monotonic()
        count = self._socket.recv_into(buffer)
        exchange.note_read(count, time.monotonic() - started)
        return count

    def _send_raw(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._begin(self._seconds)
            rest = rest[self._socket.send(rest) :]

    def _first_wait(self, seconds: float) -> float:
        """Await the peer's first words for a moment, and tell if there are none; the seconds that are left."""
        exchange, (on_silence, self._on_silence) = self._begin(seconds), (self._on_silence, None)
        allowed = exchange.allowed_seconds(seconds)
        if on_silence is None or self._has_come(SILENT_SECONDS if allowed is None else min(allowed, SILENT_SECONDS)):
            return seconds
        exchange.check()
        on_silence()
        return max(0.001, seconds - SILENT_SECONDS)

    def _has_come(self, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def _begin(self, seconds: float) -> Exchange:
        """Before each wait: whose it is, and how long it may last."""
        exchange = self._exchange
        self._seconds = seconds
        if self._until is not None:
            seconds = min(seconds, self._until - time.monotonic())
        assert exchange is not None
        exchange.use(self._socket)
        allowed, limit = exchange.allowed_seconds(seconds), self._limit
        if allowed is None or limit is None or not allowed / _WORTH_CHANGING <= limit <= allowed:
            self._socket.settimeout(allowed)
            self._limit = allowed
        return exchange
