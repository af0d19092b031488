"""HTTP to a Docker Engine over its unix socket; the one importer of httpx on the node side.

Rules (Docker Engine API): HTTP/1.1, the Host header is free, paths begin with the negotiated version, errors are JSON
with a ``message``. Answers are bounded; a stream ends when its token is cancelled or nothing came for too long.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.errors import DeadlineExceededError, ImageServiceError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.cancel import CancelToken

#: Lists of some ten thousand images stay below it.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_MAX_ERROR_BYTES: Final = 64 * 1024
_HOST: Final = "http://docker"


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
        self._timeout = timeout_seconds
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket_path),
            timeout=httpx.Timeout(timeout_seconds),
            trust_env=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "imagestore"},
        )
        self._shown = f"docker engine at {socket_path}"

    @property
    def shown(self) -> str:
        """For messages."""
        return self._shown

    def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> Answer:
        """One request and its whole answer, whatever its status.

        Args:
            method: of HTTP.
            path: with its version; already escaped.
            query: unescaped.

        Raises:
            ServiceUnavailableError: the engine can't be reached, or the answer was cut off.
            DeadlineExceededError: no answer in time.
            ImageServiceError: the answer is too large.
        """
        with self._translated(method, path), self._client.stream(method, _HOST + path, params=query) as response:
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
        timeout = httpx.Timeout(self._timeout, read=stall_seconds)
        try:
            with (
                self._translated("POST", path),
                self._client.stream("POST", _HOST + path, params=query, headers=headers, timeout=timeout) as response,
                _shut_down(response, cancel),
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
        except httpx.ConnectError as error:
            hint = "is the engine running, and may you use its socket?"
            raise ServiceUnavailableError(f"{self._shown}: can't be reached: {error}", hint=hint) from error
        except httpx.TimeoutException as error:
            raise DeadlineExceededError(f"{self._shown}: {method} {path}: nothing came in time") from error
        except httpx.HTTPError as error:
            raise ServiceUnavailableError(
                f"{self._shown}: {method} {path}: {str(error) or 'the answer ended'}"
            ) from error


@contextlib.contextmanager
def _shut_down(response: httpx.Response, cancel: CancelToken | None) -> Iterator[None]:
    """While the block runs, cancelling shuts the socket down, so that a blocked read ends."""
    if cancel is None:
        yield
        return
    stream = response.extensions.get("network_stream")
    wire = stream.get_extra_info("socket") if stream is not None else None

    def end() -> None:
        if isinstance(wire, socket.socket):
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    with cancel.on_cancel(end):
        yield
