"""How connections of our own end: limits, cancelling, TLS, and what may not reach the next request."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import trustme

from imagestore import CancelToken
from imagestore.config import ConnectionSettings
from imagestore.errors import DeadlineExceededError, OperationCancelledError, RegistryUnavailableError
from imagestore.registry.transport.addresses import Origin
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
    Script,
    Serve,
    get,
    read,
    reset,
    say,
    whole,
)
from tests.unit.registry.wire import PATIENT


def test_a_stall_in_the_body_is_unavailable(hasty: HttpSender, serve: Serve) -> None:
    server = serve(say(HEAD % SIZE + BODY[:PIECE], pause=1.0))
    with get(hasty, server) as response, pytest.raises(RegistryUnavailableError, match="within the time"):
        drain(response)


def test_a_kept_connection_has_the_deadline_of_its_current_request(serve: Serve) -> None:
    server = serve(whole(), lambda connection: connection.recv(1))
    with contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=PATIENT)) as sender:
        with get(sender, server, CancelToken(60)) as response:
            drain(response)
        with pytest.raises(DeadlineExceededError, match=r"within 0\.6 seconds"):
            get(sender, server, CancelToken(0.6))
    assert server.connections == 1


def test_a_body_that_drips_is_unavailable(serve: Serve) -> None:
    server = serve(say(HEAD % SIZE, *(bytes([byte]) for byte in BODY[:100]), pause=0.02))
    timeouts = Timeouts(idle=60.0, least_bytes_per_second=1000, window=0.2)
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


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def context(authority: trustme.CA) -> ssl.SSLContext:
    """A server's on this machine, vouched for by the authority."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(made)
    return made


@contextlib.contextmanager
def asking_over_tls(
    authority: trustme.CA, port: int, timeouts: Timeouts | None = None
) -> Iterator[Callable[[], bytes]]:
    """What asks a server on this machine, over connections that are kept between the requests."""
    with (
        authority.cert_pem.tempfile() as path,
        contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=timeouts)) as sender,
    ):
        origin = Origin("https", "127.0.0.1", port)
        bound = sender.bound(origin, ConnectionSettings(ca_files=(path,)))

        def ask() -> bytes:
            with bound.send(make_request("GET", f"{origin}/x"), cancel=CancelToken(60)) as response:
                return drain(response)

        yield ask


def test_over_tls_the_connection_serves_again(serve: Serve, authority: trustme.CA, context: ssl.SSLContext) -> None:
    server = serve(whole(), whole(b"small"), whole(), context=context)
    with asking_over_tls(authority, server.port) as ask:
        assert [ask() for _ in range(3)] == [BODY, b"small", BODY]
    assert server.connections == 1


def test_bytes_behind_an_answer_over_tls_are_dropped(
    serve: Serve, authority: trustme.CA, context: ssl.SSLContext
) -> None:
    """What comes in the same record was deciphered with the answer: the socket itself shows nothing of it."""
    # The head apart: what comes with it is judged by the body.
    surplus = say(HEAD % 5, b"hello" + HEAD % 4 + b"evil", pause=0.05)
    server = serve(surplus, whole(b"next"), context=context)
    with asking_over_tls(authority, server.port) as ask:
        assert [ask(), ask()] == [b"hello", b"next"]
    assert server.connections == 2


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


def give_up(authority: trustme.CA, script: Script, timeouts: Timeouts, reason: str) -> None:
    """Ask a server of one connection, and hold that it is given up soon."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                script(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with (
            asking_over_tls(authority, listener.getsockname()[1], timeouts) as ask,
            pytest.raises(RegistryUnavailableError, match=reason),
        ):
            ask()
    thread.join()


@pytest.mark.parametrize("after_handshake", [False, True], ids=["handshake", "record"])
def test_limits_hold_inside_a_tls_record_and_handshake(
    authority: trustme.CA, context: ssl.SSLContext, after_handshake: bool
) -> None:
    timeouts = Timeouts(connect=0.4, idle=0.4, head=0.8)
    script = dripping(context, HEAD % SIZE + BODY[:8000], 0.02, after_handshake=after_handshake)
    give_up(authority, script, timeouts, "within the time")


def test_a_handshake_that_drips_ends_with_the_time_to_connect(authority: trustme.CA, context: ssl.SSLContext) -> None:
    """Where the head's limit is far longer, and some byte always comes before the idle one is over."""
    timeouts = Timeouts(connect=0.3, idle=60.0, head=30.0)
    script = dripping(context, b"", 0.02, after_handshake=False)
    give_up(authority, script, timeouts, "no connection within the time allowed")


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


def test_bytes_that_arrive_after_their_answer_are_dropped(sender: HttpSender, serve: Serve) -> None:
    late = say(b"HTTP/1.1 204 No\r\n\r\n", b"{}", pause=0.05)
    server = serve(late, whole(b"next"))
    assert read(sender, server) == b""
    assert read(sender, server) == b"next"
    assert server.connections == 2


def test_bytes_behind_an_answer_are_dropped(sender: HttpSender, serve: Serve) -> None:
    server = serve(say(HEAD % 5 + b"hello" + HEAD % 4 + b"evil"), whole(b"next"))
    assert [read(sender, server) for _ in range(2)] == [b"hello", b"next"]
    assert server.connections == 2


def test_what_came_before_a_connection_broke_is_handed_out_first(sender: HttpSender, serve: Serve) -> None:
    """Or those bytes of a download would be fetched again."""

    def half(connection: socket.socket) -> None:
        for part in (HEAD % 100, b"half"):
            connection.sendall(part)
            time.sleep(0.03)
        reset(connection)

    buffer = memoryview(bytearray(100))
    with get(sender, serve(half)) as response:
        assert bytes(buffer[: response.readinto(buffer)]) == b"half"
        with pytest.raises(RegistryUnavailableError):
            drain(response)


def test_an_unread_body_that_came_with_its_head_costs_no_connection(sender: HttpSender, serve: Serve) -> None:
    server = serve(say(b"HTTP/1.1 307 Go\r\nContent-Length: 5\r\n\r\nhello"), whole(b"next"))
    get(sender, server).close()
    assert read(sender, server) == b"next"
    assert server.connections == 1


def test_a_length_with_a_transfer_coding_ends_the_connection(sender: HttpSender, serve: Serve) -> None:
    both = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    server = serve(say(both), whole(b"next"))
    assert [read(sender, server) for _ in range(2)] == [b"ok", b"next"]
    assert server.connections == 2


def test_a_machine_without_sockets_to_spare_is_unavailable(sender: HttpSender, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(RegistryUnavailableError, match="no connection: Too many open files"):
        sender.send(make_request("GET", "http://127.0.0.1:9/v2/x"), cancel=CancelToken())


def test_connections_that_were_idle_too_long_are_closed(serve: Serve) -> None:
    one, other = serve(whole(b"a")), serve(whole(b"b"))
    with contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=Timeouts(keep_alive=0.05))) as sender:
        assert read(sender, one) == b"a"
        time.sleep(0.1)
        assert read(sender, other) == b"b"
        # Its server sees the end and is done.
        one.threads[-1].join(60)
        assert not one.threads[-1].is_alive()
