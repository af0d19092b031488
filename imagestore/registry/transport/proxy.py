"""Proxies: which one a request goes through, and httpx's own transport through it (forwarding, tunnels, SOCKS).

The variables ``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY`` and their lower-case forms are read as Go's tools read them.
``NO_PROXY`` takes names (``example`` covers its subdomains, ``.example`` only those), addresses, CIDR networks (which
Python's HTTP libraries don't know), a port after any of them, and ``*``. Loopback is never reached through a proxy.

Unlike with direct connections, a name resolution can't be cancelled, time limits hold for each read, and on a kept
connection a cancelled wait for a response head lasts until that limit. From the head on a cancellation ends every wait.
"""

from __future__ import annotations

import base64
import importlib.util
import ipaddress
import os
import re
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

import httpx

from imagestore.errors import ConfigError
from imagestore.registry.transport import addresses
from imagestore.registry.transport.network import EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    from imagestore.registry.transport.addresses import Origin
    from imagestore.registry.transport.network import Exchange


_MAX_IDLE_CONNECTIONS: Final = 16
_PROXY_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_HANDSHAKE: Final = ".start_tls.started"
_HANDSHAKE_OVER: Final = ".start_tls.complete"
_CONNECTED: Final = (".connect_tcp.complete", _HANDSHAKE_OVER)
_REACHED: Final = (".send_request_headers.started", ".setup_socks5_connection.started")
#: What to do about a proxy that answers 407.
PROXY_LOGIN: Final = (
    "it wants a login, or another one than it was given: http://USER:PASSWORD@HOST:PORT in HTTP_PROXY or HTTPS_PROXY"
)
#: What to do about a proxy that can't be used.
PROXY_VARIABLES: Final = "proxies are named in HTTP_PROXY and HTTPS_PROXY, hosts that need none in NO_PROXY"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PORT: Final = re.compile(r"[0-9]{1,5}")


class ProxiedTransport(httpx.BaseTransport):
    """httpx's transport through a proxy; thread-safe. After close(), its connections close with its last answer.

    Raises:
        ConfigError: the proxy needs a package that isn't installed.
    """

    def __init__(self, proxy: str, context: ssl.SSLContext | None, *, keep_alive_seconds: float = 30.0) -> None:
        self._inner = httpx.HTTPTransport(
            # For plain http a context that trusts nothing: httpx's default one takes time to load.
            verify=context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            proxy=_parse_proxy(proxy),
            limits=httpx.Limits(
                # Transfers are limited for each host; with a limit for all, slow hosts would keep out the others.
                max_connections=None,
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
            # httpx sends these to proxies without brackets, which no proxy understands.
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
            self._answer_ended()
            raise
        assert isinstance(answer.stream, httpx.SyncByteStream)
        body = _Body(answer.stream, self._answer_ended)
        try:
            _use(exchange, answer.extensions.get("network_stream"))
        except BaseException:
            body.close()
            raise
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body, extensions=answer.extensions)

    def close(self) -> None:
        """Close the connections, now or when the last answer is closed."""
        with self._lock:
            self._is_closed = True
            is_unused = not self._users
        if is_unused:
            self._inner.close()

    def _answer_ended(self) -> None:
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
        """Close the body, then call ``on_close``; later calls do nothing."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            try:
                self._inner.close()
            finally:
                on_close()


class _Trace:
    """httpx's ``trace`` extension: which socket a request uses, and whether the proxy was reached."""

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
    # Not httpx's auth, since the bytes of a login may be no UTF-8.
    login = base64.b64encode(user + b":" + password).decode("ascii")
    return httpx.Proxy(bare, headers={"Proxy-Authorization": f"Basic {login}"})


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """Proxies by scheme, and the hosts that are reached directly.

    Attributes:
        http: proxy URL for plain http, or empty.
        https: proxy URL for https, or empty.
        no_proxy: the exceptions, in NO_PROXY's comma-separated form.

    >>> rules = ProxyRules(https="http://proxy.example:3128", no_proxy="10.0.0.0/8,.internal.example")
    >>> from imagestore.registry.transport.addresses import Origin
    >>> rules.proxy_for(Origin("https", "10.1.2.3", 443))
    ''
    >>> rules.proxy_for(Origin("https", "registry.example", 443))
    'http://proxy.example:3128'
    """

    http: str = ""
    https: str = ""
    no_proxy: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables.

        Raises:
            ConfigError: a proxy variable isn't a proxy URL.
        """
        variables = os.environ if environment is None else environment

        def _first(*names: str) -> tuple[str, str]:
            return next(((name, variables[name]) for name in names if variables.get(name)), ("", ""))

        # Under CGI a request header "Proxy" arrives as HTTP_PROXY (httpoxy, CVE-2016-5385).
        http_names = ("http_proxy",) if "REQUEST_METHOD" in variables else ("HTTP_PROXY", "http_proxy")
        return cls(
            _proxy_url(*_first(*http_names)),
            _proxy_url(*_first("HTTPS_PROXY", "https_proxy")),
            _first("NO_PROXY", "no_proxy")[1],
        )

    def proxy_for(self, origin: Origin) -> str:
        """Proxy URL for a destination; empty for a direct connection."""
        proxy = self.https if origin.scheme == "https" else self.http
        return "" if not proxy or addresses.is_loopback_name(origin.host) or self._is_exempt(origin) else proxy

    def _is_exempt(self, origin: Origin) -> bool:
        address = addresses.parse(origin.host)
        return any(
            _covers(entry.strip().lower(), origin.host.lower().rstrip("."), origin.port, address)
            for entry in self.no_proxy.split(",")
            if entry.strip()
        )


def _proxy_url(name: str, value: str) -> str:
    """A variable's proxy URL in standard form, its login percent-encoded.

    Users write passwords unencoded. No proxy's host has an ``@``, so everything before the last one is the login, even
    if it has characters that would end a URL's authority (RFC 3986 section 3.2).
    """
    value = value.strip()
    if not value:
        return ""
    found = _SCHEME.match(value)
    scheme, rest = (found[1].lower(), value[found.end() :]) if found else ("http", value)
    login, at, place = rest.rpartition("@")
    host = re.split(r"[/?#]", place, maxsplit=1)[0]
    if scheme not in _PROXY_PORTS or not _is_host_port(host):
        # The value may hold a password.
        hint = f"set {name} to, for example, http://proxy.example:3128"
        if at:
            hint += "; in the login, write characters like '@', '/' and '#' percent-encoded: %40, %2F, %23"
        raise ConfigError(
            f"environment variable {name}: expected a proxy URL (http, https or socks5), found something else",
            hint=hint,
        )
    user, colon, password = login.partition(":")
    return f"{scheme}://{_encoded(user)}{colon}{_encoded(password)}{at}{host}"


def _is_host_port(text: str) -> bool:
    try:
        parts = urlsplit(f"//{text}")
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return is_port and bool(parts.hostname) and text.isascii() and text.isprintable() and " " not in text


def _encoded(text: str) -> str:
    """Percent-encoded once, whether it was already or not; a ``%`` that begins no escape means itself."""
    return quote(unquote_to_bytes(text.encode("utf-8", "surrogateescape")), safe="")


def _covers(entry: str, host: str, port: int, address: addresses.Address | None) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _in_network(address, entry)
    name, wanted_port = _split_port(entry)
    if wanted_port is not None and wanted_port != port:
        return False
    literal = addresses.parse(name)
    if literal is not None or address is not None:
        return literal is not None and literal == address
    name = name.removeprefix("*").rstrip(".")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, int | None]:
    """``host:port`` in parts; a bare IPv6 address has colons and no port."""
    if addresses.parse(entry) is not None:
        return entry, None
    name, colon, port = entry.rpartition(":")
    return (name, int(port)) if colon and _PORT.fullmatch(port) else (entry, None)


def _in_network(address: addresses.Address, entry: str) -> bool:
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return network.version == address.version and address in network
