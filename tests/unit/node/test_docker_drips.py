"""A Docker Engine that sends a byte now and then, or redirects to nowhere."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from imagestore import CancelToken, Reference
from imagestore.errors import (
    DeadlineExceededError,
    ImageServiceError,
    InvalidInputError,
    OperationCancelledError,
)
from imagestore.node.docker.http import EngineConnection
from imagestore.node.docker.pulling import pull
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

APP = Reference.parse("registry.example/team/app:1")
HEAD = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n"
PING = HEAD + b"Content-Length: 2\r\n\r\nOK"
UNTIL_THE_END = HEAD + b"\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
OBJECT = b'{"status":"x"}\n'


@pytest.fixture
def dripping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Iterable[bytes]], str]]:
    """Serve a ping, then bytes with a moment between."""
    path, over = str(tmp_path_factory.mktemp("d") / "s"), threading.Event()

    def serve(listener: socket.socket, pieces: Iterable[bytes]) -> None:
        while not over.is_set():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                head = connection.recv(65536)
                for piece in [PING] if b"/_ping" in head else pieces if head else ():
                    connection.sendall(piece)
                    if over.wait(0.02):
                        break

    with contextlib.ExitStack() as stack:

        def start(pieces: Iterable[bytes]) -> str:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(path)
            listener.listen()
            thread = threading.Thread(target=serve, args=(listener, pieces))
            thread.start()
            stack.callback(thread.join)
            stack.callback(wake)
            stack.callback(over.set)
            return path

        def wake() -> None:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(path)

        yield start


@contextlib.contextmanager
def connected(path: str, seconds: float = 60.0) -> Iterator[EngineConnection]:
    with contextlib.closing(EngineConnection(path, timeout_seconds=seconds)) as connection:
        yield connection


def drip(start: bytes, piece: bytes) -> Iterable[bytes]:
    # Far longer than any limit here, and not for ever.
    return itertools.chain([start], itertools.repeat(piece, 3000))


@pytest.mark.parametrize(
    "pieces",
    [drip(UNTIL_THE_END, b" "), drip(CHUNKED, b"1\r\n \r\n"), drip(b"HTTP/1.1 200 OK\r\nX: ", b"x")],
    ids=["until the end", "chunked", "head"],
)
def test_an_answer_that_drips_ends_with_the_timeout(
    dripping: Callable[[Iterable[bytes]], str], pieces: Iterable[bytes]
) -> None:
    with (
        connected(dripping(pieces), 0.3) as connection,
        pytest.raises(DeadlineExceededError, match=r"docker engine at .*: GET /v1.41/info: no whole answer within"),
    ):
        connection.request("GET", "/info")


@pytest.mark.parametrize("start", [UNTIL_THE_END, CHUNKED, UNTIL_THE_END + OBJECT + b'{"a'])
def test_a_stream_that_drips_ends_with_the_deadline_of_its_pull(
    dripping: Callable[[Iterable[bytes]], str], start: bytes
) -> None:
    piece = b"1\r\n \r\n" if start == CHUNKED else b" "
    with connected(dripping(drip(start, piece))) as connection, pytest.raises(DeadlineExceededError, match=r"0\.3 sec"):
        pull(connection, APP, None, stall_limit=Duration.of_seconds(60), cancel=CancelToken(0.3))


def test_a_deadline_ends_a_read_that_began_behind_drips(dripping: Callable[[Iterable[bytes]], str]) -> None:
    def pieces() -> Iterator[bytes]:
        yield UNTIL_THE_END
        yield from itertools.repeat(b" ", 5)
        assert is_given_up.wait(60)

    is_given_up = threading.Event()
    with connected(dripping(pieces())) as connection:
        with pytest.raises(DeadlineExceededError):
            pull(connection, APP, None, stall_limit=Duration.of_seconds(120), cancel=CancelToken(0.3))
        is_given_up.set()


def test_a_stream_without_whole_objects_stands_still(dripping: Callable[[Iterable[bytes]], str]) -> None:
    with (
        connected(dripping(drip(UNTIL_THE_END + OBJECT, b"\n"))) as connection,
        pytest.raises(DeadlineExceededError, match=r"team/app:1: no progress came for 0\.3 seconds"),
    ):
        pull(connection, APP, None, stall_limit=Duration.of_seconds(0.3))


def test_a_stream_of_objects_does_not_stand_still(dripping: Callable[[Iterable[bytes]], str]) -> None:
    pieces = itertools.chain([UNTIL_THE_END], itertools.repeat(OBJECT, 60))
    with connected(dripping(pieces)) as connection:
        pull(connection, APP, None, stall_limit=Duration.of_seconds(1))


def test_a_cancelled_stream_is_cancelled_also_within_an_object(dripping: Callable[[Iterable[bytes]], str]) -> None:
    token = CancelToken()
    with connected(dripping(drip(UNTIL_THE_END + b'{"a', b" "))) as connection:
        timer = threading.Timer(0.2, token.cancel)
        timer.start()
        with pytest.raises(OperationCancelledError):
            pull(connection, APP, None, stall_limit=Duration.of_seconds(60), cancel=token)
        timer.join()


@pytest.mark.parametrize(
    "place", ["http://xn--a/", "http://[", "http://a:b/", "http://\u00ff/", "//", "http:///x", "ftp://a"]
)
@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_a_failure_of_the_engine(
    dripping: Callable[[Iterable[bytes]], str], place: str, status: int
) -> None:
    head = f"HTTP/1.1 {status} Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    with connected(dripping([head])) as connection:
        with pytest.raises(ImageServiceError, match="docker engine at"):
            connection.request("GET", "/info")
        with pytest.raises(ImageServiceError):
            pull(connection, APP, None, stall_limit=Duration.of_seconds(60))


@pytest.mark.parametrize("path", ["/images/" + "a" * 70000 + "/json", "/images/a\x00/json", "/\udc80"])
def test_a_request_that_no_address_can_hold_is_bad_input(dripping: Callable[[Iterable[bytes]], str], path: str) -> None:
    with connected(dripping([])) as connection, pytest.raises(InvalidInputError, match="can't be written"):
        connection.request("GET", path)
