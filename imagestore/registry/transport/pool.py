"""Connection pools of the HTTP library over our own network, one for each set of connection settings and proxy."""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit

import httpcore

from imagestore.errors import ConfigError
from imagestore.registry.transport import tls
from imagestore.registry.transport.parking import Parking

if TYPE_CHECKING:
    from imagestore.config.connection import ConnectionSettings
    from imagestore.registry.transport.network import Network

# More than any sensible number of parallel layers; a pull limits itself, the pool only must not be the bottleneck.
_MAX_CONNECTIONS: Final = 64
_MAX_IDLE_CONNECTIONS: Final = 16
_PROXY_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class Exchanges(Protocol):
    """What exchanges messages: connections to the network, or what was given to stand in their place."""

    @property
    def network(self) -> Network | None:
        """Where waits are bounded; None where there is no network."""

    @property
    def is_direct(self) -> bool:
        """Whether connections lead to the hosts themselves, not to a proxy."""

    def handle(self, request: httpcore.Request) -> httpcore.Response:
        """Exchange a request for a response whose body has not been read; raises what httpcore raises."""


class Pool:
    """Connections that share settings and proxy; thread-safe.

    Args:
        settings: TLS and dialling.
        proxy: proxy URL, or empty.
        network: makes the connections.
        keep_alive_seconds: how long an idle connection is kept.
    """

    def __init__(self, settings: ConnectionSettings, proxy: str, network: Network, keep_alive_seconds: float) -> None:
        self.network = network
        self._settings = settings
        self._proxy = _parse_proxy(proxy) if proxy else None
        self._keep_alive_seconds = keep_alive_seconds
        self._lock = threading.Lock()
        self._pools: dict[bytes, tuple[httpcore.ConnectionPool, Parking]] = {}
        self._replaced: list[tuple[httpcore.ConnectionPool, Parking]] = []
        self._stamp: tls.Stamp = ()

    @property
    def is_direct(self) -> bool:
        """See Exchanges."""
        return self._proxy is None

    def handle(self, request: httpcore.Request) -> httpcore.Response:
        """See Exchanges.

        Raises:
            ConfigError: a certificate file or the proxy can't be used.
        """
        return self._by_scheme(request.url.scheme).handle_request(request)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            pools = [*self._pools.values(), *self._replaced]
            self._pools.clear()
            self._replaced.clear()
        for pool, parking in pools:
            pool.close()
            parking.close()

    def _by_scheme(self, scheme: bytes) -> httpcore.ConnectionPool:
        # Apart by scheme, because making a TLS context costs 20 ms that plain http needn't pay.
        stamp = tls.stamp_of(self._settings)
        with self._lock:
            if stamp != self._stamp:
                # Certificates are renewed while we run. Transfers under way keep their connections until close().
                self._replaced += self._pools.values()
                self._pools.clear()
                self._stamp = stamp
            found = self._pools.get(scheme)
            if found is None:
                is_secure = scheme == b"https"
                parking = Parking(self.network, self._keep_alive_seconds, is_secure=is_secure)
                pool = httpcore.ConnectionPool(
                    ssl_context=tls.make_context(self._settings) if is_secure else None,
                    proxy=self._proxy,
                    max_connections=_MAX_CONNECTIONS,
                    max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
                    keepalive_expiry=self._keep_alive_seconds,
                    network_backend=parking if self.is_direct else self.network,
                )
                found = self._pools[scheme] = pool, parking
            return found[0]


def _parse_proxy(url: str) -> httpcore.Proxy:
    parts = urlsplit(url)
    if parts.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ConfigError(
            "proxy: socks proxies need the package 'socksio', which is not installed",
            hint="install it beside imagestore, or use an http proxy",
        )
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return httpcore.Proxy(f"{parts.scheme}://{host}:{parts.port or _PROXY_PORTS[parts.scheme]}/", auth=auth)
