"""Sends every HTTP request to a registry: one httpx.Client with one of three transports.

- Hosts that are reached directly: ``direct.py``, our own connections with h11.
- Through a proxy: httpx's own transport (``proxy.py``).
- A transport that the caller gives instead of the network (recorded registry, mock, embedder).

For all of them: bytes exactly as stored (identity coding, never decoded), no redirects, no cookies, no credentials from
the environment, proxies by our own rules, limits on the response head, time limits that a slow peer can't stretch,
cancellation that ends a blocked read, and the package's own errors, whose URLs hold no secret.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.config.connection import ConnectionSettings
from imagestore.errors import ImageStoreError, PreconditionError, ProtocolError, RegistryUnavailableError
from imagestore.registry.transport import addresses, tls, urls
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.direct import DirectTransport
from imagestore.registry.transport.errors import FAULTS, translated
from imagestore.registry.transport.messages import PATIENT, Response, Sender, body_reader, check_head, parse_length
from imagestore.registry.transport.network import EXCHANGE, Exchange, Timeouts
from imagestore.registry.transport.proxy import ProxiedTransport, ProxyRules

if TYPE_CHECKING:
    import ssl
    import urllib.request
    from collections.abc import Iterator
    from http.client import HTTPResponse

    from imagestore.util.cancel import CancelToken

_log = logging.getLogger(__name__)

# Placeholder; no request goes there, so every host counts as named by a server.
_NOWHERE: Final = Origin("https", "nowhere.invalid", 443)
_NO_SETTINGS: Final = ConnectionSettings()
_PART_BYTES: Final = 64 * 1024
# Key of the chosen transport in a request's extensions.
_TRANSPORT: Final = "imagestore.transport"
_is_ours: ContextVar[bool] = ContextVar("imagestore_request", default=False)


class HttpSender:
    """Sends requests over pooled connections; thread-safe.

    Args:
        transport: answers instead of the network (replay, tests); closed by the caller.
        proxies: by default those of the environment.
        timeouts: by default those of Timeouts.
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
        self._given = transport
        self._proxies = ProxyRules.from_environment() if proxies is None else proxies
        self._timeouts = timeouts or Timeouts()
        self._unix_socket = unix_socket
        self._client = httpx.Client(transport=_ChosenTransport(), cookies=_NoCookies(), trust_env=False)
        self._lock = threading.Lock()
        self._contexts: dict[tuple[ConnectionSettings, bool], tuple[tls.Stamp, ssl.SSLContext]] = {}
        self._transports: dict[object, tuple[ssl.SSLContext | None, httpx.BaseTransport]] = {}
        self._peers = addresses.PeerMemory()
        # Of the endpoint that requests are for; without one, every host counts as the user's.
        self._home: Origin | None = None
        self._settings = _NO_SETTINGS
        self._trusted_hosts: frozenset[str] = frozenset()

    def bound(
        self, home: Origin, settings: ConnectionSettings, *, trusted_hosts: frozenset[str] = frozenset()
    ) -> Sender:
        """A sender for one registry endpoint, over the same connections.

        It uses the endpoint's connection settings. If the endpoint is public, it refuses requests to private addresses
        that the endpoint named (in a redirect or a token realm), unless the operator trusts the host.
        """
        bound = copy.copy(self)
        bound._home, bound._settings, bound._trusted_hosts = home, settings, trusted_hosts
        return bound

    def public_only(self) -> Sender:
        """A sender for hosts that only a document names: no settings, public addresses only."""
        return self.bound(_NOWHERE, _NO_SETTINGS)

    def send(self, request: httpx.Request, *, cancel: CancelToken) -> Response:
        """See Sender."""
        cancel.check()
        url = str(request.url)
        origin = urls.origin_of(url)
        home = self._home
        towards = tls.settings_for(origin, home=home, settings=self._settings)
        is_elsewhere = home is not None and origin != home
        is_trusted = origin.host in self._trusted_hosts
        public_only = home is not None and origin != home and not is_trusted and not self._peers.is_private(home)
        proxy = "" if self._given is not None or self._unix_socket else self._proxies.proxy_for(origin)
        transport = self._transport(origin, towards, proxy, public_only=public_only)
        timeouts = self._timeouts
        if request.extensions.get(PATIENT):
            timeouts = replace(timeouts, head=max(timeouts.head, timeouts.commit))
        exchange = Exchange(cancel, timeouts)
        if not isinstance(request.stream, httpx.ByteStream):
            request.stream = _PartedBody(request.stream, exchange)
        started = time.monotonic()
        try:
            answer = self._exchange(transport, request, exchange, towards, urls.host_port(origin), proxy)
        except ImageStoreError as error:
            seconds = time.monotonic() - started
            _log.debug("%s %s -> %s after %.3f s", request.method, urls.shown(url), error, seconds)
            through = f"through proxy {urls.shown(proxy)}"
            if proxy and isinstance(error, RegistryUnavailableError) and through not in str(error):
                error.hint = f"it is asked {through}" + (f"; {error.hint}" if error.hint else "")
            raise
        peer = exchange.peer  # once: it is gone as soon as the other end resets the connection
        if peer is not None and not is_elsewhere and not proxy:
            self._peers.note(origin, peer)
        seconds = time.monotonic() - started
        _log.debug("%s %s -> %d after %.3f s", request.method, urls.shown(url), answer.status, seconds)
        return answer

    def close(self) -> None:
        """Close every connection, those in use when their response ends. Later requests are refused."""
        with self._lock:
            self._client.close()
            transports = [transport for _, transport in self._transports.values()]
            self._transports.clear()
        for transport in transports:
            transport.close()

    def _exchange(
        self,
        transport: httpx.BaseTransport,
        request: httpx.Request,
        exchange: Exchange,
        settings: ConnectionSettings,
        host: str,
        proxy: str,
    ) -> Response:
        connect, idle = settings.dial_timeout_seconds or self._timeouts.connect, self._timeouts.idle
        answered = max(idle, self._timeouts.commit) if request.extensions.get(PATIENT) else idle
        limits = {"connect": connect, "read": answered, "write": idle, "pool": idle}
        request.extensions = {"timeout": limits, EXCHANGE: exchange, _TRANSPORT: transport}
        with ExitStack() as stack:
            stack.enter_context(exchange.cancellable())
            with _own_errors(exchange, host, "while waiting for a response", proxy):
                before = _is_ours.set(True)
                try:
                    answer = self._client.send(request, stream=True)
                except (httpx.RemoteProtocolError, httpx.InvalidURL, ValueError) as error:
                    # httpx parses a redirect's target even if it doesn't follow it; idna raises ValueError for invalid
                    # hosts.
                    if not exchange.is_answered:
                        raise
                    raise ProtocolError(f"{host}: redirects to an address that can't be read", host=host) from error
                finally:
                    _is_ours.reset(before)
            stack.callback(_close, answer)
            # Callbacks run in reverse order: first detach the cancel token, then give the connection back.
            stack.callback(exchange.finish)
            check_head(answer, host)
            exchange.note_head(parse_length(answer.headers.get("Content-Length", "")))
            read = body_reader(answer)

            def _readinto(buffer: memoryview) -> int:
                with _own_errors(exchange, host, "while reading a response", proxy):
                    started = time.monotonic()
                    count = read(buffer)
                    exchange.note_read(count, time.monotonic() - started)
                if not count:
                    # A cancellation closes the connection too; that must not look like the end of the body.
                    exchange.check()
                return count

            # Through a tunnel, responses come from the host itself.
            shown = urls.shown(proxy) if request.url.scheme == "http" else ""
            return Response(answer, readinto=_readinto, on_close=stack.pop_all().close, proxy=shown)

    def _transport(
        self, origin: Origin, settings: ConnectionSettings, proxy: str, *, public_only: bool
    ) -> httpx.BaseTransport:
        if self._given is None and public_only:
            _refuse_private_literal(origin)
        with self._lock:
            if self._client.is_closed:
                raise PreconditionError("this registry client is closed", hint="make another one")
            if self._given is not None:
                return self._given
            context = self._context(settings, is_by_name=not proxy) if origin.scheme == "https" else None
            # A proxy resolves the names itself; only literal addresses can be checked here.
            key = (settings, proxy, public_only and not proxy, origin.scheme)
            made_for, transport = self._transports.get(key, (None, None))
            if transport is None or made_for is not context:
                if transport is not None:
                    transport.close()
                transport = self._new_transport(context, proxy, public_only=public_only)
                self._transports[key] = (context, transport)
            return transport

    def _context(self, settings: ConnectionSettings, *, is_by_name: bool) -> ssl.SSLContext:
        """The TLS context for some settings. If a certificate file has changed: a new one, with new connections."""
        stamp = tls.files_stamp(settings)
        made_for, context = self._contexts.get((settings, is_by_name), (None, None))
        if context is None or made_for != stamp:
            context = tls.make_context(settings, is_by_name=is_by_name)
            self._contexts[settings, is_by_name] = (stamp, context)
        return context

    def _new_transport(self, context: ssl.SSLContext | None, proxy: str, *, public_only: bool) -> httpx.BaseTransport:
        keep_alive = self._timeouts.keep_alive
        if proxy:
            return ProxiedTransport(proxy, context, keep_alive_seconds=keep_alive)
        return DirectTransport(
            context, public_only=public_only, unix_socket=self._unix_socket, keep_alive_seconds=keep_alive
        )


class _ChosenTransport(httpx.BaseTransport):
    """The client's transport: passes each request to the transport chosen for it, which the sender closes."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx.BaseTransport. Notes in the exchange that a response head has arrived."""
        transport: httpx.BaseTransport = request.extensions[_TRANSPORT]
        answer = transport.handle_request(request)
        exchange: Exchange = request.extensions[EXCHANGE]
        exchange.is_answered = True
        return answer


class _PartedBody(httpx.SyncByteStream):
    """A request's body in parts, so that each part has the time limit of a write, and not the whole body."""

    def __init__(self, inner: httpx.SyncByteStream | httpx.AsyncByteStream, exchange: Exchange) -> None:
        assert isinstance(inner, httpx.SyncByteStream)
        self._inner = inner
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._inner:
            for start in range(0, len(piece), _PART_BYTES):
                self._exchange.note_sending()
                yield piece[start : start + _PART_BYTES]


# httpx logs URLs with their queries, which may be signatures. Its records of other requests in the process stay.
class _NoCookies(CookieJar):
    """A registry's cookies are never read, so never sent back; the standard parser warns about hostile ones."""

    def extract_cookies(self, response: HTTPResponse, request: urllib.request.Request) -> None:
        """See http.cookiejar.CookieJar; does nothing."""


logging.getLogger("httpx").addFilter(lambda _: not _is_ours.get())


def _close(answer: httpx.Response) -> None:
    # Giving a connection back fails only if it is broken; then its transport has dropped it.
    with contextlib.suppress(*FAULTS):
        answer.close()


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


@contextmanager
def _own_errors(exchange: Exchange, host: str, when: str, proxy: str) -> Iterator[None]:
    """Translate errors of httpx and its transports into errors of this package."""
    try:
        yield
    except FAULTS as error:
        exchange.check()
        cause = tls.failure_in(error) or error
        raise translated(error, exchange, host=host, when=when, proxy=proxy) from cause
