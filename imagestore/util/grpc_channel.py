"""A gRPC client of one server on a unix socket: calls with a deadline, cancellation and errors of our tree."""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import grpc

from imagestore.errors import ImageServiceError
from imagestore.util import rpc
from imagestore.util.cancel import CancelToken

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
C = TypeVar("C")
Q = TypeVar("Q")

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from types import TracebackType
    from typing import Protocol, Self

    from imagestore.errors import ImageStoreError
    from imagestore.util.endpoint import Endpoint

    Metadata = Sequence[tuple[str, str | bytes]]

    class ErrorOf(Protocol):
        """The error to raise for a status: grpc's error, or the call that ended."""

        def __call__(self, status: object, *, endpoint: str, method: str) -> ImageStoreError: ...

    class RunningCall(Protocol[A_co]):
        """What grpc returns for a method that sends several answers."""

        def __iter__(self) -> Iterator[A_co]: ...
        def cancel(self) -> bool:
            """End the call."""
            ...


#: A hundred years; grpc takes a deadline beyond 64 bits of nanoseconds for one that has passed.
_LONGEST_SECONDS: Final = 36525 * 24 * 3600.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", rpc.MESSAGE_BYTES),
    ("grpc.max_send_message_length", rpc.MESSAGE_BYTES),
    # Go servers refuse a request whose authority is a socket's path.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # As the kubelet's client: reconnect soon after a long outage. The minimal back-off is not changed, since it also
    # is the time that a starting server has to answer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
)


class GrpcChannel:
    """Calls one server; thread-safe. Connects at the first call, and again when the connection was lost.

    Args:
        endpoint: of the server.
        seconds: limit of each call; a call may do without.
        cancel: ends every call without a token of its own.
        error_of: makes the error of a status.

    Attributes:
        endpoint: in text form, as errors name it.
        raw: for the constructors of generated stubs.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        seconds: float,
        *,
        cancel: CancelToken | None = None,
        error_of: ErrorOf = rpc.error_of,
    ) -> None:
        self.endpoint = endpoint.text
        self.seconds = seconds
        self.cancel = cancel or CancelToken()
        self.raw = grpc.insecure_channel(f"unix:{endpoint.path}", options=_OPTIONS)
        self._error_of = error_of

    def call(
        self,
        method: grpc.UnaryUnaryMultiCallable[Q, A],
        request: Q,
        name: str,
        *,
        cancel: CancelToken | None = None,
        has_limit: bool = True,
        metadata: Metadata | None = None,
    ) -> A:
        """Call a method of a stub on ``raw`` and wait for the answer.

        Args:
            method: of the stub.
            request: its message.
            name: the method's, for error texts.
            cancel: ends this call, instead of the channel's token.
            has_limit: whether the channel's limit counts; the token's deadline always does.
            metadata: headers of the call.

        Raises:
            ImageStoreError: the server's error, or it can't be reached.
        """
        token = cancel or self.cancel
        token.check()
        answer = self._answer(self._begin(method.future, request, name, token, has_limit, metadata), name, token)
        if answer is None:
            # The caller's reason takes precedence over the server's status. Its error must not keep the call: grpc's
            # thread may hold the lock of a cancelled call when the program ends, and freeing the call would block.
            token.check()
            raise ImageServiceError(f"{self.endpoint}: {name}: the call was cancelled")
        return answer

    def stream(
        self,
        method: grpc.UnaryStreamMultiCallable[Q, A],
        request: Q,
        name: str,
        *,
        cancel: CancelToken | None = None,
        has_limit: bool = True,
        metadata: Metadata | None = None,
    ) -> Generator[A, None, None]:
        """Begin a method that sends several answers; arguments as call(). The end of the generator ends the call.

        Raises:
            ImageStoreError: the server's error, it can't be reached, or the stream was interrupted.
        """
        token = cancel or self.cancel
        token.check()
        # No name here refers to the call; see call().
        return self._checked(self._begin(method, request, name, token, has_limit, metadata), name, token)

    @contextlib.contextmanager
    def exchange(
        self,
        method: grpc.StreamStreamMultiCallable[Q, A],
        name: str,
        *,
        cancel: CancelToken | None = None,
        has_limit: bool = True,
        metadata: Metadata | None = None,
    ) -> Iterator[Exchange[Q, A]]:
        """A call with messages both ways; arguments as call(). It ends with the block, finished or not.

        Raises:
            ImageStoreError: the server's error, or it can't be reached; raised by receive().
        """
        token = cancel or self.cancel
        token.check()
        requests: queue.SimpleQueue[Q | None] = queue.SimpleQueue()
        sent = iter(requests.get, None)
        answers = self._parts(self._begin(method, sent, name, token, has_limit, metadata), name, token)
        with contextlib.closing(answers):
            try:
                yield Exchange(requests, answers, token)
            finally:
                requests.put(None)  # grpc's thread waits for a request until there is an end

    def close(self) -> None:
        """End the connection and every call."""
        self.raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _begin(
        self,
        method: Callable[..., C],
        request: object,
        name: str,
        token: CancelToken,
        has_limit: bool,
        metadata: Metadata | None,
    ) -> C:
        """Send a request and return the running call."""
        limits = (self.seconds if has_limit else None, token.remaining_seconds())
        left = min((each for each in limits if each is not None), default=None)
        seconds = None if left is None else min(left, _LONGEST_SECONDS)
        try:
            return method(request, timeout=seconds, metadata=metadata)
        except ValueError as error:  # raised by grpc for a closed channel
            raise ImageServiceError(f"{self.endpoint}: {name}: this client was closed") from error

    def _answer(self, call: grpc.Future[A], name: str, token: CancelToken) -> A | None:
        """Wait for a call; None if the token ended it."""

        def _cancel_call() -> None:
            call.cancel()

        try:
            with token.on_cancel(_cancel_call):
                return call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if _has_ended(token):
                # The error is the call itself: with its traceback it would refer to itself, through our local names.
                error.with_traceback(None)
                return None
            status = error if isinstance(error, grpc.RpcError) else call
            raise self._error_of(status, endpoint=self.endpoint, method=name) from error

    def _checked(self, parts: RunningCall[A], name: str, token: CancelToken) -> Generator[A, None, None]:
        """All answers of a running call."""
        yield from self._parts(parts, name, token)
        token.check()

    def _parts(self, parts: RunningCall[A], name: str, token: CancelToken) -> Generator[A, None, None]:
        """The answers of a running call, which ends with this generator; fewer if the token ended it."""

        def _cancel_call() -> None:
            parts.cancel()

        try:
            with token.on_cancel(_cancel_call):
                yield from parts
        except grpc.RpcError as error:
            if not _has_ended(token):
                raise self._error_of(error, endpoint=self.endpoint, method=name) from error
            error.with_traceback(None)  # as in _answer()
        finally:
            parts.cancel()


class Exchange(Generic[Q, A]):
    """A running call with messages both ways, for one thread."""

    def __init__(
        self, requests: queue.SimpleQueue[Q | None], answers: Generator[A, None, None], token: CancelToken
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._token = token

    def send(self, request: Q) -> None:
        """Queue a message, which is sent when the server reads. Nothing bounds the queue: receive() in between."""
        self._requests.put(request)

    def finish(self) -> None:
        """No further message follows."""
        self._requests.put(None)

    def receive(self) -> A | None:
        """The next answer; None if the server ended the call without an error.

        Raises:
            ImageStoreError: the server's error, or the token ended the call.
        """
        answer = next(self._answers, None)
        if answer is None:
            self._token.check()
        return answer


def _has_ended(token: CancelToken) -> bool:
    return token.is_cancelled or token.remaining_seconds() == 0
