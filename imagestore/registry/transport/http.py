"""Every HTTP byte of a pull passes here; above it nobody knows how messages are exchanged.

Hosts that are reached directly are spoken to by our own connections (``pool.py``): a body's bytes go from the socket
into the caller's buffer, and no HTTP library is loaded for a small image. Through a proxy httpx's engine, httpcore,
exchanges the messages (``proxied.py``), and a transport of httpx may stand in the network's place (``given.py``).

What holds on every way: bytes exactly as stored (identity coding, never decoded), no redirects, no cookies, no
credentials from the environment, proxies by our own rules, limits on the response head, time limits that a slow peer
can't stretch, cancellation that ends a blocked read, and the package's own errors with addresses that hold no secret.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore._version import __version__
from imagestore.config.connection import ConnectionSettings
from imagestore.errors import ImageStoreError, PreconditionError, ProtocolError, RegistryUnavailableError
from imagestore.registry.exchange import Origin, Request, Response, Sender
from imagestore.registry.ranges import parse_length
from imagestore.registry.transport import addresses, faults, tls, urls
from imagestore.registry.transport.answer import Answer, check_head
from imagestore.registry.transport.faults import PROXY_LOGIN
from imagestore.registry.transport.message import outgoing
from imagestore.registry.transport.network import Exchange, Pace, Route
from imagestore.registry.transport.pool import Pool
from imagestore.registry.transport.proxies import ProxyRules

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    import httpx

    from imagestore.cancel import CancelToken
    from imagestore.registry.transport.pool import Exchanges, Incoming

_log = logging.getLogger(__name__)

# No request goes there, so every host counts as named by a server.
_NOWHERE: Final = Origin("https", "nowhere.invalid", 443)
USER_AGENT: Final = f"imagestore/{__version__}"
_DEFAULT_PACE: Final = Pace()
_VARIABLES: Final = "proxies are named in HTTP_PROXY and HTTPS_PROXY, hosts that need none in NO_PROXY"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of one exchange, in seconds.

    Attributes:
        connect: for a connection, TLS included.
        idle: without a single byte.
        keep_alive: how long an idle connection is kept for the next request.
        pace: how slow a response may be.
    """

    connect: float = 10.0
    idle: float = 30.0
    keep_alive: float = 30.0
    pace: Pace = _DEFAULT_PACE


class HttpSender:
    """Sends requests over pooled connections; thread-safe.

    Args:
        transport: answers instead of the network (replay, tests); an httpx transport.
        proxies: by default those of the environment.
        timeouts: time limits.
        unix_socket: connect to this socket whatever the host, for servers under test.

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
    ) -> None:
        self._given = _given(transport) if transport is not None else None
        self._proxies = ProxyRules.from_environment() if proxies is None else proxies
        self._timeouts = timeouts or Timeouts()
        self._unix_socket = unix_socket
        self._lock = threading.Lock()
        self._is_closed = False
        self._pools: dict[tuple[ConnectionSettings, str, bool], Exchanges] = {}
        self._peers = addresses.PeerMemory()

    def send(self, request: Request, *, cancel: CancelToken) -> Response:
        """See Sender; every host counts as named by the user."""
        return self.exchange(
            request, cancel=cancel, home=None, settings=ConnectionSettings(), trusted_hosts=frozenset()
        )

    def bound(
        self, home: Origin, settings: ConnectionSettings, *, trusted_hosts: frozenset[str] = frozenset()
    ) -> Sender:
        """A sender for one registry endpoint.

        It uses the endpoint's connection settings, and where it is told to go elsewhere (redirect, token realm) it
        refuses addresses that a public endpoint has no business to name, unless the operator trusts the host.
        """
        return _BoundSender(self, home, settings, trusted_hosts)

    def stranger(self) -> Sender:
        """A sender for hosts that only a document names: no settings, public addresses only."""
        return _BoundSender(self, _NOWHERE, ConnectionSettings(), frozenset())

    def exchange(
        self,
        request: Request,
        *,
        cancel: CancelToken,
        home: Origin | None,
        settings: ConnectionSettings,
        trusted_hosts: frozenset[str],
    ) -> Response:
        """Send one request on behalf of an endpoint; see Sender for the errors."""
        cancel.check()
        origin = urls.origin_of(request.url)
        towards = tls.settings_towards(origin, home=home, settings=settings)
        is_named_by_server = home is not None and origin != home
        is_trusted = origin.host in trusted_hosts
        public_only = home is not None and origin != home and not is_trusted and not self._peers.is_private(home)
        proxy = self._proxy_for(origin)
        pool = self._pool(origin, towards, proxy, public_only=public_only)
        started = time.monotonic()
        try:
            answer = self._exchange(pool, request, towards, origin, proxy, cancel)
        except ImageStoreError as error:
            seconds = time.monotonic() - started
            _log.debug("%s %s -> %s after %.3f s", request.method, urls.shown(request.url), error, seconds)
            through = f"through proxy {urls.shown(proxy)}"
            if proxy and isinstance(error, RegistryUnavailableError) and through not in str(error):
                error.hint = f"it is asked {through}; {error.hint}" if error.hint else f"it is asked {through}"
            raise
        if answer.peer is not None and not is_named_by_server and not proxy:
            self._peers.note(origin, answer.peer)
        if _log.isEnabledFor(logging.DEBUG):
            seconds = time.monotonic() - started
            _log.debug("%s %s -> %d after %.3f s", request.method, urls.shown(request.url), answer.status, seconds)
        return answer

    def close(self) -> None:
        """Close every connection, those in use when their answer ends; nothing is sent any more."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
            self._pools.clear()
        for pool in pools:
            pool.close()

    def _exchange(
        self,
        pool: Exchanges,
        request: Request,
        towards: ConnectionSettings,
        origin: Origin,
        proxy: str,
        cancel: CancelToken,
    ) -> Answer:
        exchange, host = Exchange(cancel, self._timeouts.pace), urls.host_port(origin)
        with ExitStack() as stack:
            stack.enter_context(cancel.on_cancel(exchange.shut_down))
            with _guarded(exchange, host, "while waiting for a response", proxy):
                connect = towards.dial_timeout_seconds or self._timeouts.connect
                idle = self._timeouts.idle
                sent = outgoing(request, user_agent=USER_AGENT, connect_seconds=connect, idle_seconds=idle)
                incoming = pool.handle(sent, exchange)
            stack.callback(incoming.close)
            # Closing runs backwards: first no cancel may touch the connection any more, then it is given back.
            stack.callback(exchange.finish)
            check_head(incoming.fields, host, incoming.status)
            exchange.head_is_read(_length(incoming))
            return Answer(
                incoming.status,
                incoming.fields,
                url=request.url,
                peer=exchange.peer,
                body=incoming,
                guard=lambda: _guarded(exchange, host, "while reading a response", proxy),
                on_close=stack.pop_all(),
                # Through a tunnel nobody but the host answers.
                proxy=urls.shown(proxy) if origin.scheme == "http" else "",
            )

    def _proxy_for(self, origin: Origin) -> str:
        return "" if self._given is not None or self._unix_socket else self._proxies.proxy_for(origin)

    def _pool(self, origin: Origin, settings: ConnectionSettings, proxy: str, *, public_only: bool) -> Exchanges:
        if self._given is not None:
            return self._given
        if public_only:
            _refuse_private_literal(origin)
            # Behind a proxy the proxy resolves names; only literals can be judged here.
            public_only = not proxy
        key = (settings, proxy, public_only)
        with self._lock:
            if self._is_closed:
                raise PreconditionError("this registry client is closed", hint="make another one")
            pool = self._pools.get(key)
            if pool is None:
                route = Route(public_only=public_only, unix_socket=self._unix_socket)
                pool = self._pools[key] = _new_pool(settings, proxy, route, self._timeouts.keep_alive)
            return pool


@dataclass(frozen=True, slots=True)
class _BoundSender:
    """An HttpSender on behalf of one endpoint."""

    sender: HttpSender
    home: Origin
    settings: ConnectionSettings
    trusted_hosts: frozenset[str]

    def send(self, request: Request, *, cancel: CancelToken) -> Response:
        return self.sender.exchange(
            request, cancel=cancel, home=self.home, settings=self.settings, trusted_hosts=self.trusted_hosts
        )


def _given(transport: httpx.BaseTransport) -> Exchanges:
    from imagestore.registry.transport.given import Given

    return Given(transport)


def _new_pool(settings: ConnectionSettings, proxy: str, route: Route, keep_alive_seconds: float) -> Exchanges:
    if not proxy:
        return Pool(settings, route, keep_alive_seconds)
    from imagestore.registry.transport.proxied import ProxiedPool

    return ProxiedPool(settings, proxy, route, keep_alive_seconds)


def _refuse_private_literal(origin: Origin) -> None:
    host, literal = origin.host, addresses.parse(origin.host)
    is_private = literal is not None and not addresses.is_public(literal)
    is_local = addresses.is_loopback_name(host) or host.endswith(".localhost")
    if is_private or is_local or addresses.is_address_in_disguise(host):
        host = urls.host_port(origin)
        raise ProtocolError(
            f"{host}: expected a public address, since a server named this host, found a private one",
            host=host,
            hint=addresses.PRIVATE_HINT,
        )


def _length(incoming: Incoming) -> int | None:
    value = next((value for name, value in incoming.fields if name.lower() == b"content-length"), b"")
    return parse_length(value.decode("latin-1"))


@contextmanager
def _guarded(exchange: Exchange, host: str, when: str, proxy: str) -> Iterator[None]:
    """The border: what this package raises becomes what callers know."""
    try:
        yield
    except (faults.TransportError, OSError) as error:
        exchange.check()
        failure = tls.failure_in(error)
        if exchange.is_reaching_proxy:
            raise _no_proxy(error, failure, host, proxy) from (failure or error)
        raise _translated(error, failure, exchange, host, when) from (failure or error)


def _no_proxy(error: Exception, failure: ssl.SSLError | None, host: str, proxy: str) -> RegistryUnavailableError:
    if failure is not None:
        what, reason = "no TLS connection", tls.describe(failure)
    else:
        is_late = isinstance(error, faults.ConnectWaitError)
        what, reason = "no connection", "not within the time allowed" if is_late else _reason(error)
    message = f"{host}: {what} through proxy {urls.shown(proxy)}, which can't be reached: {reason}"
    return RegistryUnavailableError(message, host=host, hint=_VARIABLES)


def _translated(
    error: Exception, failure: ssl.SSLError | None, exchange: Exchange, host: str, when: str
) -> RegistryUnavailableError | ProtocolError:
    if failure is not None:
        message = f"{host}: no TLS connection: {tls.describe(failure)}"
        return RegistryUnavailableError(message, host=host, hint=tls.hint(failure))
    match error:
        case faults.UnsendableError():
            # Its text may quote a header, and with it a token.
            return ProtocolError(f"{host}: the request can't be sent as it is", host=host)
        case faults.InvalidAnswerError() if exchange.is_reading_head and not exchange.saw_end:
            return ProtocolError(f"{host}: the answer is no valid HTTP: {_reason(error)}", host=host)
        case faults.ConnectWaitError():
            what = "no connection within the time allowed"
        case faults.WaitError():
            what = f"no answer within the time allowed {when} ({_reason(error)})"
        case faults.ProxyError():
            reason = _reason(error)
            hint = PROXY_LOGIN if reason.startswith("407") else _VARIABLES
            return RegistryUnavailableError(f"{host}: the proxy refused: {reason}", host=host, hint=hint)
        case faults.ConnectError():
            what = f"no connection: {_reason(error)}"
        case _:
            what = f"the connection broke {when}: {_reason(error)}"
    return RegistryUnavailableError(f"{host}: {what}", host=host)


def _reason(error: Exception) -> str:
    inner = next((argument for argument in error.args if isinstance(argument, OSError)), None)
    text = (inner.strerror if inner is not None else None) or str(error) or type(error).__name__
    return text[:200].encode("unicode_escape").decode("ascii")
