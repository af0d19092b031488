"""A server's settings; a reload changes the configuration of handlers and registries, never these."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.server.sockets import SocketRights
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    from imagestore.publish import PublishSettings
    from imagestore.server.tracing import Tracing


@dataclass(frozen=True, slots=True)
class ProxyContent:
    """The socket of one containerd's content store; ``name`` tells its content apart, and is the same over restarts."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits and addresses.

    Attributes:
        listen: paths of the sockets to make.
        proxies: sockets for containerds that keep their content here.
        drain_seconds: how long calls may go on after the signal to stop.
        max_connections: at one time, for each socket.
        gc_seconds: longest time between two collections; 0 switches them off.
        metrics: loopback host and port.
        mirror: host (empty for all addresses) and port.
        kubelet: paths of sockets with a kubelet's view of images.
        publish: into which containerd images are published; None for none.
        take_over: containerd's records of a store of this id on another machine are this store's.
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
    mirror: tuple[str, int] | None = None
    kubelet: tuple[str, ...] = ()
    publish: PublishSettings | None = None
    take_over: bool = False


_PORT: Final = re.compile(r"[0-9]{1,5}")


def loopback_address(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9580`` or ``[::1]:9580``; port 0 lets the system choose.

    Raises:
        InvalidInputError: it can't be read, or other machines could reach it.

    >>> loopback_address("127.0.0.1:9580")
    ('127.0.0.1', 9580)
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise InvalidInputError(
            f"metrics address {without_login(text)!r}: expected ADDRESS:PORT, such as 127.0.0.1:9580"
        ) from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # Python before 3.13 doesn't know it for loopback
    if not address.is_loopback:
        raise InvalidInputError(
            f"metrics address {without_login(text)!r}: expected a loopback address, got {address}",
            hint="the numbers are for this machine's collector; use 127.0.0.1 or [::1]",
        )
    if _PORT.fullmatch(port) is None or int(port) > 65535:
        raise InvalidInputError(
            f"metrics address {without_login(text)!r}: expected a port from 0 to 65535, got {port!r}"
        )
    return str(address), int(port)
