"""HTTP to a Docker Engine over its unix socket; the one importer of httpx on the node side.

Rules (Docker Engine API): HTTP/1.1, the Host header is free, paths begin with the negotiated version, errors are JSON
with a ``message``. Answers are bounded, in bytes and in time; a stream ends when its token is cancelled or past its
deadline, and when nothing came for too long. A limit of httpx holds for each read only, so a timer shuts the socket
down.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import httpx

from imagestore.errors import DeadlineExceededError, ImageServiceError, InvalidInputError, ServiceUnavailableError
from imagestore.node.docker import api
from imagestore.node.docker.api import negotiate
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.util.cancel import CancelToken

#: Lists of some ten thousand images stay below it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_HOST: Final = "http://docker"
_LATER_SECONDS: Final = 0.001
_KNOCK_AGAIN_SECONDS: Final = 0.01


class EngineConnection:
    """Requests to one engine; safe from any thread. Paths are escaped, and without the API's version.

    Args:
        socket_path: of the engine.
        timeout_seconds: for every answer as a whole, but for streams.

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
            ImageServiceError, RegistryError, InvalidInputError: the engine refuses; the answer is too large, or a
                redirect that can't be read; the request can't be written.
        """
        with self._sent(method, self._versioned(path), query=query, headers=headers) as (response, chunks):
            body = self._whole(chunks)
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
        sent = self._sent("POST", versioned, cancel, stall_seconds=stall_seconds, query=query, headers=headers)
        with sent as (response, chunks):
            if response.status_code >= 300:
                raise api.failure(response.status_code, self._whole(chunks), what, is_registry=True)
            yield chunks

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _versioned(self, path: str, cancel: CancelToken | None = None) -> str:
        """Asks the engine for its version at the first call."""
        if not self._version:
            with self._sent("GET", "/_ping", cancel) as (response, chunks):
                body = self._whole(chunks)
            if response.status_code >= 300:
                raise api.failure(response.status_code, body, f"{self.shown}: /_ping")
            self._version = negotiate(response.headers.get("api-version"))
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
    ) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
        """One exchange: the head of the answer, and its body as it comes.

        Args:
            method, path: of HTTP.
            cancel: ends it.
            stall_seconds: how long nothing may come, without a limit for the whole; None for an answer that has one.
            query, headers: of the request.
        """
        self._knock(cancel)
        asked = f"{self.shown}: {method} {path}"
        waits = min(stall_seconds or self._timeout, threading.TIMEOUT_MAX)
        limit = _Limit(asked, self._timeout if stall_seconds is None else None, cancel)
        with contextlib.ExitStack() as stack:

            def _trace(step: str, info: Mapping[str, Any]) -> None:
                # An engine answers a pull when it has progress to tell; the answer would name the socket too late.
                if step == "connection.connect_unix_socket.complete":
                    stack.enter_context(limit.ending(info["return_value"].get_extra_info("socket")))

            try:
                request = self._client.build_request(
                    method,
                    _HOST + path,
                    params=query,
                    headers=headers,
                    timeout=httpx.Timeout(self._timeout, read=waits),
                    extensions={"trace": _trace},
                )
            except (httpx.InvalidURL, UnicodeError) as error:
                raise InvalidInputError(f"{self.shown}: a request of {method} can't be written: {error}") from error
            try:
                response = stack.enter_context(contextlib.closing(self._send(request, asked)))
                yield response, limit.checked(response.iter_raw())
            except httpx.HTTPError as error:
                limit.check()
                if isinstance(error, httpx.TimeoutException):
                    raise DeadlineExceededError(f"{asked}: nothing came in time") from error
                raise ServiceUnavailableError(f"{asked}: {str(error) or 'the answer ended'}") from error

    def _send(self, request: httpx.Request, asked: str) -> httpx.Response:
        try:
            return self._client.send(request, stream=True)
        except (httpx.InvalidURL, UnicodeError) as error:
            # httpx reads where a redirect leads, also if it doesn't go there; idna refuses hosts by a UnicodeError.
            raise ImageServiceError(f"{asked}: redirects to an address that can't be read") from error

    def _knock(self, cancel: CancelToken | None) -> None:
        """Check that the engine listens: httpcore leaves sockets open whose connection failed."""
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

    def _whole(self, chunks: Iterator[bytes]) -> bytes:
        body = bytearray()
        for chunk in chunks:
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise ImageServiceError(f"{self.shown}: answer is larger than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)


class _Limit:
    """How long an exchange may last.

    Args:
        asked: names it in errors.
        seconds: in all, from now; None for no limit.
        cancel: ends it too.
    """

    def __init__(self, asked: str, seconds: float | None, cancel: CancelToken | None) -> None:
        self._asked = asked
        self._seconds = seconds
        self._give_up_at = math.inf if seconds is None else time.monotonic() + seconds
        self._cancel = cancel or CancelToken()

    def check(self) -> None:
        """Raise when it is over.

        Raises:
            OperationCancelledError, DeadlineExceededError: it is.
        """
        self._cancel.check()
        if time.monotonic() >= self._give_up_at:
            raise DeadlineExceededError(f"{self._asked}: no whole answer within {self._seconds:g} seconds")

    def checked(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks of a body; a socket that was shut down looks like a clean end where a body has no length."""
        for chunk in chunks:
            self.check()
            yield chunk
        self.check()

    @contextlib.contextmanager
    def ending(self, wire: socket.socket) -> Iterator[None]:
        """Shut a socket down as soon as the exchange is over, so that a blocked read ends."""
        left = self._give_up_at - time.monotonic()
        deadline = self._cancel.remaining_seconds()
        left = left if deadline is None else min(left, deadline)
        with self._cancel.on_cancel(lambda: _shut_down(wire)):
            if left == math.inf:
                yield
                return
            # A moment later, so that check() sees it too.
            timer = threading.Timer(min(max(left, 0.0) + _LATER_SECONDS, threading.TIMEOUT_MAX), _shut_down, (wire,))
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # no more threads for this process: each chunk is checked anyway
                timer.start()
            try:
                yield
            finally:
                timer.cancel()


def _shut_down(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
