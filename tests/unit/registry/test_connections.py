"""Connections of our own: bytes, errors and limits, and when they serve again."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagestore.cancel import CancelToken
from imagestore.config.connection import ConnectionSettings
from imagestore.errors import OperationCancelledError, RegistryUnavailableError
from imagestore.registry.exchange import Origin, Request, Response
from imagestore.registry.transport.http import HttpSender, Timeouts
from imagestore.registry.transport.message import outgoing
from imagestore.registry.transport.network import Pace
from imagestore.registry.transport.proxies import ProxyRules
from tests.support.streams import drain, pieces

PIECE = 256 * 1024
SIZE = 3 * PIECE + 17
BODY = bytes(index * 7 % 251 for index in range(SIZE))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"

Script = Callable[[socket.socket], None]


@dataclass
class Server:
    """Serves connections one after the other; each request of any of them runs the next script."""

    scripts: list[Script]
    context: ssl.SSLContext | None = None
    connections: int = 0
    threads: list[threading.Thread] = field(default_factory=list)
    accepted: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                self.accepted.append(connection)
                self._start(self._serve, connection)

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, contextlib.suppress(OSError, IndexError):
            accepted.settimeout(5.0)
            connection = accepted if self.context is None else self.context.wrap_socket(accepted, server_side=True)
            with connection:
                while _read_head(connection):
                    self.scripts.pop(0)(connection)

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.accepted:
            # One that TLS wraps, or that was closed, isn't ours any more.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


def _read_head(connection: socket.socket) -> bool:
    head = b""
    while b"\r\n\r\n" not in head:
        data = connection.recv(65536)
        if not data:
            return False
        head += data
    return True


def whole(body: bytes = BODY) -> Script:
    return lambda connection: connection.sendall(HEAD % len(body) + body)


def say(*parts: bytes, pause: float = 0.0) -> Script:
    def run(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)

    return run


def hang_up_after(script: Script) -> Script:
    def run(connection: socket.socket) -> None:
        script(connection)
        connection.close()

    return run


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def start(*scripts: Script, context: ssl.SSLContext | None = None) -> Server:
            server = Server(list(scripts), context)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def sender() -> Iterator[HttpSender]:
    made = HttpSender(proxies=ProxyRules(), timeouts=Timeouts(connect=2.0, idle=0.5))
    yield made
    made.close()


def get(sender: HttpSender, server: Server, cancel: CancelToken | None = None) -> Response:
    return sender.send(Request("GET", f"http://127.0.0.1:{server.port}/v2/x"), cancel=cancel or CancelToken())


def read(sender: HttpSender, server: Server) -> bytes:
    with get(sender, server) as response:
        return drain(response)


Serve = Callable[..., Server]


def test_a_large_body_comes_whole_and_its_connection_serves_again(sender: HttpSender, serve: Serve) -> None:
    server = serve(whole(), whole(b"small"), whole(BODY[::-1]))
    assert read(sender, server) == BODY
    assert read(sender, server) == b"small"
    assert read(sender, server) == BODY[::-1]
    assert server.connections == 1


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


def test_bytes_beyond_the_body_reach_nobody(sender: HttpSender, serve: Serve) -> None:
    forged = HEAD % 6 + b"forged"
    server = serve(say(HEAD % SIZE + BODY + forged), whole(b"honest"))
    assert read(sender, server) == BODY
    time.sleep(0.05)
    assert read(sender, server) == b"honest"
    assert server.connections == 2


def test_a_connection_that_the_peer_closed_meanwhile_is_not_used(sender: HttpSender, serve: Serve) -> None:
    server = serve(hang_up_after(whole()), whole(b"next"))
    assert read(sender, server) == BODY
    time.sleep(0.05)
    assert read(sender, server) == b"next"


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


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_dies_under_a_request_is_replaced_where_asking_again_is_safe(
    sender: HttpSender, serve: Serve, method: str
) -> None:
    server = serve(whole(b"first"), socket.socket.close, whole(b"again"))
    assert read(sender, server) == b"first"
    request = Request(method, f"http://127.0.0.1:{server.port}/v2/x", body=b"x" if method == "POST" else None)
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
    with sender.send(Request("POST", url, body=b"x" * 100_000), cancel=CancelToken()) as response:
        assert response.status == 413


def test_a_stall_in_the_body_is_unavailable(sender: HttpSender, serve: Serve) -> None:
    server = serve(say(HEAD % SIZE + BODY[:PIECE], pause=1.0))
    with get(sender, server) as response, pytest.raises(RegistryUnavailableError, match="within the time"):
        drain(response)


def test_a_body_that_drips_is_unavailable(serve: Serve) -> None:
    server = serve(say(HEAD % SIZE, *(bytes([byte]) for byte in BODY[:100]), pause=0.02))
    timeouts = Timeouts(idle=5.0, pace=Pace(least_bytes_per_second=1000, window_seconds=0.2))
    with (
        contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=timeouts)) as sender,
        get(sender, server) as response,
        pytest.raises(RegistryUnavailableError, match="slower than 1000 bytes"),
    ):
        drain(response)


def test_cancelling_ends_a_blocked_read_at_once(serve: Serve) -> None:
    server = serve(say(HEAD % SIZE + BODY[:PIECE], pause=1.0))
    cancel = CancelToken()
    with contextlib.closing(HttpSender(proxies=ProxyRules())) as sender, get(sender, server, cancel) as response:
        coming = pieces(response)
        next(coming)
        timer = threading.Timer(0.1, cancel.cancel, ["enough"])
        timer.start()
        with pytest.raises(OperationCancelledError, match="enough"):
            list(coming)
        timer.join()


def test_over_tls_the_connection_serves_again(serve: Serve) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = serve(whole(), whole(b"small"), whole(), context=context)
    with authority.cert_pem.tempfile() as path, contextlib.closing(HttpSender(proxies=ProxyRules())) as sender:
        origin = Origin("https", "127.0.0.1", server.port)
        bound = sender.bound(origin, ConnectionSettings(ca_files=(path,)))
        for expected in (BODY, b"small", BODY):
            with bound.send(Request("GET", f"{origin}/x"), cancel=CancelToken()) as response:
                assert drain(response) == expected
    assert server.connections == 1


def dripping(context: ssl.SSLContext, data: bytes, pause: float, *, after_handshake: bool) -> Script:
    """Say something over TLS, byte by byte with pauses: the handshake, or what comes after it."""

    def run(connection: socket.socket) -> None:
        incoming, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = context.wrap_bio(incoming, sent, server_side=True)
        is_shaking = True
        with contextlib.suppress(OSError):
            while True:
                try:
                    if is_shaking:
                        secure.do_handshake()
                        is_shaking = False
                        secure.write(data)
                    secure.read(65536)
                except ssl.SSLWantReadError:
                    pass
                raw = sent.read()
                if is_shaking is after_handshake:
                    connection.sendall(raw)
                else:
                    for byte in raw:
                        connection.sendall(bytes([byte]))
                        time.sleep(pause)
                received = connection.recv(65536)
                if not received:
                    return
                incoming.write(received)

    return run


@pytest.mark.parametrize("after_handshake", [False, True], ids=["handshake", "record"])
def test_limits_hold_inside_a_tls_record_and_handshake(after_handshake: bool) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    timeouts = Timeouts(connect=0.4, idle=0.4, pace=Pace(head_seconds=0.8))
    script = dripping(context, HEAD % SIZE + BODY[:8000], 0.02, after_handshake=after_handshake)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        authority.cert_pem.tempfile() as path,
        contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=timeouts)) as sender,
    ):

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                script(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        origin = Origin("https", "127.0.0.1", listener.getsockname()[1])
        bound = sender.bound(origin, ConnectionSettings(ca_files=(path,)))
        started = time.monotonic()
        with pytest.raises(RegistryUnavailableError, match="within the time"):
            bound.send(Request("GET", f"{origin}/x"), cancel=CancelToken(6))
        assert time.monotonic() - started < 3
    thread.join()


def test_cancelling_is_no_end_of_a_body_that_ends_with_its_connection(sender: HttpSender, serve: Serve) -> None:
    server = serve(say(b"HTTP/1.1 200 OK\r\n\r\n{", pause=0.4))
    cancel = CancelToken()
    with get(sender, server, cancel) as response:
        coming = pieces(response)
        assert next(coming) == b"{"
        timer = threading.Timer(0.05, cancel.cancel, ["enough"])
        timer.start()
        with pytest.raises(OperationCancelledError, match="enough"):
            list(coming)
        timer.join()


def test_bytes_that_come_too_late_for_their_answer_reach_nobody(sender: HttpSender, serve: Serve) -> None:
    late = say(b"HTTP/1.1 204 No\r\n\r\n", b"{}", pause=0.05)
    server = serve(late, whole(b"next"))
    assert read(sender, server) == b""
    assert read(sender, server) == b"next"
    assert server.connections == 2


def test_an_unread_body_that_came_with_its_head_costs_no_connection(sender: HttpSender, serve: Serve) -> None:
    server = serve(say(b"HTTP/1.1 307 Go\r\nContent-Length: 5\r\n\r\nhello"), whole(b"next"))
    get(sender, server).close()
    assert read(sender, server) == b"next"
    assert server.connections == 1


def test_a_length_beside_a_coding_ends_the_connection(sender: HttpSender, serve: Serve) -> None:
    both = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    server = serve(say(both), whole(b"next"))
    assert [read(sender, server) for _ in range(2)] == [b"ok", b"next"]
    assert server.connections == 2


def test_a_machine_without_sockets_to_spare_is_unavailable(sender: HttpSender, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(RegistryUnavailableError, match="no connection: Too many open files"):
        sender.send(Request("GET", "http://127.0.0.1:9/v2/x"), cancel=CancelToken())


def test_connections_that_were_idle_too_long_are_closed(serve: Serve) -> None:
    one, other = serve(whole(b"a")), serve(whole(b"b"))
    with contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=Timeouts(keep_alive=0.05))) as sender:
        assert read(sender, one) == b"a"
        time.sleep(0.1)
        assert read(sender, other) == b"b"
        # Its server sees the end and is done.
        one.threads[-1].join(2)
        assert not one.threads[-1].is_alive()


def test_what_is_sent_shows_no_secret() -> None:
    request = Request("POST", "https://registry.example/x?sig=SECRET", (("Authorization", "SECRET"),), b"SECRET")
    assert "SECRET" not in repr(outgoing(request, user_agent="x", connect_seconds=1, idle_seconds=1))
