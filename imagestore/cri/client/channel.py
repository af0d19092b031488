"""One connection to a CRI server, and one blocking call on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from imagestore.cri.errors import error_of
from imagestore.errors import ImageServiceError
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.cri.endpoint import Endpoint

A = TypeVar("A")
C = TypeVar("C")
Q = TypeVar("Q")

#: Message limit of every CRI client, in bytes.
MESSAGE_BYTES: Final = 16 * 1024 * 1024
#: A hundred years; grpc takes a deadline beyond 64 bits of nanoseconds for one that has passed.
_LONGEST_SECONDS: Final = 36525 * 24 * 3600.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # Go servers refuse a request whose authority is a socket's path.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # As the kubelet's client: reconnect soon after a long outage. The minimal back-off is not changed, since it also
    # is the time that a starting server has to answer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
)


class CriChannel:
    """Calls one server; thread-safe. Connects at the first call. The token ends every call without one of its own."""

    def __init__(self, endpoint: Endpoint, cancel: CancelToken | None = None) -> None:
        self.endpoint = endpoint.text
        self.cancel = cancel or CancelToken()
        self.raw = grpc.insecure_channel(f"unix:{endpoint.path}", options=_OPTIONS)

    def call(
        self,
        method: grpc.UnaryUnaryMultiCallable[Q, A],
        request: Q,
        *,
        name: str,
        seconds: float | None,
        cancel: CancelToken | None = None,
    ) -> A:
        """Call a method and wait for the answer.

        Args:
            method: of a stub on ``raw``.
            request: message to send.
            name: of the method, for error texts.
            seconds: time limit, in addition to the token's deadline.
            cancel: ends the call, instead of the channel's token.

        Raises:
            ImageStoreError: the server's error, or it can't be reached.
        """
        token = cancel or self.cancel
        token.check()
        left = _shorter(seconds, token.remaining_seconds())
        future = self.begin(method.future, request, name=name, seconds=left)

        def _cancel_call() -> None:
            future.cancel()

        try:
            with token.on_cancel(_cancel_call):
                return future.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            # The caller's reason takes precedence over the server's status.
            token.check()
            status = error if isinstance(error, grpc.RpcError) else future
            raise error_of(status, endpoint=self.endpoint, method=name) from error

    def begin(self, method: Callable[..., C], request: Q, *, name: str, seconds: float | None) -> C:
        """Send a request and return the running call; arguments as for call().

        Raises:
            ImageServiceError: this client is closed.
        """
        try:
            return method(request, timeout=None if seconds is None else min(seconds, _LONGEST_SECONDS))
        except ValueError as error:  # raised by grpc for a closed channel
            raise ImageServiceError(f"{self.endpoint}: {name}: this client was closed") from error

    def close(self) -> None:
        """Close the connection."""
        self.raw.close()


def _shorter(one: float | None, other: float | None) -> float | None:
    both = [each for each in (one, other) if each is not None]
    return min(both) if both else None
