"""The sender on real sockets: what a peer can do to us, and how quickly we get away."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from imagestore import CancelToken
from imagestore.errors import (
    DeadlineExceededError,
    OperationCancelledError,
    ProtocolError,
    RegistryUnavailableError,
)
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.network import Timeouts
from imagestore.registry.transport.proxy import ProxyRules
from tests.unit.registry.scripted_server import reset
from tests.unit.registry.wire import OK, PATIENT, RawServers, say

if TYPE_CHECKING:
    from pathlib import Path


def stall(connection: socket.socket) -> None:
    # Until the client goes away; the connection's own timeout is the longest it can last.
    connection.recv(1)


def get(sender: HttpSender, server: Any, cancel: CancelToken | None = None) -> bytes:
    request = make_request("GET", f"http://{server.host}/v2/x?token=very-secret")
    with sender.send(request, cancel=cancel or CancelToken()) as response:
        return response.read(1000)


def test_cancelling_leaves_a_connection_that_is_not_answered() -> None:
    made = HttpSender(proxies=ProxyRules(), timeouts=PATIENT)
    cancel = CancelToken()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # Fills the queue of connections nobody takes; then the system answers no further one.
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        stack.callback(made.close)
        timer = threading.Timer(0.05, cancel.cancel, ["stop"])
        timer.start()
        with pytest.raises(OperationCancelledError, match="stop"):
            made.send(make_request("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/"), cancel=cancel)
        timer.join()


def test_an_exchange_that_fails_is_in_the_log_too(
    sender: HttpSender, raw_server: RawServers, caplog: pytest.LogCaptureFixture
) -> None:
    server = raw_server(say(then=reset))
    with caplog.at_level("DEBUG"), pytest.raises(RegistryUnavailableError):
        get(sender, server)
    assert f"GET http://{server.host}/v2/x -> " in caplog.text
    assert "very-secret" not in caplog.text


def test_an_ordinary_answer(sender: HttpSender, raw_server: RawServers) -> None:
    server = raw_server(say(OK, b"hello"))
    assert get(sender, server) == b"hello"
    head = server.requests[0]
    assert "Accept-Encoding: identity\r\n" in head
    assert "User-Agent: imagestore/" in head
    assert "Cookie" not in head


@pytest.mark.parametrize(
    "script",
    [
        say(then=reset),
        say(b""),
        say(OK[:20]),
        say(OK, b"hel"),
        say(OK, b"hel", then=reset),
        say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"),
        say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n"),
        say(OK, b"he", then=stall),
        say(then=stall),
    ],
    ids=["reset", "silence", "half head", "short", "reset in body", "half chunk", "bad chunk", "stall", "no answer"],
)
def test_a_broken_connection_is_unavailable(hasty: HttpSender, raw_server: RawServers, script: Any) -> None:
    with pytest.raises(RegistryUnavailableError) as raised:
        get(hasty, raw_server(script))
    assert raised.value.host.startswith("127.0.0.1:")
    assert "very-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 999999 OK\r\n\r\n",
        OK[:-2] + b"".join(b"X-%d: y\r\n" % number for number in range(300)) + b"\r\nhello",
        OK[:-2] + b"X: " + b"y" * 70_000 + b"\r\n\r\nhello",
        OK[:-2] + b"X: " + b"y" * 200_000 + b"\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
    ],
    ids=["ssh", "bad length", "two lengths", "bad status", "many", "long", "longer", "too big", "too big, unsaid"],
)
def test_an_answer_against_the_rules_is_refused(sender: HttpSender, raw_server: RawServers, bytes_sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        get(sender, raw_server(say(bytes_sent, then=stall)))
    sender.close()  # where the whole answer came the connection is kept, and the peer would wait for its end


def test_a_head_that_drips_ends_at_its_own_limit(hasty: HttpSender, raw_server: RawServers) -> None:
    def drip(connection: socket.socket) -> None:
        for byte in OK * 20:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    with pytest.raises(RegistryUnavailableError):
        get(hasty, raw_server(drip))


def test_a_body_that_drips_is_unavailable(raw_server: RawServers) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        for _ in range(500):
            connection.sendall(b"x")
            time.sleep(0.02)

    sender = HttpSender(proxies=ProxyRules(), timeouts=Timeouts(window=0.2))
    with contextlib.closing(sender), pytest.raises(RegistryUnavailableError, match="slower than 1024 bytes"):
        get(sender, raw_server(drip))


def test_a_long_body_must_be_faster_than_a_short_one(raw_server: RawServers) -> None:
    """At 5 KB/s a megabyte takes minutes and a gigabyte days, which would hold a place of the server's pulls."""

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(500):
                connection.sendall(b"x" * 1000)
                time.sleep(0.02)

    timeouts = Timeouts(window=0.2, least_bytes_per_second=1, body=3600.0)
    sender = HttpSender(proxies=ProxyRules(), timeouts=timeouts)
    request = make_request("GET", f"http://{raw_server(drip).host}/v2/x")
    response = sender.send(request, cancel=CancelToken())
    with contextlib.closing(sender), response, pytest.raises(RegistryUnavailableError, match="slower than 277778"):
        response.read(2_000_000_000)


def test_a_slow_start_is_no_slow_body(raw_server: RawServers) -> None:
    def late(connection: socket.socket) -> None:
        time.sleep(0.75)
        connection.sendall(OK + b"h")
        time.sleep(0.05)
        connection.sendall(b"ello")

    sender = HttpSender(proxies=ProxyRules(), timeouts=Timeouts(window=0.5))
    with contextlib.closing(sender):
        assert get(sender, raw_server(late)) == b"hello"


def test_cookies_are_not_sent_back(sender: HttpSender, raw_server: RawServers) -> None:
    cookie = b"HTTP/1.1 200 OK\r\nSet-Cookie: track=me\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    server = raw_server(say(cookie), say(OK, b"hello"))
    get(sender, server)
    get(sender, server)
    assert "track" not in server.requests[1]


def test_redirects_are_handed_out_and_not_followed(sender: HttpSender, raw_server: RawServers) -> None:
    server = raw_server(say(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"))
    with sender.send(make_request("GET", f"http://{server.host}/"), cancel=CancelToken()) as response:
        assert response.status == 302


def test_compressed_bytes_stay_as_they_are(sender: HttpSender, raw_server: RawServers) -> None:
    server = raw_server(say(OK[:-2] + b"Content-Encoding: gzip\r\n\r\n", b"hello"))
    assert get(sender, server) == b"hello"


@pytest.mark.parametrize("script", [say(then=stall), say(OK, b"he", then=stall)], ids=["head", "body"])
def test_cancelling_ends_a_blocked_read_at_once(raw_server: RawServers, script: Any) -> None:
    sender = HttpSender(proxies=ProxyRules())
    token = CancelToken()
    timer = threading.Timer(0.1, token.cancel, ["enough"])
    timer.start()
    with pytest.raises(OperationCancelledError, match="enough"):
        get(sender, raw_server(script), token)
    timer.join()
    sender.close()


@pytest.mark.parametrize("script", [say(then=stall), say(OK, b"he", then=stall)], ids=["head", "body"])
def test_the_deadline_ends_a_blocked_read(raw_server: RawServers, script: Any) -> None:
    sender = HttpSender(proxies=ProxyRules())
    with pytest.raises(DeadlineExceededError):
        get(sender, raw_server(script), CancelToken(deadline_seconds=0.1))
    sender.close()


def test_a_cancelled_operation_sends_nothing(sender: HttpSender, raw_server: RawServers) -> None:
    token = CancelToken()
    token.cancel()
    server = raw_server(say(OK, b"hello"))
    with pytest.raises(OperationCancelledError):
        get(sender, server, token)
    assert server.requests == []


def twice(connection: socket.socket) -> None:
    connection.sendall(OK + b"hello")
    connection.recv(65536)
    connection.sendall(OK + b"again")


def test_a_connection_is_used_again_after_a_whole_body(sender: HttpSender, raw_server: RawServers) -> None:
    server = raw_server(twice)
    assert get(sender, server) == b"hello"
    assert get(sender, server) == b"again"
    assert len(server.requests) == 1


def test_a_late_cancel_does_not_touch_the_connections_next_user(sender: HttpSender, raw_server: RawServers) -> None:
    server, token = raw_server(twice), CancelToken()
    assert get(sender, server, token) == b"hello"
    token.cancel()
    assert get(sender, server) == b"again"


def test_a_port_without_a_listener_is_unavailable(sender: HttpSender) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RegistryUnavailableError, match="no connection: Connection refused"):
        sender.send(make_request("GET", f"http://127.0.0.1:{port}/"), cancel=CancelToken())


def test_a_name_that_does_not_resolve_is_unavailable(sender: HttpSender) -> None:
    with pytest.raises(RegistryUnavailableError, match=r"name resolution failed: [A-Z][a-z]"):
        sender.send(make_request("GET", "http://nowhere.invalid/"), cancel=CancelToken())


@pytest.mark.parametrize("value", ["a\r\nX-Injected: b", "a\nb", "a\0b", "ä€"])
def test_a_header_that_would_smuggle_another_is_not_sent(
    sender: HttpSender, raw_server: RawServers, value: str
) -> None:
    server = raw_server(say(OK, b"hello"))
    with pytest.raises(ProtocolError) as raised:
        sender.send(make_request("GET", f"http://{server.host}/", (("Authorization", value),)), cancel=CancelToken())
    assert value not in str(raised.value)
    assert server.requests == []


def test_a_unix_socket_stands_for_every_host(tmp_path: Path) -> None:
    path = str(tmp_path / "registry.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(OK + b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        sender = HttpSender(proxies=ProxyRules(), unix_socket=path)
        with sender.send(make_request("GET", "http://registry.example/v2/"), cancel=CancelToken()) as response:
            assert response.read(10) == b"hello"
        thread.join()
        sender.close()
