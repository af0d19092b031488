"""HTTP to a Docker Engine over its unix socket.

Rules (Docker Engine API): HTTP/1.1, the Host header is free, paths begin with the negotiated version, errors are JSON
with a ``message``. Answers are bounded, in bytes and in time. A stream ends if its token is cancelled or past its
deadline, or if nothing came for too long. A socket's timeout limits each read only, so a timer shuts the socket down.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from imagestore.errors import DeadlineExceededError, ImageServiceError, InvalidInputError, ServiceUnavailableError
from imagestore.node.docker import api
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Lists of some ten thousand images are smaller.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_HEADERS: Final = {"Connection": "close", "User-Agent": "imagestore"}
_LATER_SECONDS: Final = 0.001
_CONNECT_AGAIN_SECONDS: Final = 0.01


class EngineConnection:
    """Requests to one engine, each over a connection of its own; safe from any thread.

    Paths are escaped, and without the API's version.

    Args:
        socket_path: of the engine.
        timeout_seconds: for every whole answer, except streams.

    Attributes:
        shown: names the engine in messages.
    """

    def __init__(self, socket_path: str, *, timeout_seconds: float) -> None:
        # Sockets can't wait for longer.
        self._timeout = min(timeout_seconds, threading.TIMEOUT_MAX)
        self._socket_path = socket_path
        self.shown = f"docker engine at {socket_path}"
        self._version = ""

    def json(self, path: str, what: str = "", **parts: Any) -> Any:
        """GET a document; see request()."""
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
        """One request and its whole answer; None if the engine has no such object.

        Args:
            method: of HTTP.
            path: of the API.
            what: names the request in the engine's errors; by default its path.
            query: unescaped.
            headers: of this request.
            is_registry: the engine passes on a registry's error.

        Raises:
            ServiceUnavailableError: the engine can't be reached, or the answer was truncated.
            DeadlineExceededError: no answer in time.
            ImageServiceError, RegistryError: the engine reports an error, or its answer is too large.
            InvalidInputError: the request can't be written, or the engine calls it invalid.
        """
        with self._sent(method, self._versioned(path), query=query, headers=headers) as (answer, chunks):
            body = self._whole(chunks)
        if answer.status == 404 and not is_registry:
            return None
        if answer.status >= 300:
            raise api.failure(answer.status, body, what or f"{self.shown}: {path}", is_registry=is_registry)
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
        """POST, and yield the body's chunks as they arrive; an error is a registry's.

        Args:
            path: of the API.
            what: names the request in errors.
            query: unescaped.
            headers: of this request.
            stall_seconds: how long nothing may arrive.
            cancel: ends the call.

        Raises:
            As request(); OperationCancelledError if the token ends the call.
        """
        versioned = self._versioned(path, cancel)
        sent = self._sent("POST", versioned, cancel, stall_seconds=stall_seconds, query=query, headers=headers)
        with sent as (answer, chunks):
            if answer.status >= 300:
                raise api.failure(answer.status, self._whole(chunks), what, is_registry=True)
            yield chunks

    def _versioned(self, path: str, cancel: CancelToken | None = None) -> str:
        """The path with the API's version, which the first call negotiates."""
        if not self._version:
            with self._sent("GET", "/_ping", cancel) as (answer, chunks):
                body = self._whole(chunks)
            if answer.status >= 300:
                raise api.failure(answer.status, body, f"{self.shown}: /_ping")
            self._version = api.negotiate(answer.headers.get("api-version"))
        return f"/v{self._version}{path}"

    @contextlib.contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        cancel: CancelToken | None = None,
        *,
        stall_seconds: float | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[http.client.HTTPResponse, Iterator[bytes]]]:
        """One exchange: the head of the answer, and the chunks of its body.

        ``stall_seconds`` limits the time without data instead of the whole exchange.
        """
        what = f"{self.shown}: {method} {path}"
        limit = _Limit(what, self._timeout if stall_seconds is None else None, cancel)
        target = f"{path}?{urlencode(query)}" if query else path
        with contextlib.ExitStack() as stack:
            wire = stack.enter_context(self._connected(cancel))
            stack.enter_context(limit.ending(wire))
            exchange = http.client.HTTPConnection("docker")
            exchange.sock = wire
            with limit.translated():
                try:
                    exchange.request(method, target, headers={**_HEADERS, **(headers or {})})
                except (http.client.InvalidURL, ValueError) as error:
                    raise InvalidInputError(f"{self.shown}: a request of {method} can't be written: {error}") from error
                wire.settimeout(min(stall_seconds or self._timeout, threading.TIMEOUT_MAX))
                answer = stack.enter_context(contextlib.closing(exchange.getresponse()))
            yield answer, limit.checked(_chunks(answer))

    def _connected(self, cancel: CancelToken | None) -> socket.socket:
        give_up_at = time.monotonic() + self._timeout
        with contextlib.ExitStack() as stack:
            wire = stack.enter_context(socket.socket(socket.AF_UNIX))
            wire.settimeout(self._timeout)
            while True:
                try:
                    wire.connect(self._socket_path)
                    stack.pop_all()
                    return wire
                except OSError as error:
                    # With a timeout, connect() to a unix socket doesn't wait for a place in a full queue.
                    if not isinstance(error, BlockingIOError) or time.monotonic() >= give_up_at:
                        reason = error.strerror or str(error)
                        hint = "is the engine running, and may you use its socket?"
                        raise ServiceUnavailableError(f"{self.shown}: can't be reached: {reason}", hint=hint) from error
                if cancel is not None:
                    cancel.check()
                time.sleep(_CONNECT_AGAIN_SECONDS)

    def _whole(self, chunks: Iterator[bytes]) -> bytes:
        body = bytearray()
        for chunk in chunks:
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise ImageServiceError(f"{self.shown}: answer is larger than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    left = answer.length  # None for a chunked body, and for one that ends with the connection
    while chunk := answer.read1(_CHUNK_BYTES if left is None else min(_CHUNK_BYTES, left)):
        left = None if left is None else left - len(chunk)
        yield chunk
    if left:  # read1() returns nothing for a truncated body
        raise http.client.IncompleteRead(b"", left)


class _Limit:
    """How long an exchange, ``what`` in errors, may last: some seconds from now, or until its token ends it."""

    def __init__(self, what: str, seconds: float | None, cancel: CancelToken | None) -> None:
        self._what = what
        self._seconds = seconds
        self._give_up_at = math.inf if seconds is None else time.monotonic() + seconds
        self._cancel = cancel or CancelToken()

    def check(self) -> None:
        """Raise OperationCancelledError or DeadlineExceededError if the exchange must end."""
        self._cancel.check()
        if time.monotonic() >= self._give_up_at:
            raise DeadlineExceededError(f"{self._what}: no whole answer within {self._seconds:g} seconds")

    def checked(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks of a body; the last check is for a body without length, which a shut socket ends too."""
        with self.translated():
            for chunk in chunks:
                self.check()
                yield chunk
        self.check()

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the library's errors for those of the socket and of HTTP."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.check()
            if isinstance(error, TimeoutError):
                raise DeadlineExceededError(f"{self._what}: nothing came in time") from error
            raise ServiceUnavailableError(f"{self._what}: {str(error) or 'the answer ended'}") from error

    @contextlib.contextmanager
    def ending(self, wire: socket.socket) -> Iterator[None]:
        """Shut the socket down when the limit is reached, so that a blocked read ends."""
        left = self._give_up_at - time.monotonic()
        deadline = self._cancel.remaining_seconds()
        left = left if deadline is None else min(left, deadline)
        with self._cancel.on_cancel(lambda: _shut_down(wire)):
            if left == math.inf:
                yield
                return
            # A moment later, so that check() raises too.
            timer = threading.Timer(min(max(left, 0.0) + _LATER_SECONDS, threading.TIMEOUT_MAX), _shut_down, (wire,))
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # too many threads; each chunk is checked anyway
                timer.start()
            try:
                yield
            finally:
                timer.cancel()


def _shut_down(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
