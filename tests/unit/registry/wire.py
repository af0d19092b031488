"""What the tests of answers share: on real sockets, and scripted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from imagestore import Descriptor, Digest
from imagestore.config.hosts import HostConfig, RegistryHosts
from imagestore.registry.endpoints import Endpoint, endpoints_from
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.network import Timeouts

#: For exchanges that end well, however busy the machine is.
PATIENT = Timeouts(connect=60.0, idle=60.0, head=60.0)
#: For peers who never go on.
HASTY = Timeouts(connect=60.0, idle=0.2, head=0.4)
RawServers = Callable[..., Any]
MakeBench = Callable[..., Any]
ONE, OTHER = Origin("https", "one.example", 443), Origin("https", "other.example", 443)
CONTENT = b"x" * 1000
LAYER = Descriptor("application/octet-stream", Digest.of(CONTENT), len(CONTENT))


def say(*pieces: bytes, then: Callable[[socket.socket], None] | None = None) -> Callable[[socket.socket], None]:
    def run(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
        if then is not None:
            then(connection)

    return run


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


class Body(httpx.SyncByteStream):
    """Pieces that may end with an exception."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class Mirrored:
    """A registry behind one mirror."""

    def __call__(self, host: str) -> tuple[Endpoint, ...]:
        return endpoints_from(host, RegistryHosts((HostConfig("https://mirror.example/v2"),)))
