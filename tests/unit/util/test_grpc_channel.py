"""A client's calls over a unix socket: answers, errors of our tree, cancellation, messages both ways."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from imagestore import CancelToken
from imagestore.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    ImageServiceError,
    ImageStoreError,
    IntegrityError,
    InvalidInputError,
    NotFoundError,
    OperationCancelledError,
    OutOfRangeError,
    PreconditionError,
    ServiceUnavailableError,
    UnsupportedError,
)
from imagestore.util.endpoint import Endpoint
from imagestore.util.grpc_channel import GrpcChannel

Answer = Callable[[Any, grpc.ServicerContext], Any]


@contextlib.contextmanager
def serving(
    folder: Path, *, one: Answer | None = None, many: Answer | None = None, both: Answer | None = None
) -> Iterator[GrpcChannel]:
    """A server with the methods ``/x.X/One``, ``Many`` and ``Both``, whose messages are bytes, and a client of it."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    if one is not None:
        handlers["One"] = grpc.unary_unary_rpc_method_handler(one)
    if many is not None:
        handlers["Many"] = grpc.unary_stream_rpc_method_handler(many)
    if both is not None:
        handlers["Both"] = grpc.stream_stream_rpc_method_handler(both)
    endpoint = Endpoint(f"{folder}/s")
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[grpc.method_handlers_generic_handler("x.X", handlers)])
        server.add_insecure_port(endpoint.text)
        server.start()
        try:
            with GrpcChannel(endpoint, 60) as channel:
                yield channel
        finally:
            server.stop(0).wait()


def one(channel: GrpcChannel, request: bytes = b"q", **options: Any) -> bytes:
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.raw.unary_unary("/x.X/One")
    return channel.call(method, request, "One", **options)


def many(channel: GrpcChannel, **options: Any) -> Iterator[bytes]:
    method: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.raw.unary_stream("/x.X/Many")
    return channel.stream(method, b"q", "Many", **options)


def both(channel: GrpcChannel, **options: Any) -> Any:
    method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.raw.stream_stream("/x.X/Both")
    return channel.exchange(method, "Both", **options)


def refusing(code: grpc.StatusCode, text: str) -> Answer:
    def method(_: Any, context: grpc.ServicerContext) -> Any:
        context.abort(code, text)

    return method


def until_ended(began: threading.Event) -> Answer:
    """A method that answers when the client has ended the call."""

    def method(_: Any, context: grpc.ServicerContext) -> bytes:
        ended = threading.Event()
        context.add_callback(ended.set)
        began.set()
        ended.wait(60)
        return b""

    return method


def test_a_call_carries_its_headers(tmp_path: Path) -> None:
    def method(request: bytes, context: grpc.ServicerContext) -> bytes:
        headers = {key: value for key, value in context.invocation_metadata() if key == "containerd-namespace"}
        return request + repr(headers).encode()

    with serving(tmp_path, one=method) as channel:
        answer = one(channel, metadata=(("containerd-namespace", "k8s.io"),))
    assert answer == b"q{'containerd-namespace': 'k8s.io'}"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidInputError),
        (grpc.StatusCode.NOT_FOUND, NotFoundError),
        (grpc.StatusCode.ALREADY_EXISTS, AlreadyExistsError),
        (grpc.StatusCode.FAILED_PRECONDITION, PreconditionError),
        (grpc.StatusCode.OUT_OF_RANGE, OutOfRangeError),
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedError),
        (grpc.StatusCode.UNAVAILABLE, ServiceUnavailableError),
        (grpc.StatusCode.DATA_LOSS, IntegrityError),
        (grpc.StatusCode.CANCELLED, OperationCancelledError),
        (grpc.StatusCode.UNKNOWN, ImageServiceError),
        (grpc.StatusCode.ABORTED, ImageServiceError),
        (grpc.StatusCode.PERMISSION_DENIED, ImageServiceError),
    ],
)
def test_a_status_becomes_an_error_that_names_server_and_method(
    tmp_path: Path, code: grpc.StatusCode, kind: type[ImageStoreError]
) -> None:
    with serving(tmp_path, one=refusing(code, "says the server")) as channel, pytest.raises(ImageStoreError) as caught:
        one(channel)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"unix://{tmp_path}/s: One: ")
    assert str(caught.value).endswith("says the server")
    if kind is ImageServiceError:
        assert vars(caught.value)["status"] == code.value[0]


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with (
        GrpcChannel(Endpoint(f"{tmp_path}/none"), 60) as channel,
        pytest.raises(ServiceUnavailableError, match=f"{tmp_path}/none: One: not available") as caught,
    ):
        one(channel)
    assert "is the server running" in caught.value.hint


def test_a_closed_channel_says_so(tmp_path: Path) -> None:
    channel = GrpcChannel(Endpoint(f"{tmp_path}/none"), 60)
    channel.close()
    with pytest.raises(ImageServiceError, match="this client was closed"):
        one(channel)


def test_a_streams_answers_come_while_it_runs_and_its_error_at_its_end(tmp_path: Path) -> None:
    seen = threading.Event()

    def method(_: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"1"
        assert seen.wait(60)
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no more")

    with serving(tmp_path, many=method) as channel:
        answers = many(channel)
        assert next(answers) == b"1"
        seen.set()
        with pytest.raises(PreconditionError, match="Many: no more"):
            next(answers)


def test_who_leaves_a_stream_ends_the_call(tmp_path: Path) -> None:
    ended = threading.Event()

    def method(_: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(ended.set)
        yield b"1"
        ended.wait(60)

    with serving(tmp_path, many=method) as channel:
        with contextlib.closing(many(channel, has_limit=False)) as answers:  # type: ignore[type-var]
            assert next(answers) == b"1"
        assert ended.wait(60)


def _ask(channel: GrpcChannel, kind: str, token: CancelToken) -> None:
    match kind:
        case "one":
            one(channel, cancel=token)
        case "many":
            next(many(channel, cancel=token))
        case _:
            with both(channel, cancel=token) as exchange:
                exchange.send(b"1")
                exchange.receive()


@pytest.mark.parametrize("kind", ["one", "many", "both"])
def test_a_token_ends_every_kind_of_call_with_its_reason(tmp_path: Path, kind: str) -> None:
    began = threading.Event()
    wait = until_ended(began)

    def waiting(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield wait(request, context)

    token = CancelToken()

    def cancel() -> None:
        assert began.wait(60)
        token.cancel("the node shuts down")

    with serving(tmp_path, one=wait, many=waiting, both=waiting) as channel, ThreadPoolExecutor(1) as pool:
        done = pool.submit(cancel)
        with pytest.raises(OperationCancelledError, match="the node shuts down"):
            _ask(channel, kind, token)
        done.result()
        with pytest.raises(OperationCancelledError, match="the node shuts down"):
            one(channel, cancel=token)


def test_a_deadline_that_passed_ends_a_call_before_it_is_sent(tmp_path: Path) -> None:
    with serving(tmp_path, one=lambda request, _: request) as channel, pytest.raises(DeadlineExceededError):
        one(channel, cancel=CancelToken(deadline_seconds=0))


def test_messages_go_both_ways_in_turn(tmp_path: Path) -> None:
    def method(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield request.upper()

    with serving(tmp_path, both=method) as channel, both(channel) as exchange:
        for text in (b"stat", b"write", b"commit"):
            exchange.send(text)
            assert exchange.receive() == text.upper()
        exchange.finish()
        assert exchange.receive() is None
        assert exchange.receive() is None


def test_an_exchange_that_is_left_early_ends_at_the_server(tmp_path: Path) -> None:
    ended = threading.Event()

    def method(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(ended.set)
        yield next(requests)
        ended.wait(60)

    with serving(tmp_path, both=method) as channel:
        with both(channel) as exchange:
            exchange.send(b"1")
            assert exchange.receive() == b"1"
        assert ended.wait(60)


def test_an_exchange_ends_with_the_servers_error(tmp_path: Path) -> None:
    with (
        serving(tmp_path, both=refusing(grpc.StatusCode.ALREADY_EXISTS, "content sha256:1")) as channel,
        both(channel) as exchange,
    ):
        exchange.send(b"1")
        with pytest.raises(AlreadyExistsError, match="Both: content sha256:1"):
            exchange.receive()
