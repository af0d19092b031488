"""What a server is started with; a reload changes the configuration of handlers and registries, never these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagestore.server.sockets import SocketRights

if TYPE_CHECKING:
    from imagestore.server.tracing import Tracing


@dataclass(frozen=True, slots=True)
class ProxyContent:
    """A socket at which one containerd finds its content store.

    Attributes:
        name: tells its content from that of other containerds; the same over restarts.
        path: of the socket.
    """

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits and places.

    Attributes:
        listen: paths of the sockets to make.
        proxies: sockets for containerds that keep their content here.
        rights: who may connect to them.
        drain_seconds: how long calls may go on after the request to stop.
        max_concurrent_pulls: pulls at work at one time; more wait.
        max_connections: connections at one time, for each socket.
        gc_seconds: longest time between two collections; 0 leaves collecting to others.
        metrics: loopback host and port to publish numbers at, or None.
        tracing: keeps spans of calls, or None.
    """

    listen: tuple[str, ...]
    proxies: tuple[ProxyContent, ...] = ()
    rights: SocketRights = field(default_factory=SocketRights)
    drain_seconds: float = 30.0
    max_concurrent_pulls: int = 16
    max_connections: int = 1024
    gc_seconds: float = 3600.0
    metrics: tuple[str, int] | None = None
    tracing: Tracing | None = None
