"""One connection to a host, HTTP/1.1 with h11 as protocol machine; carries one exchange at a time.

The bytes of a body of known length go from the socket into the caller's buffer: h11 reads the head, and from there on
the bytes are counted here. All other bodies (chunked, or until the connection ends) come through h11.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import h11
import httpx

from imagestore.registry.transport.network import is_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.registry.transport.network import Exchange

#: Where a response's extensions have a body that can be read into buffers (see SizedBody).
BODY: Final = "imagestore.body"
#: A head may be as long, those of informational answers before it included.
MAX_HEAD_BYTES: Final = 100 * 1024
_PIECE_BYTES: Final = 64 * 1024
_BEGINNING: Final = b"HTTP/"
# A slow connection is read for at most so long at a time, so that progress is seen and received bytes are kept.
_PATIENCE_SECONDS: Final = 0.1


class Connection:
    """A connected socket; every wait on it is bounded by an exchange."""

    def __init__(self, connected: socket.socket, origin: tuple[str, str, int]) -> None:
        self._socket = connected
        self.origin = origin
        #: When it became idle, in seconds of the monotonic clock.
        self.idle_since = 0.0

    @property
    def is_readable(self) -> bool:
        """Whether something can be read now: bytes, or the end of the connection."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return is_ready(self._socket, 0, is_writing=False)

    def secure(self, context: ssl.SSLContext, seconds: float, exchange: Exchange) -> None:
        """Do the TLS handshake, in so many seconds at most."""
        try:
            wrapped = context.wrap_socket(self._socket, server_hostname=self.origin[1], do_handshake_on_connect=False)
            self._socket = wrapped
            self._begin(seconds, exchange)
            exchange.is_in_handshake = True
            wrapped.do_handshake()
            exchange.is_in_handshake = False
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except (OSError, ValueError) as error:  # ValueError: a host that no certificate can name
            raise httpx.ConnectError(str(error)) from error

    def send(self, data: bytes, seconds: float | None, exchange: Exchange) -> None:
        """Write all of it."""
        self._begin(seconds, exchange)
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise httpx.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpx.WriteError(str(error)) from error

    def receive(self, seconds: float | None, exchange: Exchange) -> bytes:
        """Read what is there; empty when the peer closed its side."""
        self._begin(seconds, exchange)
        with _reading():
            return self._socket.recv(_PIECE_BYTES)

    def fill(self, buffer: memoryview, seconds: float | None, exchange: Exchange) -> int:
        """Read what is there into a buffer, as far as it fits; 0 only at the end."""
        self._begin(seconds, exchange)
        with _reading():
            filled = self._socket.recv_into(buffer)
        # More may be there already: over TLS one record arrives at a time, 16 KiB.
        self._socket.settimeout(0)
        until = time.monotonic() + _PATIENCE_SECONDS
        while 0 < filled < len(buffer) and time.monotonic() < until:
            try:
                count = self._socket.recv_into(buffer[filled:])
            except OSError:
                # Nothing, or a fault: what came before is handed out first, and the next read fails too.
                break
            if not count:
                break
            filled += count
        return filled

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.close()

    def _begin(self, seconds: float | None, exchange: Exchange) -> None:
        """Before each wait: note the socket for cancellation, and set how long the wait may last."""
        exchange.use(self._socket)
        self._socket.settimeout(exchange.allowed_seconds(seconds))


class RoundTrip:
    """One request and its answer over a connection, which carries nothing else until the answer's body is closed.

    Then ``on_end`` is called with the connection, and whether it may carry another round trip.
    """

    def __init__(
        self,
        connection: Connection,
        request: httpx.Request,
        exchange: Exchange,
        on_end: Callable[[Connection, bool], None],
    ) -> None:
        self._connection = connection
        self._exchange = exchange
        self._on_end = on_end
        limits = request.extensions.get("timeout", {})
        self._read_seconds: float | None = limits.get("read")
        self._write_seconds: float | None = limits.get("write")
        self._machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request = request
        self._is_sent = False
        self._received = 0
        self._beginning = b""

    def answer(self) -> httpx.Response:
        """Send the request and read the head of the answer; informational answers are skipped.

        Raises:
            httpx.TransportError: the connection failed, and is closed.
        """
        try:
            self._send()
            while not isinstance(event := self._next_of_head(), h11.Response):
                pass
            if not event.http_version.startswith(b"1."):
                raise httpx.RemoteProtocolError("expected HTTP/1.1, found another version")
            body = self._body(event)
        except BaseException:
            self._connection.close()
            raise
        return httpx.Response(
            event.status_code,
            headers=event.headers.raw_items(),
            stream=body,
            extensions={"http_version": b"HTTP/" + event.http_version, "reason_phrase": event.reason, BODY: body},
        )

    def next_event(self) -> h11.Event:
        """The next part of the body, or its end."""
        started = time.monotonic()
        while (event := self._parsed()) is None:
            # A peer may send the framing of chunks slowly, without a byte of the body.
            if self._read_seconds is not None and time.monotonic() - started > self._read_seconds:
                raise httpx.ReadTimeout("nothing of the body came")
            data = self._connection.receive(self._read_seconds, self._exchange)
            if not data:
                # A cancellation ends the connection too, which is no end of a body.
                self._exchange.check()
            self._machine.receive_data(data)
        return event

    def fill(self, buffer: memoryview) -> int:
        """Read bytes of the body past h11; 0 only at the connection's end."""
        return self._connection.fill(buffer, self._read_seconds, self._exchange)

    def end(self, *, is_whole: bool) -> None:
        """Give the connection back for the next request, or close it."""
        # If the head says that the peer closes the connection, h11's state for our side isn't DONE.
        may_stay = self._is_sent and self._machine.our_state is h11.DONE and not self._machine.trailing_data[0]
        self._on_end(self._connection, is_whole and may_stay)

    def _send(self) -> None:
        try:
            for part in _written(self._machine, self._request):
                self._connection.send(part, self._write_seconds, self._exchange)
        except (httpx.WriteError, httpx.WriteTimeout) as error:
            # A peer may refuse before it has read everything, and then close or stop reading; its answer may be there.
            self._exchange.check()
            if isinstance(error, httpx.WriteTimeout) and not self._connection.is_readable:
                raise
        else:
            self._is_sent = True

    def _next_of_head(self) -> h11.Event:
        while (event := self._parsed()) is None:
            if self._received > MAX_HEAD_BYTES:
                raise httpx.RemoteProtocolError(f"a head of more than {MAX_HEAD_BYTES} bytes")
            data = self._connection.receive(self._read_seconds, self._exchange)
            if not data:
                raise httpx.ReadError("peer closed connection without sending a whole answer")
            # h11 waits for a whole head; a peer of another protocol may never send one.
            self._beginning += data[: len(_BEGINNING) - len(self._beginning)]
            if not _BEGINNING.startswith(self._beginning):
                raise httpx.RemoteProtocolError("expected a status line, found something else")
            self._received += len(data)
            self._machine.receive_data(data)
        return event

    def _parsed(self) -> h11.Event | None:
        try:
            event = self._machine.next_event()
        except h11.RemoteProtocolError as error:
            # After the colon it quotes what came, which may hold a secret.
            raise httpx.RemoteProtocolError(str(error).partition(":")[0]) from error
        return event if isinstance(event, h11.Event) else None

    def _body(self, head: h11.Response) -> SizedBody | EventBody:
        names = dict(head.headers)
        length = names.get(b"content-length")
        if b"transfer-encoding" in names:
            # With a length too, a proxy in between may see another end than we do (RFC 9112, section 6.3).
            return EventBody(self, may_stay=length is None)
        first = self._parsed()
        if isinstance(first, h11.EndOfMessage):
            return SizedBody(self, b"", 0)
        received = bytes(first.data) if isinstance(first, h11.Data) else b""
        return EventBody(self, received) if length is None else SizedBody(self, received, int(length))


class SizedBody(httpx.SyncByteStream):
    """A body of known length: its bytes go from the socket into the caller's buffer."""

    def __init__(self, round_trip: RoundTrip, received: bytes, length: int) -> None:
        self._round_trip: RoundTrip | None = round_trip
        self._received = memoryview(received)
        self._remaining = length

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer; 0 only at the end."""
        wanted = min(len(buffer), self._remaining)
        filled = min(wanted, len(self._received))
        if filled:
            buffer[:filled] = self._received[:filled]
            self._received = self._received[filled:]
        elif wanted:
            if self._round_trip is None:
                raise httpx.StreamClosed
            filled = self._round_trip.fill(buffer[:wanted])
            if not filled:
                raise httpx.ReadError(f"peer closed connection with {self._remaining} bytes of the body to come")
        self._remaining -= filled
        return filled

    def __iter__(self) -> Iterator[bytes]:
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while count := self.readinto(buffer):
            yield bytes(buffer[:count])

    def close(self) -> None:
        """See httpx.SyncByteStream."""
        round_trip, self._round_trip = self._round_trip, None
        if round_trip is not None:
            # Bytes that arrived with the head are no longer on the connection, read or not.
            round_trip.end(is_whole=self._remaining == len(self._received))


class EventBody(httpx.SyncByteStream):
    """A body in chunks, or until the connection ends: h11 finds its end.

    The connection is reused (``may_stay``) only if the body's end is certainly that of the answer.
    """

    def __init__(self, round_trip: RoundTrip, received: bytes = b"", *, may_stay: bool = True) -> None:
        self._round_trip: RoundTrip | None = round_trip
        self._received = received
        self._may_stay = may_stay
        self._is_over = False

    def __iter__(self) -> Iterator[bytes]:
        if self._received:
            yield self._received
        while not self._is_over:
            if self._round_trip is None:
                raise httpx.StreamClosed
            event = self._round_trip.next_event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            else:
                self._is_over = True

    def close(self) -> None:
        """See httpx.SyncByteStream."""
        round_trip, self._round_trip = self._round_trip, None
        if round_trip is not None:
            round_trip.end(is_whole=self._is_over and self._may_stay)


def _written(machine: h11.Connection, request: httpx.Request) -> Iterator[bytes]:
    """A request as bytes: the head with as much of the body as fits next to it, then what follows.

    Raises:
        httpx.LocalProtocolError: it can't be written as valid HTTP.
    """
    assert isinstance(request.stream, httpx.SyncByteStream)
    try:
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        pending = machine.send(head)
        for piece in request.stream:
            if len(pending) + len(piece) > _PIECE_BYTES:
                yield pending
                pending = b""
            pending += machine.send(h11.Data(data=piece))
        yield pending + machine.send(h11.EndOfMessage())
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError("the request can't be sent as it is") from error


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except OSError as error:
        raise httpx.ReadError(str(error)) from error
