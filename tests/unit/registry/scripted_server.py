"""A server of scripts: what each connection sends, in turn."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from imagestore import CancelToken
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import Response, make_request
from tests.support.streams import drain

PIECE = 256 * 1024
SIZE = 3 * PIECE + 17
BODY = (bytes(index * 7 % 251 for index in range(251)) * (SIZE // 251 + 1))[:SIZE]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"

Script = Callable[[socket.socket], None]


@dataclass
class Server:
    """Serves connections one after the other; each request of any of them runs the next script."""

    scripts: list[Script]
    context: ssl.SSLContext | None = None
    connections: int = 0
    threads: list[threading.Thread] = field(default_factory=list)
    accepted: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                self.accepted.append(connection)
                self._start(self._serve, connection)

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, contextlib.suppress(OSError, IndexError):
            accepted.settimeout(60)
            connection = accepted if self.context is None else self.context.wrap_socket(accepted, server_side=True)
            with connection:
                while _read_head(connection):
                    self.scripts.pop(0)(connection)

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.accepted:
            # One that TLS wraps, or that was closed, isn't ours any more.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


Serve = Callable[..., Server]


def _read_head(connection: socket.socket) -> bool:
    head = b""
    while b"\r\n\r\n" not in head:
        data = connection.recv(65536)
        if not data:
            return False
        head += data
    return True


def whole(body: bytes = BODY) -> Script:
    return lambda connection: connection.sendall(HEAD % len(body) + body)


def say(*parts: bytes, pause: float = 0.0) -> Script:
    def run(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)

    return run


def hang_up_after(script: Script) -> Script:
    def run(connection: socket.socket) -> None:
        script(connection)
        connection.close()

    return run


def reset(connection: socket.socket) -> None:
    """End a connection without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()


def get(sender: HttpSender, server: Server, cancel: CancelToken | None = None) -> Response:
    return sender.send(make_request("GET", f"http://127.0.0.1:{server.port}/v2/x"), cancel=cancel or CancelToken())


def read(sender: HttpSender, server: Server) -> bytes:
    with get(sender, server) as response:
        return drain(response)
