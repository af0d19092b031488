"""Prometheus' HTTP server for the metrics, with one path.

Any user of the machine can connect to a loopback port. So idle connections are closed, and if there are too many, the
oldest.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import CollectorRegistry


log = logging.getLogger(__name__)

#: The only path that is answered.
PATH: Final = "/metrics"
#: Limit of connections; each has a thread and a file descriptor.
MOST_CONNECTIONS: Final = 32


class MetricsServer:
    """Answers requests until closed; port 0 lets the system choose.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        numbers = make_wsgi_app(registry)

        def _answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if environ["PATH_INFO"] != PATH:
                return _refused(HTTPStatus.NOT_FOUND, f"the numbers are at {PATH}", start_response)
            try:
                return numbers(environ, start_response)  # type: ignore[no-any-return]  # the library has no types here
            except Exception:
                log.exception("the numbers can't be collected")
                return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "the server's log says why", start_response)

        def _refused(status: HTTPStatus, text: str, start_response: StartResponse) -> Iterable[bytes]:
            start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain")])
            return [f"{text}\n".encode()]

        self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        self._server.set_app(_answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="numbers", daemon=True)
        self._thread.start()
        #: Where it listens.
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingWSGIServer):
    #: Backlog of connections; a client that finds it full retries only after a second.
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._connections: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. Beyond the limit, close the oldest connection, which might stay open forever."""
        with self._lock:
            self._connections.append(request)
            surplus = self._connections.popleft() if len(self._connections) > MOST_CONNECTIONS else None
        if surplus is not None:
            with contextlib.suppress(OSError):
                surplus.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock, contextlib.suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error; the library would write it to standard error. A client that disconnects is not logged."""
        log.debug("a request for numbers failed", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    #: Longest time without a byte, in seconds.
    timeout = 5.0

    def log_message(self, *_: object) -> None:
        """Log nothing for requests."""
