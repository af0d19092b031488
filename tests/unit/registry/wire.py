"""What the tests of the sender on real sockets share."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from imagestore.registry.transport.http import Timeouts
from imagestore.registry.transport.network import Pace

SHORT = Timeouts(connect=2.0, idle=0.2, pace=Pace(head_seconds=0.4))
RawServers = Callable[..., Any]


def say(*pieces: bytes, then: Callable[[socket.socket], None] | None = None) -> Callable[[socket.socket], None]:
    def run(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
        if then is not None:
            then(connection)

    return run


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
