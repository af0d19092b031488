"""HTTP to a Docker Engine over its unix socket; the one importer of httpx on the node side.

Rules (Docker Engine API): HTTP/1.1, the Host header is free, paths begin with the negotiated version, errors are JSON
with a ``message``. Answers are bounded; a stream ends when its token is cancelled or nothing came for too long.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import httpx

from imagestore.errors import DeadlineExceededError, ImageServiceError, ServiceUnavailableError
from imagestore.node.docker import api
from imagestore.node.docker.api import negotiate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.util.cancel import CancelToken

#: Lists of some ten thousand images stay below it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_HOST: Final = "http://docker"
#: A socket that may not wait at all would fail before the token is asked.
_SHORTEST_WAIT: Final = 0.001
_KNOCK_AGAIN_SECONDS: Final = 0.01


class EngineConnection:
    """Requests to one engine; safe from any thread. Paths are escaped, and without the API's version.

    Args:
        socket_path: of the engine.
        timeout_seconds: for every answer but streams.

    Attributes:
        shown: names the engine in messages.
    """

    def __init__(self, socket_path: str, *, timeout_seconds: float) -> None:
        # Sockets can't wait for longer.
        self._timeout = min(timeout_seconds, threading.TIMEOUT_MAX)
        self._socket_path = socket_path
        self.shown = f"docker engine at {socket_path}"
        self._version = ""
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(
                uds=socket_path,
                # The socket speaks no TLS: an empty context, since reading the authorities takes longer than a call.
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                # Each request sees its connection made, so that it can be shut down from then on.
                limits=httpx.Limits(max_keepalive_connections=0),
            ),
            trust_env=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "imagestore"},
        )

    def json(self, path: str, what: str = "", **parts: Any) -> Any:
        """GET a document; as request()."""
        body = self.request("GET", path, what, **parts)
        return None if body is None else api.decode(body, what or f"{self.shown}: {path}")

    def request(
        self,
        method: str,
        path: str,
        what: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        is_registry: bool = False,
    ) -> bytes | None:
        """One request and its whole answer; None where the engine has no such thing.

        Args:
            method: of HTTP.
            path: of the API.
            what: names the request in the engine's refusals; else its path does.
            query: unescaped.
            headers: of this request.
            is_registry: a refusal is that of a registry, passed on by the engine.

        Raises:
            ServiceUnavailableError: the engine can't be reached, or the answer was cut off.
            DeadlineExceededError: no answer in time.
            ImageServiceError, RegistryError, InvalidInputError: the engine refuses; the answer is too large.
        """
        with self._sent(method, self._versioned(path), self._timeout, query=query, headers=headers) as response:
            body = self._whole(response)
        if response.status_code == 404 and not is_registry:
            return None
        if response.status_code >= 300:
            raise api.failure(response.status_code, body, what or f"{self.shown}: {path}", is_registry=is_registry)
        return body

    @contextlib.contextmanager
    def stream(
        self,
        path: str,
        what: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        stall_seconds: float,
        cancel: CancelToken | None,
    ) -> Iterator[Iterator[bytes]]:
        """POST, and give the answer's body as it comes; a refusal is a registry's.

        Args:
            path: of the API.
            what: names the request in errors.
            query: unescaped.
            headers: of this request.
            stall_seconds: how long nothing may come.
            cancel: ends it.

        Raises:
            As request(); OperationCancelledError when the token ends it.
        """
        versioned = self._versioned(path, cancel)
        with self._sent("POST", versioned, stall_seconds, cancel, query=query, headers=headers) as response:
            if response.status_code >= 300:
                raise api.failure(response.status_code, self._whole(response), what, is_registry=True)
            yield response.iter_raw()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _versioned(self, path: str, cancel: CancelToken | None = None) -> str:
        """Asks the engine for its version at the first call."""
        if not self._version:
            with self._sent("GET", "/_ping", self._timeout, cancel) as response:
                body = self._whole(response)
            if response.status_code >= 300:
                raise api.failure(response.status_code, body, f"{self.shown}: /_ping")
            self._version = negotiate(response.headers.get("api-version"))
        return f"/v{self._version}{path}"

    @contextlib.contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        read_seconds: float,
        cancel: CancelToken | None = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """One exchange; cancelling shuts its socket down, so that a blocked read ends."""
        self._knock(cancel)
        # A deadline calls nobody; a read that waits for longer wouldn't see it pass.
        left = cancel.remaining_seconds() if cancel is not None else None
        waits = min(read_seconds, threading.TIMEOUT_MAX if left is None else max(left, _SHORTEST_WAIT))
        with contextlib.ExitStack() as stack:

            def trace(step: str, info: Mapping[str, Any]) -> None:
                # An engine answers a pull when it has progress to tell; the answer would name the socket too late.
                if cancel is not None and step == "connection.connect_unix_socket.complete":
                    wire = info["return_value"].get_extra_info("socket")
                    stack.enter_context(cancel.on_cancel(lambda: _shut_down(wire)))

            try:
                yield stack.enter_context(
                    self._client.stream(
                        method,
                        _HOST + path,
                        params=query,
                        headers=headers,
                        timeout=httpx.Timeout(self._timeout, read=waits),
                        extensions={"trace": trace},
                    )
                )
            except httpx.HTTPError as error:
                if cancel is not None:
                    cancel.check()
                asked = f"{self.shown}: {method} {path}"
                if isinstance(error, httpx.TimeoutException):
                    raise DeadlineExceededError(f"{asked}: nothing came in time") from error
                raise ServiceUnavailableError(f"{asked}: {str(error) or 'the answer ended'}") from error

    def _knock(self, cancel: CancelToken | None) -> None:
        """See whether anybody listens: httpcore leaves the sockets open whose connection failed."""
        give_up_at = time.monotonic() + self._timeout
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            probe.settimeout(self._timeout)
            while True:
                try:
                    probe.connect(self._socket_path)
                    return
                except OSError as error:
                    # An engine that accepts slowly: a unix socket with a timeout doesn't wait for a place in the line.
                    if not isinstance(error, BlockingIOError) or time.monotonic() >= give_up_at:
                        reason = error.strerror or str(error)
                        hint = "is the engine running, and may you use its socket?"
                        raise ServiceUnavailableError(f"{self.shown}: can't be reached: {reason}", hint=hint) from error
                if cancel is not None:
                    cancel.check()
                time.sleep(_KNOCK_AGAIN_SECONDS)

    def _whole(self, response: httpx.Response) -> bytes:
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise ImageServiceError(f"{self.shown}: answer is larger than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)


def _shut_down(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
