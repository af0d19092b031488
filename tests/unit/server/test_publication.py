"""Numbers are handed out to few at a time, and silence holds nobody's place for long."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from imagestore.server.publication import MOST_CONNECTIONS, Publication


class Hello(BaseHTTPRequestHandler):
    """Answers, and keeps quiet about it."""

    def do_GET(self) -> None:
        if self.path == "/metrics?broken":
            raise ValueError("hunter2-canary")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def publication() -> Iterator[Publication]:
    published = Publication(Hello, "127.0.0.1", 0, silence_seconds=0.5)
    yield published
    published.close()


def asked(publication: Publication, path: str = "/metrics") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{publication.port}{path}", timeout=5) as answer:
        return bytes(answer.read())


def test_silent_callers_take_bounded_threads_and_lose_their_places(publication: Publication) -> None:
    # A thread that has given its place back may take a moment to end.
    bound = threading.active_count() + MOST_CONNECTIONS + 8
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS * 2):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", publication.port), timeout=5))
            with contextlib.suppress(OSError):
                silent.sendall(b"GET /metr")
        assert threading.active_count() <= bound
        # They stay connected, as far as they care: the server is what makes room.
        end, answer = time.monotonic() + 60, b""
        while answer != b"hello":
            assert time.monotonic() < end
            with contextlib.suppress(OSError):
                answer = asked(publication)
            assert threading.active_count() <= bound


def test_callers_who_drip_lose_their_places_too(publication: Publication) -> None:
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.1):
                connection.sendall(b"a")

    with contextlib.ExitStack() as stack:
        stack.callback(ended.set)
        for _ in range(MOST_CONNECTIONS):
            dripping = stack.enter_context(socket.create_connection(("127.0.0.1", publication.port), timeout=5))
            dripping.sendall(b"GET /metrics HTTP/1.1\r\nA")
            threading.Thread(target=drip, args=[dripping], daemon=True).start()
        end, answer = time.monotonic() + 30, b""
        while answer != b"hello":
            assert time.monotonic() < end
            with contextlib.suppress(OSError):
                answer = asked(publication)


def test_failing_request_is_not_printed_and_the_next_is_answered(
    publication: Publication, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="closed connection"):
        asked(publication, "/metrics?broken")
    assert asked(publication) == b"hello"
    assert "canary" not in "".join(capfd.readouterr())


def test_taken_port_is_an_error_of_the_system(publication: Publication) -> None:
    with pytest.raises(OSError, match="in use"):
        Publication(Hello, "127.0.0.1", publication.port)


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "//x/metrics", "/favicon.ico", "/x?/metrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_other_paths_are_not_found(publication: Publication, method: str, path: str) -> None:
    url = f"http://127.0.0.1:{publication.port}{path}"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5)
    assert caught.value.code == 404
    caught.value.close()


@pytest.mark.parametrize(("method", "body"), [("GET", b"hello"), ("HEAD", b"")])
def test_the_path_of_the_numbers_is_answered_with_and_without_a_query(
    publication: Publication, method: str, body: bytes
) -> None:
    url = f"http://127.0.0.1:{publication.port}/metrics?name[]=x"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
        assert (answer.status, answer.read()) == (200, body)
