"""Answers that could be read in two ways, or never end, are refused, and their connections not used again.

Where a proxy before us reads another message than we do, one answer can be hidden in another.
"""

from __future__ import annotations

import pytest

from imagestore.errors import ProtocolError, RegistryUnavailableError
from imagestore.registry.transport.connection import MAX_HEAD_BYTES
from imagestore.registry.transport.http import HttpSender
from tests.unit.registry.scripted_server import HEAD, Serve, hang_up_after, read, say, whole

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "head",
    [
        OK + b"X: " + b"y" * 2 * MAX_HEAD_BYTES,
        CONTINUE * 10_000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/0.9 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"http/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1  200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 099 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"SSH-2.0-server\r\n",
        OK + b" folded: x\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"no colon\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Length : 5\r\n\r\nhello",
        OK + b"X\xff: y\r\nContent-Length: 5\r\n\r\nhello",
        OK + b": y\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"X: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"X: a\rContent-Length: 4\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: +5\r\n\r\nhello",
        OK + b"Content-Length: 5 5\r\n\r\nhello",
        OK + b"Content-Length: 5,6\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        OK + b"Content-Length: 5\r\n\tX: y\r\n\r\nhello",
        OK + b"Content-Length: " + b"9" * 40 + b"\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_a_head_that_is_no_http_is_refused_at_once(sender: HttpSender, serve: Serve, head: bytes) -> None:
    server = serve(say(head), whole(b"next"))
    with pytest.raises(ProtocolError, match="invalid HTTP response"):
        read(sender, server)
    assert (read(sender, server), server.connections) == (b"next", 2)


@pytest.mark.parametrize(
    "body",
    [
        *(b"5 5\r\nhello", b"5x\r\nhello", b"5 ;a=b\r\nhello", b"0x5\r\nhello", b"5\r\r\nhello", b"5,5\r\nhello"),
        *(b" 5\r\nhello", b"\r\nhello", b";a=b\r\nhello", b"+5\r\nhello", b"-5\r\nhello", b"5_0\r\nhello"),
        *(b"g\r\nhello", b"5\r\nhelloX\r\n0\r\n\r\n", b"1" * 21 + b"\r\nhello"),
        b"5;" + b"x" * 200_000,
        b"0\r\n" + b"X: y\r\n" * 100_000,
    ],
)
def test_a_chunk_has_a_size_and_an_end_and_nothing_else(sender: HttpSender, serve: Serve, body: bytes) -> None:
    server = serve(say(CHUNKED + body), whole(b"next"))
    with pytest.raises(RegistryUnavailableError, match="connection broke"):
        read(sender, server)
    assert (read(sender, server), server.connections) == (b"next", 2)


@pytest.mark.parametrize(
    "body", [b"1" * 16 + b"\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n"], ids=["huge", "bare line ends"]
)
def test_chunks_that_others_may_take_for_whole_are_not(sender: HttpSender, serve: Serve, body: bytes) -> None:
    server = serve(hang_up_after(say(CHUNKED + body)), whole(b"next"))
    with pytest.raises(RegistryUnavailableError, match="connection broke"):
        read(sender, server)


@pytest.mark.parametrize("cuts", [[], [len(CHUNKED)], [len(CHUNKED) + 3], list(range(1, 120))])
def test_chunks_with_extensions_and_trailers_are_read_however_they_are_cut(
    sender: HttpSender, serve: Serve, cuts: list[int]
) -> None:
    data = CHUNKED + b'5;a="b" \r\nhello\r\n0a \t\r\n, and more\r\n00;x\r\nTrailer: x\r\nAnother: y\r\n\r\n'
    parts = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    server = serve(say(*parts, pause=0.001), whole(b"next"))
    assert (read(sender, server), read(sender, server)) == (b"hello, and more", b"next")
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer", [HEAD % 5 + b"hello", CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"], ids=["length", "chunks"]
)
def test_a_connection_with_an_answer_that_was_not_asked_for_serves_no_more(
    sender: HttpSender, serve: Serve, answer: bytes
) -> None:
    server = serve(say(answer + HEAD % 4 + b"evil"), whole(b"next"))
    assert (read(sender, server), read(sender, server)) == (b"hello", b"next")
    assert server.connections == 2


def test_what_frames_a_chunk_can_not_come_for_ever(hasty: HttpSender, serve: Serve) -> None:
    server = serve(say(CHUNKED + b"5;", *[b"x"] * 200, pause=0.1))
    with pytest.raises(RegistryUnavailableError, match="no answer within the time allowed"):
        read(hasty, server)


def test_a_redirect_to_a_host_that_can_not_be_read_is_a_protocol_error(sender: HttpSender, serve: Serve) -> None:
    server = serve(say(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://xn--a/\r\nContent-Length: 0\r\n\r\n"))
    with pytest.raises(ProtocolError, match="redirects to an address that can't be read"):
        read(sender, server)
