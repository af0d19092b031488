"""Direct connections to hosts, as a transport of httpx.

A connection is kept for the next request if the answer allows it and its body was read exactly to its end. It is not
used again if the peer closed it while idle, or if anything arrived on it without a request.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.registry.transport import network, tls
from imagestore.registry.transport.connection import Connection, RoundTrip
from imagestore.registry.transport.network import EXCHANGE, Exchange
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

_MAX_IDLE_CONNECTIONS: Final = 16
_PORTS: Final = {"http": 80, "https": 443}
# Asking again changes nothing (RFC 9110, section 9.2.2).
_IDEMPOTENT: Final = frozenset({"GET", "HEAD"})


class DirectTransport(httpx.BaseTransport):
    """Connects to the hosts that requests name; thread-safe.

    A request's ``timeout`` extension counts, and its exchange (see network.EXCHANGE), which brings cancellation.

    Args:
        context: for https; without it only plain http is sent.
        public_only: refuse addresses that aren't public; for hosts that a server named.
        unix_socket: connect there, whatever the host (for servers under test); empty for TCP.
        keep_alive_seconds: how long an idle connection is kept.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        *,
        public_only: bool = False,
        unix_socket: str = "",
        keep_alive_seconds: float = 30.0,
    ) -> None:
        self._context = context
        self._public_only = public_only
        self._unix_socket = unix_socket
        self._keep_alive_seconds = keep_alive_seconds
        self._lock = threading.Lock()
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx.BaseTransport; the answer's body has not been read.

        Raises:
            httpx.TransportError: no connection, or it broke.
            ProtocolError: the host has no allowed address.
        """
        exchange = request.extensions.get(EXCHANGE) or Exchange(CancelToken())
        url = request.url
        origin = (url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
        kept = self._take(origin)
        if kept is not None:
            try:
                return RoundTrip(kept, request, exchange, self._end).answer()
            except (httpx.ReadError, httpx.RemoteProtocolError):
                # The peer closed it, or sent something that belongs to an earlier answer.
                exchange.check()
                if request.method not in _IDEMPOTENT:
                    raise
        return RoundTrip(self._connected(origin, request, exchange), request, exchange, self._end).answer()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their answers are."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, deque()
        _close_all(idle)

    def _connected(self, origin: tuple[str, str, int], request: httpx.Request, exchange: Exchange) -> Connection:
        seconds: float = request.extensions.get("timeout", {}).get("connect") or network.CONNECT_SECONDS
        try:
            return self._dialled(origin, seconds, exchange)
        except httpx.ConnectError as error:
            if self._context is None or not tls.add_bundle(self._context, error):
                raise
        exchange.is_in_handshake = False
        return self._dialled(origin, seconds, exchange)

    def _dialled(self, origin: tuple[str, str, int], seconds: float, exchange: Exchange) -> Connection:
        scheme, host, port = origin
        until = time.monotonic() + seconds
        if self._unix_socket:
            connected = network.connect_unix(self._unix_socket, seconds, exchange)
        else:
            connected = network.connect(host, port, seconds, exchange, public_only=self._public_only)
        connection = Connection(connected, origin)
        if scheme == "https":
            try:
                if self._context is None:
                    raise httpx.UnsupportedProtocol("https without a TLS context")
                connection.secure(self._context, max(0.001, until - time.monotonic()), exchange)
            except BaseException:
                connection.close()
                raise
        return connection

    def _take(self, origin: tuple[str, str, int]) -> Connection | None:
        while True:
            with self._lock:
                expired = self._expired()
                found = next((each for each in reversed(self._idle) if each.origin == origin), None)
                if found is not None:
                    self._idle.remove(found)
            _close_all(expired)
            # Readable before a request: the peer closed it, or sent something without a request.
            if found is None or not found.is_readable:
                return found
            found.close()

    def _end(self, connection: Connection, is_reusable: bool) -> None:
        surplus = [connection]
        if is_reusable:
            connection.idle_since = time.monotonic()
            with self._lock:
                if not self._is_closed:
                    self._idle.append(connection)
                    surplus = self._expired()
                    if len(self._idle) > _MAX_IDLE_CONNECTIONS:
                        surplus.append(self._idle.popleft())
        _close_all(surplus)

    def _expired(self) -> list[Connection]:
        """Take out connections that were idle for too long; the oldest are first."""
        expired, oldest = [], time.monotonic() - self._keep_alive_seconds
        while self._idle and self._idle[0].idle_since < oldest:
            expired.append(self._idle.popleft())
        return expired


def _close_all(connections: Iterable[Connection]) -> None:
    for connection in connections:
        connection.close()
