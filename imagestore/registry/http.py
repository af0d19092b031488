"""Every HTTP byte of a pull passes here; the only module (with ``network.py`` below it) that knows the HTTP library.

What it adds to the library: bytes exactly as stored (identity coding, never decoded), no redirects, no cookies, no
credentials from the environment, proxies by our own rules, limits on the response head, time limits that a slow peer can't
stretch, cancellation that ends a blocked read, and the package's own errors with addresses that hold no secret.

Bodies are handed out in the pieces the transport reads; asking the library for another chunk size costs two thirds of the
throughput.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpcore
import httpx

from imagestore._version import __version__
from imagestore.config.hosts import ConnectionSettings
from imagestore.errors import ConfigError, ProtocolError, RegistryUnavailableError
from imagestore.registry import addresses, tls, urls
from imagestore.registry.exchange import Headers, Origin, Request, Response, Sender
from imagestore.registry.network import Exchange, Network
from imagestore.registry.proxies import ProxyRules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from imagestore.cancel import CancelToken

_log = logging.getLogger(__name__)

USER_AGENT: Final = f"imagestore/{__version__}"
_MAX_HEADER_COUNT: Final = 256
_MAX_HEADER_BYTES: Final = 64 * 1024
# More than any sensible number of parallel layers; the pull limits itself, the pool only must not be the bottleneck.
_MAX_CONNECTIONS: Final = 64
_MAX_IDLE_CONNECTIONS: Final = 16

_TIMEOUTS: Final = (httpx.TimeoutException, httpcore.TimeoutException)
_CONNECT_TIMEOUTS: Final = (httpx.ConnectTimeout, httpcore.ConnectTimeout)
_CONNECT_ERRORS: Final = (httpx.ConnectError, httpcore.ConnectError)
_PROXY_ERRORS: Final = (httpx.ProxyError, httpcore.ProxyError)
_BROKEN_ANSWERS: Final = (httpx.RemoteProtocolError, httpcore.RemoteProtocolError)
_BAD_REQUESTS: Final = (
    httpx.LocalProtocolError,
    httpcore.LocalProtocolError,
    httpx.UnsupportedProtocol,
    httpcore.UnsupportedProtocol,
    httpx.InvalidURL,
)
_LIBRARY_ERRORS: Final = (
    httpx.HTTPError,
    httpx.InvalidURL,
    httpx.StreamError,
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of one exchange, in seconds.

    Attributes:
        connect: for a connection, TLS included.
        idle: without a single byte.
        head: from sending a request to the end of the response's head.
        keep_alive: how long an idle connection is kept for the next request.
    """

    connect: float = 10.0
    idle: float = 30.0
    head: float = 60.0
    keep_alive: float = 30.0


class HttpxSender:
    """Sends requests over pooled connections; thread-safe.

    Args:
        transport: answers instead of the network (replay, tests).
        proxies: by default those of the environment.
        timeouts: time limits.
        unix_socket: connect to this socket whatever the host, for servers under test.
        user_agent_suffix: what the embedding program is, for the registry's statistics.

    Raises:
        ConfigError: a proxy variable can't be used.
    """

    def __init__(
        self,
        *,
        transport: httpx.BaseTransport | None = None,
        proxies: ProxyRules | None = None,
        timeouts: Timeouts | None = None,
        unix_socket: str = "",
        user_agent_suffix: str = "",
    ) -> None:
        self._given_transport = transport
        self._proxies = ProxyRules.from_environment() if proxies is None else proxies
        self._timeouts = timeouts or Timeouts()
        self._unix_socket = unix_socket
        self._user_agent = f"{USER_AGENT} {user_agent_suffix}".strip()
        self._lock = threading.Lock()
        self._pools: dict[tuple[ConnectionSettings, str, bool], httpx.BaseTransport] = {}
        self._public_origins: set[Origin] = set()
        self._private_origins: set[Origin] = set()

    def send(self, request: Request, *, cancel: CancelToken) -> Response:
        """See Sender; every host counts as named by the user."""
        return self.exchange(request, cancel=cancel, home=None, settings=ConnectionSettings())

    def bound(self, home: Origin, settings: ConnectionSettings) -> Sender:
        """A sender for one registry endpoint.

        It uses the endpoint's connection settings, and where it is told to go elsewhere (redirect, token realm) it refuses
        addresses that a public endpoint has no business to name.
        """
        return _BoundSender(self, home, settings)

    def exchange(
        self, request: Request, *, cancel: CancelToken, home: Origin | None, settings: ConnectionSettings
    ) -> Response:
        """Send one request on behalf of an endpoint; see Sender for the errors."""
        cancel.check()
        origin = urls.origin_of(request.url)
        towards = tls.settings_towards(origin, home=home, settings=settings)
        is_foreign = home is not None and origin != home
        pool = self._pool(origin, towards, public_only=is_foreign and not self._may_name_private(home))
        started = time.monotonic()
        answer = _send(pool, self._library_request(request, towards), cancel, self._timeouts.head)
        if not is_foreign:
            self._note_peer(origin, answer.peer)
        _log.debug(
            "%s %s -> %d after %.3f s",
            request.method,
            urls.shown(request.url),
            answer.status,
            time.monotonic() - started,
        )
        return answer

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            pools = list(self._pools.values())
            self._pools.clear()
        for pool in pools:
            pool.close()

    def _library_request(self, request: Request, towards: ConnectionSettings) -> httpx.Request:
        given = {name.lower() for name, _ in request.headers}
        headers = list(request.headers)
        # Digests are over bytes as stored; a transport coding would only add a decompression bomb.
        headers += [
            (name, value)
            for name, value in (("Accept-Encoding", "identity"), ("User-Agent", self._user_agent))
            if name.lower() not in given
        ]
        connect = towards.dial_timeout_seconds or self._timeouts.connect
        timeouts = {
            "connect": connect,
            "read": self._timeouts.idle,
            "write": self._timeouts.idle,
            "pool": self._timeouts.head,
        }
        host = urls.host_port(urls.origin_of(request.url))
        try:
            return httpx.Request(
                request.method, request.url, headers=headers, content=request.body, extensions={"timeout": timeouts}
            )
        except (httpx.InvalidURL, ValueError) as error:  # ValueError: a header value that isn't ASCII, for example
            raise ProtocolError(f"{host}: the request can't be sent: {type(error).__name__}", host=host) from error

    def _may_name_private(self, home: Origin | None) -> bool:
        """Whether the endpoint itself lives on a private network, so that its neighbours do too."""
        if home is None or self._given_transport is not None or self._unix_socket:
            return True
        literal = addresses.parse(home.host)
        if literal is not None or addresses.is_loopback_name(home.host):
            return literal is None or not addresses.is_public(literal)
        # One public answer is enough to distrust: a name may resolve to both.
        with self._lock:
            return home in self._private_origins and home not in self._public_origins

    def _note_peer(self, origin: Origin, peer: addresses.Address | None) -> None:
        if peer is not None and not self._proxies.proxy_for(origin):
            with self._lock:
                (self._public_origins if addresses.is_public(peer) else self._private_origins).add(origin)

    def _pool(self, origin: Origin, settings: ConnectionSettings, *, public_only: bool) -> httpx.BaseTransport:
        if self._given_transport is not None:
            return self._given_transport
        proxy = "" if self._unix_socket else self._proxies.proxy_for(origin)
        if public_only:
            _refuse_private_literal(origin)
            # Behind a proxy the proxy resolves names; only literals can be judged here.
            public_only = not proxy
        key = (settings, proxy, public_only)
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                network = Network(public_only=public_only, unix_socket=self._unix_socket)
                pool = self._pools[key] = _PoolTransport(settings, proxy, network, self._timeouts.keep_alive)
            return pool


@dataclass(frozen=True, slots=True)
class _BoundSender:
    """An HttpxSender on behalf of one endpoint."""

    sender: HttpxSender
    home: Origin
    settings: ConnectionSettings

    def send(self, request: Request, *, cancel: CancelToken) -> Response:
        return self.sender.exchange(request, cancel=cancel, home=self.home, settings=self.settings)


class _PoolTransport(httpx.BaseTransport):
    """The library's connection pool over our network, for one set of connection settings."""

    def __init__(self, settings: ConnectionSettings, proxy: str, network: Network, keep_alive_seconds: float) -> None:
        self.network = network
        self._settings = settings
        self._lock = threading.Lock()
        self._pools: dict[str, httpcore.ConnectionPool] = {}
        self._proxy = _proxy(proxy) if proxy else None
        self._keep_alive_seconds = keep_alive_seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Exchange a request for a response whose body has not been read."""
        answer = self._pool(request.url.scheme).handle_request(
            httpcore.Request(
                request.method,
                httpcore.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=request.content,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions={**answer.extensions}
        )

    def close(self) -> None:
        """Close all connections."""
        for pool in list(self._pools.values()):
            pool.close()

    def _pool(self, scheme: str) -> httpcore.ConnectionPool:
        # Apart by scheme, because making a TLS context costs 20 ms that plain http needn't pay.
        with self._lock:
            pool = self._pools.get(scheme)
            if pool is None:
                context = tls.make_context(self._settings) if scheme == "https" else None
                pool = self._pools[scheme] = httpcore.ConnectionPool(
                    ssl_context=context,
                    proxy=self._proxy,
                    max_connections=_MAX_CONNECTIONS,
                    max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
                    keepalive_expiry=self._keep_alive_seconds,
                    network_backend=self.network,
                )
            return pool


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


class _HttpxResponse:
    """Response over the library's."""

    def __init__(
        self, request: httpx.Request, response: httpx.Response, exchange: Exchange, network: Network | None
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._network = network
        self._stack = contextlib.ExitStack()
        self._host = urls.host_port(urls.origin_of(str(request.url)))
        self.status = response.status_code
        self.headers = Headers(
            tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw)
        )
        self.url = str(request.url)
        self.peer = exchange.peer

    def chunks(self) -> Iterator[bytes]:
        body = self._response.stream
        assert isinstance(body, httpx.SyncByteStream)
        pieces = iter(body)
        while True:
            with _guarded(self._exchange, self._network, self._host, "while reading a response"):
                piece = next(pieces, None)
            if piece is None:
                return
            if piece:
                yield piece

    def read(self, limit_bytes: int) -> bytes:
        announced = self.headers.get("Content-Length")
        if announced.isascii() and announced.isdigit() and len(announced) < 20 and int(announced) > limit_bytes:
            raise self._too_long(f"announces {announced} bytes", limit_bytes)
        whole = bytearray()
        for piece in self.chunks():
            whole += piece
            if len(whole) > limit_bytes:
                raise self._too_long("goes on", limit_bytes)
        return bytes(whole)

    def close(self) -> None:
        self._exchange.finish()
        self._stack.close()
        with contextlib.suppress(*_LIBRARY_ERRORS):
            # Giving a connection back can only fail when it is broken, and then it is dropped anyway.
            self._response.close()

    def keep(self, stack: contextlib.ExitStack) -> None:
        """Take over what must live until close()."""
        self._stack = stack

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _too_long(self, found: str, limit_bytes: int) -> ProtocolError:
        return ProtocolError(
            f"{self._host}: expected a response body of at most {limit_bytes} bytes, this one {found}",
            host=self._host,
            status=self.status,
        )


def _send(
    pool: httpx.BaseTransport, request: httpx.Request, cancel: CancelToken, head_seconds: float
) -> _HttpxResponse:
    network = pool.network if isinstance(pool, _PoolTransport) else None
    exchange = Exchange(cancel, head_seconds)
    host = urls.host_port(urls.origin_of(str(request.url)))
    with contextlib.ExitStack() as stack:
        stack.callback(exchange.finish)
        stack.enter_context(cancel.on_cancel(exchange.shut_down))
        with _guarded(exchange, network, host, "while waiting for a response"):
            response = pool.handle_request(request)
        exchange.head_is_read()
        answer = _HttpxResponse(request, response, exchange, network)
        stack.callback(answer.close)
        _check_head(answer, host)
        kept = stack.pop_all()
    return _keeping(answer, kept)


def _keeping(answer: _HttpxResponse, kept: contextlib.ExitStack) -> _HttpxResponse:
    answer.keep(kept)
    return answer


@contextlib.contextmanager
def _guarded(exchange: Exchange, network: Network | None, host: str, when: str) -> Iterator[None]:
    """The border: what the library raises becomes our own."""
    try:
        with network.serving(exchange) if network is not None else contextlib.nullcontext():
            yield
    except _LIBRARY_ERRORS as error:
        exchange.check_cancelled()
        raise _translated(error, exchange, host, when) from (_tls_failure(error) or error)


def _translated(error: Exception, exchange: Exchange, host: str, when: str) -> Exception:
    refused = _tls_failure(error)
    if refused is not None:
        return RegistryUnavailableError(f"{host}: no TLS connection: {_reason(refused)}", host=host, hint=_tls_hint(refused))
    if isinstance(error, _CONNECT_TIMEOUTS):
        return RegistryUnavailableError(f"{host}: no connection within the time allowed", host=host)
    if isinstance(error, _TIMEOUTS):
        return RegistryUnavailableError(f"{host}: no answer within the time allowed {when}", host=host)
    if isinstance(error, _PROXY_ERRORS):
        return RegistryUnavailableError(f"{host}: the proxy refused: {_reason(error)}", host=host)
    if isinstance(error, _CONNECT_ERRORS):
        return RegistryUnavailableError(f"{host}: no connection: {_reason(error)}", host=host)
    if isinstance(error, _BAD_REQUESTS):
        # The text may quote a header, and with it a token.
        return ProtocolError(f"{host}: the request can't be sent: {type(error).__name__}", host=host)
    if isinstance(error, _BROKEN_ANSWERS) and exchange.has_connection and not exchange.saw_end:
        return ProtocolError(f"{host}: the answer is no valid HTTP: {_reason(error)}", host=host)
    return RegistryUnavailableError(f"{host}: the connection broke {when}: {_reason(error)}", host=host)
