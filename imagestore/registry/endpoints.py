"""Which hosts serve a reference, in which order, and what each may be asked (containerd, docs/hosts.md).

Mirrors come in the order of their file, the registry itself last. ``docker.io`` is served by ``registry-1.docker.io``.
A literal loopback host with a port other than 443 speaks plain http, every other host https, unless the operator says
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from imagestore.config.connection import ConnectionSettings
from imagestore.oci.reference import DOCKER_HUB, DOCKER_HUB_API, api_host
from imagestore.registry.transport import addresses, urls

if TYPE_CHECKING:
    from imagestore.config.hosts import HostConfig, RegistryHosts
    from imagestore.registry.transport.addresses import Origin

PULL: Final = "pull"
RESOLVE: Final = "resolve"
PUSH: Final = "push"
_DEFAULT_CONNECTION: Final = ConnectionSettings()
#: The source of an endpoint that isn't configured.
_BUILT_IN: Final = "built-in rule"
REFERRERS: Final = "referrers"
ALL_CAPABILITIES: Final = frozenset({PULL, RESOLVE, PUSH, REFERRERS})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One host that serves repositories of a registry.

    Attributes:
        base: URL up to and including ``/v2`` (or its replacement), without a slash at the end.
        origin: scheme, host and port of it; secrets are bound to it.
        namespace: the registry host in the references that it serves.
        is_upstream: the registry itself and no mirror.
        headers: sent with every request to it, and to no other host.
        source: which rule or file named it, for messages.
    """

    base: str
    origin: Origin
    namespace: str
    is_upstream: bool
    capabilities: frozenset[str] = ALL_CAPABILITIES
    headers: tuple[tuple[str, str], ...] = ()
    connection: ConnectionSettings = _DEFAULT_CONNECTION
    source: str = ""

    @property
    def host(self) -> str:
        """Host, and port when it isn't the scheme's default."""
        return urls.host_port(self.origin)

    def url(self, repository: str, path: str, query: str = "") -> str:
        """Absolute URL of a path in a repository, or without one in the registry; mirrors get the ``ns`` parameter."""
        named = "" if self._serves_own_namespace else f"ns={quote(self.namespace, safe='')}"
        joined = "&".join(part for part in (query, named) if part)
        place = f"{repository}/{path}" if repository else path
        return f"{self.base}/{place}" + (f"?{joined}" if joined else "")

    @property
    def _serves_own_namespace(self) -> bool:
        if self.host == self.namespace or (self.namespace == DOCKER_HUB and self.host == DOCKER_HUB_API):
            return True
        # A reference may name the default port.
        return urls.origin_of(f"{self.origin.scheme}://{self.namespace}") == self.origin


def default_endpoint(host: str) -> Endpoint:
    """The registry itself, by containerd's built-in rules.

    >>> default_endpoint("docker.io").base, default_endpoint("localhost:5000").base
    ('https://registry-1.docker.io/v2', 'http://localhost:5000/v2')
    """
    base = f"{default_scheme(host)}://{api_host(host)}/v2"
    return Endpoint(base, urls.origin_of(base), host, is_upstream=True, source=_BUILT_IN)


def default_scheme(host: str) -> str:
    """``http`` for a literal loopback host with a port other than 443, else ``https``."""
    origin = urls.origin_of(f"https://{host}")
    return "http" if addresses.is_loopback_name(origin.host) and origin.port != 443 else "https"


def endpoints_from(host: str, configured: RegistryHosts) -> tuple[Endpoint, ...]:
    """Mirrors in their order, the registry last.

    Many users configure a registry's CA or headers in a host table for its own address. If the registry has no settings
    of its own, it takes those; and if such a table comes last, it isn't asked twice.
    """
    upstream = _upstream(host, configured.server)
    mirrors = [_endpoint(host, mirror, is_upstream=False) for mirror in configured.mirrors]
    own = next((mirror for mirror in mirrors if mirror.base == upstream.base), None)
    if own is not None and not upstream.headers and upstream.connection == _DEFAULT_CONNECTION:
        upstream = replace(upstream, headers=own.headers, connection=own.connection, source=own.source)
    if mirrors and _asks_the_same(mirrors[-1], upstream):
        mirrors.pop()
    return (*mirrors, upstream)


def _asks_the_same(mirror: Endpoint, upstream: Endpoint) -> bool:
    """Whether the mirror could give no better answer than the registry itself."""
    settings = (mirror.headers, mirror.connection)
    is_same_way = settings in {((), _DEFAULT_CONNECTION), (upstream.headers, upstream.connection)}
    return mirror.base == upstream.base and is_same_way and mirror.capabilities <= upstream.capabilities


def _upstream(host: str, server: HostConfig) -> Endpoint:
    if server.base:
        return _endpoint(host, server, is_upstream=True)
    return replace(
        default_endpoint(host),
        headers=server.headers,
        connection=server.connection,
        source=server.location or _BUILT_IN,
    )


def _endpoint(host: str, entry: HostConfig, *, is_upstream: bool) -> Endpoint:
    return Endpoint(
        entry.base,
        urls.origin_of(entry.base),
        host,
        is_upstream,
        entry.capabilities,
        entry.headers,
        entry.connection,
        entry.location,
    )
