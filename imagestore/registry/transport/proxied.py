"""Exchanges through a proxy, by httpcore: forwarding, tunnels, SOCKS, TLS inside TLS.

The library's network is ours, so that its waits are bounded and its addresses checked like all others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

import httpcore

from imagestore.errors import ConfigError
from imagestore.pieces import PieceReader
from imagestore.registry.transport import faults, tls
from imagestore.registry.transport.translation import translating

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator

    from imagestore.config.connection import ConnectionSettings
    from imagestore.registry.transport.message import Fields, Outgoing
    from imagestore.registry.transport.network import Exchange, Resolved, Route

# More than any sensible number of parallel layers; a pull limits itself, the pool only must not be the bottleneck.
_MAX_CONNECTIONS: Final = 64
_MAX_IDLE_CONNECTIONS: Final = 16
_PROXY_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}

# The nearest class of an error decides.
_COUNTERPARTS: Final[dict[type[Exception], type[faults.TransportError]]] = {
    httpcore.ConnectTimeout: faults.ConnectWaitError,
    httpcore.TimeoutException: faults.WaitError,
    httpcore.ConnectError: faults.ConnectError,
    httpcore.NetworkError: faults.TransportError,
    httpcore.ProxyError: faults.ProxyError,
    httpcore.RemoteProtocolError: faults.InvalidAnswerError,
    httpcore.LocalProtocolError: faults.UnsendableError,
    httpcore.UnsupportedProtocol: faults.UnsendableError,
    OSError: faults.TransportError,
}


class ProxiedPool:
    """See Exchanges; thread-safe.

    Args:
        settings: TLS.
        proxy: its URL.
        route: makes connections to the proxy.
        keep_alive_seconds: how long an idle one is kept.

    Raises:
        ConfigError: the proxy needs a package that isn't installed.
    """

    def __init__(self, settings: ConnectionSettings, proxy: str, route: Route, keep_alive_seconds: float) -> None:
        self._settings = settings
        self._proxy = _parse_proxy(proxy)
        self._network = _Network(route)
        self._keep_alive_seconds = keep_alive_seconds
        self._lock = threading.Lock()
        self._pools: dict[str, _Shared] = {}
        self._replaced: set[_Shared] = set()
        self._stamp: tls.Stamp = ()

    def handle(self, request: Outgoing, exchange: Exchange) -> _Answer:
        """See Exchanges."""
        request.head()
        # httpcore writes the host into request lines as it gets it.
        host = f"[{request.host}]" if ":" in request.host else request.host
        url = httpcore.URL(scheme=request.scheme, host=host, port=request.given_port, target=request.target)
        shared = self._take(request.scheme)
        try:
            with translating(_COUNTERPARTS), self._network.serving(exchange):
                answer = shared.pool.handle_request(
                    httpcore.Request(
                        request.method,
                        url,
                        headers=list(request.fields),
                        content=request.body,
                        extensions={"timeout": request.limits},
                    )
                )
        except BaseException:
            self._give_back(shared)
            raise
        return _Answer(answer, self._network, exchange, functools.partial(self._give_back, shared))

    def close(self) -> None:
        """See Exchanges."""
        with self._lock:
            every = [*self._pools.values(), *self._replaced]
            self._pools.clear()
            self._replaced.clear()
        for shared in every:
            shared.pool.close()

    def _take(self, scheme: str) -> _Shared:
        self._retire()
        # Apart by scheme, because making a TLS context costs 20 ms that plain http needn't pay.
        with self._lock:
            found = self._pools.get(scheme)
            if found is None:
                found = self._pools[scheme] = _Shared(self._new_pool(scheme))
            found.users += 1
            return found

    def _retire(self) -> None:
        """Certificates are renewed while we run. Transfers under way keep their connections."""
        stamp = tls.stamp_of(self._settings)
        with self._lock:
            if stamp == self._stamp:
                return
            former, self._pools, self._stamp = self._pools.values(), {}, stamp
            self._replaced.update(shared for shared in former if shared.users)
            unused = [shared for shared in former if not shared.users]
        for shared in unused:
            shared.pool.close()

    def _give_back(self, shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            is_over = not shared.users and shared in self._replaced
            if is_over:
                self._replaced.remove(shared)
        if is_over:
            shared.pool.close()

    def _new_pool(self, scheme: str) -> httpcore.ConnectionPool:
        return httpcore.ConnectionPool(
            ssl_context=tls.make_context(self._settings) if scheme == "https" else None,
            proxy=self._proxy,
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
            keepalive_expiry=self._keep_alive_seconds,
            network_backend=self._network,
        )


class _Shared:
    """A pool of the library's, and how many answers of it are not closed."""

    def __init__(self, pool: httpcore.ConnectionPool) -> None:
        self.pool = pool
        self.users = 0


class _Answer:
    """See Incoming."""

    def __init__(
        self, answer: httpcore.Response, network: _Network, exchange: Exchange, finish: Callable[[], None]
    ) -> None:
        self.status = answer.status
        self.fields: Fields = tuple(answer.headers)
        self._answer = answer
        self._network = network
        self._exchange = exchange
        self._reader = PieceReader(answer.iter_stream())
        self._finish: Callable[[], None] | None = finish

    def readinto(self, buffer: memoryview) -> int:
        with translating(_COUNTERPARTS), self._network.serving(self._exchange):
            return self._reader.readinto(buffer)

    def close(self) -> None:
        # Giving a connection back can only fail when it is broken, and then the pool has dropped it.
        with contextlib.suppress(*_COUNTERPARTS):
            self._answer.close()
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class _Network(httpcore.NetworkBackend):
    """The library's network: which exchange a call belongs to is known by its thread."""

    def __init__(self, route: Route) -> None:
        self._inner = httpcore.SyncBackend()
        self._route = route
        self._local = threading.local()

    @contextlib.contextmanager
    def serving(self, exchange: Exchange) -> Iterator[None]:
        """Whatever this thread reads or writes inside the block belongs to the exchange."""
        before = getattr(self._local, "exchange", None)
        self._local.exchange = exchange
        try:
            yield
        finally:
            self._local.exchange = before

    @property
    def current(self) -> Exchange | None:
        """The exchange this thread works for; None when a pool tidies up on its own."""
        return getattr(self._local, "exchange", None)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        exchange = self.current
        assert exchange is not None
        exchange.is_reaching_proxy = True
        options = list(socket_options or ())

        def connect(to: Resolved, seconds: float | None) -> httpcore.NetworkStream:
            with translating(_COUNTERPARTS):
                return self._inner.connect_tcp(str(to[1][0]), port, seconds, local_address, options)

        return _Stream(self._route.dial(host, port, timeout, exchange, connect=connect), self)


class _Stream(httpcore.NetworkStream):
    """A connection of the library's whose every wait is bounded by the exchange it serves at the moment."""

    def __init__(self, inner: httpcore.NetworkStream, network: _Network) -> None:
        self._inner = inner
        self._network = network

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange = self._begin()
        if exchange is None:
            return self._inner.read(max_bytes, timeout)
        started = time.monotonic()
        data = self._inner.read(max_bytes, exchange.allowed_seconds(timeout))
        if not data:
            exchange.saw_end = True
        exchange.note_read(len(data), time.monotonic() - started)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        exchange = self._begin()
        if exchange is not None:
            exchange.is_reaching_proxy = False
        self._inner.write(buffer, timeout if exchange is None else exchange.allowed_seconds(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        exchange = self._begin()
        allowed = timeout if exchange is None else exchange.allowed_seconds(timeout)
        name = (server_hostname or "").strip("[]") or None
        return _Stream(self._inner.start_tls(ssl_context, name, allowed), self._network)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    def _begin(self) -> Exchange | None:
        exchange, connection = self._network.current, self._inner.get_extra_info("socket")
        if exchange is not None and isinstance(connection, socket.socket):
            exchange.use(connection)
        return exchange


def _parse_proxy(url: str) -> httpcore.Proxy:
    parts = urlsplit(url)
    if parts.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ConfigError(
            "proxy: socks proxies need the package 'socksio', which is not installed",
            hint="install it beside imagestore, or use an http proxy",
        )
    auth = (unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or "")) if parts.username else None
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return httpcore.Proxy(f"{parts.scheme}://{host}:{parts.port or _PROXY_PORTS[parts.scheme]}/", auth=auth)
