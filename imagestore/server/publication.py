"""The HTTP server that hands numbers out.

Any user of the machine can connect to a loopback port, also those who may not connect to our sockets. So connections
are few at a time and short: who comes when there are too many is turned away; who says nothing is cut off, and so is
who says a byte now and then.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 32
SILENCE_SECONDS: Final = 5.0
#: The only path that is answered.
PATH: Final = "/metrics"


class Publication:
    """Answers requests, until closed.

    Args:
        handler: answers one request; a class of Prometheus' library.
        host: to listen at.
        port: 0 lets the system choose.
        silence_seconds: how long a caller may say nothing, or not read; all of it may take twice that.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], host: str, port: int, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        # The library's class is everybody's; what we set is set on one of our own.
        bounded = type("BoundedHandler", (_OnlyMetrics, handler), {"timeout": silence_seconds})
        self._server = _Server(host, port, bounded, 2 * silence_seconds)
        self._thread = threading.Thread(target=self._server.serve_forever, name="numbers", daemon=True)
        self._thread.start()
        #: Where it listens.
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _OnlyMetrics(BaseHTTPRequestHandler):
    """GET and HEAD of one path; the class behind it in the order of bases answers GET."""

    def do_GET(self) -> None:
        """Hand the numbers out."""
        if self._is_known():
            super().do_GET()  # type: ignore[misc]  # the next class has it

    def do_HEAD(self) -> None:
        """Say that they are there; measuring what the store holds is for those who read it."""
        if self._is_known():
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()

    def _is_known(self) -> bool:
        try:
            is_known = urlsplit(self.path).path == PATH
        except ValueError:
            is_known = False
        if not is_known:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"the numbers are at {PATH}")
        return is_known


class _Server(ThreadingHTTPServer):
    """A thread for each connection, up to a limit."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._ends: dict[socket.socket, float] = {}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, or close it."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        self._ends[request] = time.monotonic() + self._limit_seconds
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._ends[request]
            self._places.release()

    def service_actions(self) -> None:
        """Cut off who takes too long; called twice a second."""
        now = time.monotonic()
        for connection, end in self._ends.copy().items():
            if now > end:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log it; the library would write to standard error. Callers that go away are no news."""
        log.debug("a request for numbers failed", exc_info=True)
