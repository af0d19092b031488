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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from imagestore.errors import DeadlineExceededError, ImageServiceError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.cancel import CancelToken

#: Lists of some ten thousand images stay below it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_MAX_ERROR_BYTES: Final = 64 * 1024
_HOST: Final = "http://docker"
#: A socket that may not wait at all would fail before the token is asked.
_SHORTEST_WAIT: Final = 0.001
_KNOCK_AGAIN_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        status: of HTTP.
        headers: by lower-case name.
        body: bounded.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class EngineConnection:
    """Requests to one engine; safe from any thread.

    Args:
        socket_path: of the engine.
        timeout_seconds: for every answer but streams.
    """

    def __init__(self, socket_path: str, *, timeout_seconds: float) -> None:
        # Sockets can't wait for longer.
        self._timeout = min(timeout_seconds, threading.TIMEOUT_MAX)
        self._socket_path = socket_path
        self._client = _client(socket_path, httpx.Timeout(self._timeout))
        self._shown = f"docker engine at {socket_path}"

    @property
    def shown(self) -> str:
        """For messages."""
        return self._shown

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request and its whole answer, whatever its status.

        Args:
            method: of HTTP.
            path: with its version; already escaped.
            query: unescaped.
            headers: of this request.

        Raises:
            ServiceUnavailableError: the engine can't be reached, or the answer was cut off.
            DeadlineExceededError: no answer in time.
            ImageServiceError: the answer is too large.
        """
        self._knock()
        with (
            self._translated(method, path),
            self._client.stream(method, _HOST + path, params=query, headers=headers) as response,
        ):
            return self._whole(response, MAX_ANSWER_BYTES)

    @contextlib.contextmanager
    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        stall_seconds: float,
        cancel: CancelToken | None,
    ) -> Iterator[tuple[Answer, Iterator[bytes]]]:
        """POST, and give the answer's body as it comes; with an error status the body is in the answer instead.

        Args:
            path: with its version.
            query: unescaped.
            headers: of this request.
            stall_seconds: how long nothing may come.
            cancel: ends it.

        Raises:
            As request(); OperationCancelledError when the token ends it.
        """
        self._knock(cancel)
        # A deadline calls nobody; a read that waits for longer wouldn't see it pass.
        left = cancel.remaining_seconds() if cancel is not None else None
        waits = min(stall_seconds, threading.TIMEOUT_MAX if left is None else max(left, _SHORTEST_WAIT))
        timeout = httpx.Timeout(self._timeout, read=waits)
        wire = _Wire()
        try:
            with (
                # A connection of its own, so that it is seen when it is made, and can be shut down from then on.
                self._translated("POST", path),
                _client(self._socket_path, timeout) as client,
                wire.shut_down_by(cancel),
                client.stream(
                    "POST", _HOST + path, params=query, headers=headers, extensions={"trace": wire.watch}
                ) as response,
            ):
                if response.status_code >= 300:
                    yield self._whole(response, _MAX_ERROR_BYTES), iter(())
                    return
                yield Answer(response.status_code, dict(response.headers), b""), response.iter_raw()
        except (ServiceUnavailableError, DeadlineExceededError):
            if cancel is not None:
                cancel.check()
            raise

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _knock(self, cancel: CancelToken | None = None) -> None:
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
                        raise ServiceUnavailableError(
                            f"{self._shown}: can't be reached: {reason}", hint=hint
                        ) from error
                if cancel is not None:
                    cancel.check()
                time.sleep(_KNOCK_AGAIN_SECONDS)

    def _whole(self, response: httpx.Response, limit_bytes: int) -> Answer:
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > limit_bytes:
                raise ImageServiceError(f"{self._shown}: answer is larger than {limit_bytes} bytes")
        return Answer(response.status_code, dict(response.headers), bytes(body))

    @contextlib.contextmanager
    def _translated(self, method: str, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise DeadlineExceededError(f"{self._shown}: {method} {path}: nothing came in time") from error
        except httpx.HTTPError as error:
            raise ServiceUnavailableError(
                f"{self._shown}: {method} {path}: {str(error) or 'the answer ended'}"
            ) from error


def _client(socket_path: str, timeout: httpx.Timeout) -> httpx.Client:
    # The socket speaks no TLS: an empty context, since reading the system's authorities would take longer than a call.
    no_authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=socket_path, verify=no_authorities),
        timeout=timeout,
        trust_env=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "imagestore"},
    )


class _Wire:
    """The socket of one connection, from the moment it is connected."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._is_over = False

    def watch(self, name: str, info: Mapping[str, Any]) -> None:
        """Hears of the connection's steps."""
        if name == "connection.connect_unix_socket.complete":
            found = info["return_value"].get_extra_info("socket")
            self._socket = found if isinstance(found, socket.socket) else None
            if self._is_over:
                self._shut_down()

    @contextlib.contextmanager
    def shut_down_by(self, cancel: CancelToken | None) -> Iterator[None]:
        """While the block runs, cancelling shuts the socket down, so that a blocked read ends."""
        if cancel is None:
            yield
            return
        with cancel.on_cancel(self._end):
            yield

    def _end(self) -> None:
        self._is_over = True
        self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
