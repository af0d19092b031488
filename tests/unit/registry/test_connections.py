"""Connections of our own: bytes, errors and limits, and when they serve again."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagestore import CancelToken
from imagestore.errors import PreconditionError, RegistryUnavailableError
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.network import Timeouts
from imagestore.registry.transport.proxy import ProxyRules
from tests.support.streams import drain, pieces
from tests.unit.registry.scripted_server import (
    BODY,
    HEAD,
    PIECE,
    SIZE,
    Serve,
    get,
    hang_up_after,
    read,
    reset,
    say,
    whole,
)


def test_a_large_body_comes_whole_and_its_connection_serves_again(sender: HttpSender, serve: Serve) -> None:
    server = serve(whole(), whole(b"small"), whole(BODY[::-1]))
    assert read(sender, server) == BODY
    assert read(sender, server) == b"small"
    assert read(sender, server) == BODY[::-1]
    assert server.connections == 1


def test_a_chunked_body_that_was_not_read_to_its_end_ends_its_connection(sender: HttpSender, serve: Serve) -> None:
    """What is left of it would be taken for the next answer."""
    go = threading.Event()

    def parted(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello")
        go.wait(60)
        with contextlib.suppress(OSError):
            connection.sendall(b"\r\n0\r\n\r\n")

    server = serve(parted, whole(b"next"))
    with get(sender, server) as response:
        assert response.readinto(memoryview(bytearray(5))) == 5
    # The first connection is silent as yet.
    assert read(sender, server) == b"next"
    assert server.connections == 2
    go.set()


def test_the_end_of_a_chunked_body_stays_its_end(sender: HttpSender, serve: Serve) -> None:
    server = serve(say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"))
    with get(sender, server) as response:
        assert drain(response) == b"hello"
        assert response.readinto(memoryview(bytearray(5))) == 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(PIECE - 2, PIECE + 70_000), cuts=st.lists(st.integers(1, 70_000), max_size=5))
def test_however_it_is_cut_on_the_way_the_bytes_are_the_same(serve: Serve, size: int, cuts: list[int]) -> None:
    raw = HEAD % size + BODY[:size]
    parts, position = [], 0
    for cut in cuts:
        parts.append(raw[position : position + cut])
        position += cut
    server = serve(say(*parts, raw[position:]), whole(b"next"))
    with contextlib.closing(HttpSender(proxies=ProxyRules())) as sender:
        assert read(sender, server) == BODY[:size]
        assert read(sender, server) == b"next"
    assert server.connections == 1


def test_bodies_read_at_the_same_time_have_connections_of_their_own(sender: HttpSender, serve: Serve) -> None:
    server = serve(whole(), whole(), whole())
    with get(sender, server) as one, get(sender, server) as other:
        first = pieces(one)
        next(first)
        assert drain(other) == BODY
    assert server.connections == 2
    assert read(sender, server) == BODY
    assert server.connections == 2


def test_a_body_that_ends_early_is_unavailable_and_what_came_is_kept(sender: HttpSender, serve: Serve) -> None:
    server = serve(hang_up_after(say(HEAD % SIZE + BODY[:-5])), whole(b"next"))
    received: list[bytes] = []
    with get(sender, server) as response, pytest.raises(RegistryUnavailableError, match="connection broke"):
        received.extend(pieces(response))
    came = b"".join(received)
    assert came == BODY[: len(came)]
    assert read(sender, server) == b"next"
    assert server.connections == 2


def test_bytes_beyond_the_body_are_dropped(sender: HttpSender, serve: Serve) -> None:
    forged = HEAD % 6 + b"forged"
    server = serve(say(HEAD % SIZE + BODY + forged), whole(b"honest"))
    assert read(sender, server) == BODY
    time.sleep(0.05)
    assert read(sender, server) == b"honest"
    assert server.connections == 2


def test_a_connection_that_the_peer_closed_while_idle_is_not_used(sender: HttpSender, serve: Serve) -> None:
    server = serve(hang_up_after(whole()), whole(b"next"))
    assert read(sender, server) == BODY
    time.sleep(0.05)
    assert read(sender, server) == b"next"


def test_a_closed_sender_sends_nothing(serve: Serve) -> None:
    server = serve(whole())
    sender = HttpSender(proxies=ProxyRules())
    sender.close()
    with pytest.raises(PreconditionError, match="client is closed"):
        read(sender, server)
    assert server.connections == 0


def test_a_body_left_unread_closes_its_connection(sender: HttpSender, serve: Serve) -> None:
    server = serve(whole(BODY * 8), whole(b"next"))
    with get(sender, server) as response:
        next(pieces(response))
    assert read(sender, server) == b"next"
    assert server.connections == 2


def test_a_connection_serves_again_after_chunks(sender: HttpSender, serve: Serve) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (SIZE, BODY)
    server = serve(say(chunked), whole(b"next"))
    assert read(sender, server) == BODY
    assert read(sender, server) == b"next"
    assert server.connections == 1


def test_a_connection_that_is_reset_while_idle_is_replaced(sender: HttpSender, serve: Serve) -> None:
    server = serve(whole(b"first"), reset, whole(b"again"))
    assert read(sender, server) == b"first"
    assert read(sender, server) == b"again"
    assert server.connections == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_dies_under_a_request_is_replaced_where_asking_again_is_safe(
    sender: HttpSender, serve: Serve, method: str
) -> None:
    server = serve(whole(b"first"), socket.socket.close, whole(b"again"))
    assert read(sender, server) == b"first"
    request = make_request(method, f"http://127.0.0.1:{server.port}/v2/x", body=b"x" if method == "POST" else None)
    if method == "POST":
        with pytest.raises(RegistryUnavailableError, match="connection broke"):
            sender.send(request, cancel=CancelToken())
        assert server.connections == 1
    else:
        with sender.send(request, cancel=CancelToken()) as response:
            assert drain(response) == b"again"
        assert server.connections == 2


def test_a_new_connection_that_dies_is_not_replaced(sender: HttpSender, serve: Serve) -> None:
    server = serve(socket.socket.close, whole())
    with pytest.raises(RegistryUnavailableError, match="connection broke"):
        get(sender, server)
    assert server.connections == 1


def test_the_server_says_when_a_connection_ends(sender: HttpSender, serve: Serve) -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5\r\n\r\nhello"
    old = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    server = serve(say(closing), say(old), whole(b"next"))
    assert [read(sender, server) for _ in range(3)] == [b"hello", b"hello", b"next"]
    assert server.connections == 3


def test_informational_answers_are_overlooked(sender: HttpSender, serve: Serve) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    server = serve(say(hints, hints + HEAD % 5, b"hello", pause=0.01), whole(b"next"))
    assert [read(sender, server) for _ in range(2)] == [b"hello", b"next"]
    assert server.connections == 1


def test_a_refusal_before_everything_is_sent_is_heard(sender: HttpSender, serve: Serve) -> None:
    server = serve(hang_up_after(say(b"HTTP/1.1 413 No\r\nContent-Length: 4\r\n\r\nmuch")))
    url = f"http://127.0.0.1:{server.port}/token"
    with sender.send(make_request("POST", url, body=b"x" * 100_000), cancel=CancelToken()) as response:
        assert response.status == 413


def sending_in_pieces() -> contextlib.closing[HttpSender]:
    """A sender whose time without a byte is less than the large bodies here take."""
    timeouts = Timeouts(connect=60.0, idle=1.0, head=60.0)
    return contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=timeouts))


def test_a_body_may_be_sent_slowly(serve: Serve) -> None:
    """A piece of it may take longer than the time without a byte, since bytes go all the time."""
    data = bytes(16 << 20) + b"end"

    def take_slowly(connection: socket.socket) -> None:
        came = b""
        while not came.endswith(b"end"):
            time.sleep(0.01)
            came = connection.recv(1 << 17)
            assert came
        connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    server = serve(take_slowly)
    fields = [("Content-Length", str(len(data)))]
    request = make_request("PATCH", f"http://127.0.0.1:{server.port}/upload", fields, iter([data]))
    with sending_in_pieces() as sender, sender.send(request, cancel=CancelToken(60)) as response:
        assert response.status == 202


def test_a_refusal_is_read_although_the_peer_reads_no_further(serve: Serve) -> None:
    go = threading.Event()

    def refuse(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        go.wait(60)

    server = serve(refuse)
    size = 64 << 20
    request = make_request(
        "PATCH", f"http://127.0.0.1:{server.port}/upload", [("Content-Length", str(size))], iter([bytes(size)])
    )
    try:
        with sending_in_pieces() as sender, sender.send(request, cancel=CancelToken(60)) as response:
            assert response.status == 413
    finally:
        go.set()
