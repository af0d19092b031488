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

#: What every CRI client accepts, in bytes.
MESSAGE_BYTES: Final = 16 * 1024 * 1024
#: A hundred years; the library takes limits that end beyond 64 bits of nanoseconds for ones that have passed.
_LONGEST_SECONDS: Final = 36525 * 24 * 3600.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # Go servers refuse a request whose authority is a socket's path.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # As the kubelet's client: a server that was away for long is found soon after it is back. The least back-off stays,
    # since it is also how long a server that is just being started may take to answer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
)


class CriChannel:
    """Calls one server; thread-safe. Connects at the first call.

    Args:
        endpoint: where it listens.
        cancel: ends every call that isn't given another token.
    """

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
        """Ask and wait for the answer.

        Args:
            method: of a stub on ``raw``.
            request: what to ask.
            name: of the method, for messages.
            seconds: limit, beside the token's deadline.
            cancel: ends the call, instead of the connection's.

        Raises:
            ImageStoreError: the server's error, or none reached it.
        """
        token = cancel or self.cancel
        token.check()
        left = _shorter(seconds, token.remaining_seconds())
        future = self.begin(method.future, request, name=name, seconds=left)

        def cancel_call() -> None:
            future.cancel()

        try:
            with token.on_cancel(cancel_call):
                return future.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            # The caller's reason goes before the server's view of it.
            token.check()
            status = error if isinstance(error, grpc.RpcError) else future
            raise error_of(status, endpoint=self.endpoint, method=name) from error

    def begin(self, method: Callable[..., C], request: Q, *, name: str, seconds: float | None) -> C:
        """Send a request; the call under way.

        Args:
            method: of a stub on ``raw``.
            request: what to ask.
            name: of the method, for messages.
            seconds: limit.

        Raises:
            ImageServiceError: this client is closed.
        """
        try:
            return method(request, timeout=None if seconds is None else min(seconds, _LONGEST_SECONDS))
        except ValueError as error:  # the library's word for a closed channel
            raise ImageServiceError(f"{self.endpoint}: {name}: this client was closed") from error

    def close(self) -> None:
        """Give the connection back."""
        self.raw.close()


def _shorter(one: float | None, other: float | None) -> float | None:
    both = [each for each in (one, other) if each is not None]
    return min(both) if both else None
