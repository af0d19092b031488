"""Requests through a proxy, by httpx's own transport: forwarding, tunnels, SOCKS.

What differs from direct connections: names are resolved (that of the proxy here, those of registries by the proxy)
without a way to end it, a limit of time holds for each read, and a response head that a kept connection brings is
waited for until that limit also after a cancellation. From the head on a cancellation ends every wait.
"""

from __future__ import annotations

import base64
import importlib.util
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

import httpx

from imagestore.errors import ConfigError
from imagestore.registry.transport.network import EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.registry.transport.network import Exchange

# More than any sensible number of parallel layers; a pull limits itself, the pool only must not be the bottleneck.
_MAX_CONNECTIONS: Final = 64
_MAX_IDLE_CONNECTIONS: Final = 16
_PROXY_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_HANDSHAKE: Final = ".start_tls.started"
_HANDSHAKE_OVER: Final = ".start_tls.complete"
_CONNECTED: Final = (".connect_tcp.complete", _HANDSHAKE_OVER)
_REACHED: Final = (".send_request_headers.started", ".setup_socks5_connection.started")


class ProxiedTransport(httpx.BaseTransport):
    """httpx's transport through a proxy; closed once the answers are that come through it. Thread-safe.

    Args:
        proxy: its URL, as proxies.py gives it.
        context: for https; without it only plain http is sent.
        keep_alive_seconds: how long an idle connection is kept.

    Raises:
        ConfigError: the proxy needs a package that isn't installed.
    """

    def __init__(self, proxy: str, context: ssl.SSLContext | None, *, keep_alive_seconds: float = 30.0) -> None:
        self._inner = httpx.HTTPTransport(
            # One that trusts nothing where there is none: httpx's own would take time to load.
            verify=context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            proxy=_parse_proxy(proxy),
            limits=httpx.Limits(
                max_connections=_MAX_CONNECTIONS,
                max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
                keepalive_expiry=keep_alive_seconds,
            ),
        )
        self._lock = threading.Lock()
        self._users = 0
        self._is_closed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx.BaseTransport."""
        exchange: Exchange = request.extensions[EXCHANGE]
        if ":" in request.url.host:
            # httpx names these to proxies without their brackets, which no proxy understands.
            raise ConfigError(
                f"{request.url.host}: a registry with an IPv6 address can't be asked through a proxy",
                hint="use its name, or add the address to NO_PROXY",
            )
        limits = {name: exchange.allowed_seconds(each) for name, each in request.extensions["timeout"].items()}
        request.extensions = {**request.extensions, "timeout": limits, "trace": _Trace(exchange)}
        with self._lock:
            self._users += 1
        try:
            answer = self._inner.handle_request(request)
        except BaseException:
            self._leave()
            raise
        assert isinstance(answer.stream, httpx.SyncByteStream)
        body = _Body(answer.stream, self._leave)
        try:
            _use(exchange, answer.extensions.get("network_stream"))
        except BaseException:
            body.close()
            raise
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body, extensions=answer.extensions)

    def close(self) -> None:
        """Close the connections, at once or when the last answer is closed."""
        with self._lock:
            self._is_closed = True
            is_unused = not self._users
        if is_unused:
            self._inner.close()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            is_over = self._is_closed and not self._users
        if is_over:
            self._inner.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, on_close: Callable[[], None]) -> None:
        self._inner = inner
        self._on_close: Callable[[], None] | None = on_close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._inner)

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            try:
                self._inner.close()
            finally:
                on_close()


class _Trace:
    """What httpx tells of a request's connection (its ``trace`` extension): which socket, and whether the proxy was
    reached."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        exchange.is_reaching_proxy = True

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith((_HANDSHAKE, _HANDSHAKE_OVER)):
            self._exchange.is_in_handshake = event.endswith(_HANDSHAKE)
        if event.endswith(_REACHED):
            self._exchange.is_reaching_proxy = False
        elif event.endswith(_CONNECTED):
            _use(self._exchange, info["return_value"])


def _use(exchange: Exchange, stream: Any) -> None:
    connection = stream.get_extra_info("socket") if stream is not None else None
    if isinstance(connection, socket.socket):
        exchange.use(connection)


def _parse_proxy(url: str) -> httpx.Proxy:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    bare = f"{parts.scheme}://{host}:{parts.port or _PROXY_PORTS[parts.scheme]}"
    user, password = unquote_to_bytes(parts.username or ""), unquote_to_bytes(parts.password or "")
    if parts.scheme.startswith("socks"):
        if importlib.util.find_spec("socksio") is None:
            raise ConfigError(
                "proxy: socks proxies need the package 'socksio', which is not installed",
                hint="install it next to imagestore, or use an http proxy",
            )
        return httpx.Proxy(bare, auth=(user.decode(), password.decode()) if user else None)
    if not user:
        return httpx.Proxy(bare)
    # Written here, since the bytes of a login need be no UTF-8.
    login = base64.b64encode(user + b":" + password).decode("ascii")
    return httpx.Proxy(bare, headers={"Proxy-Authorization": f"Basic {login}"})
