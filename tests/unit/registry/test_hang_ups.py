"""Peers that close the connection when nothing says so: during the TLS handshake, or as soon as they have answered."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from imagestore import CancelToken
from imagestore.config import ConnectionSettings
from imagestore.errors import RegistryUnavailableError
from imagestore.registry.retry import is_transient
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.proxy import ProxyRules
from tests.unit.registry.scripted_server import reset
from tests.unit.registry.wire import PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.registry.wire import RawServers

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CLOSE_NOTIFY = bytes.fromhex("15030300020100")
SAID = "the server closed the connection during the TLS handshake"


def close(connection: socket.socket) -> None:
    connection.recv(65536)


def say_good_bye(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(CLOSE_NOTIFY)


def break_off(connection: socket.socket) -> None:
    connection.recv(65536)
    reset(connection)


@contextlib.contextmanager
def listening(script: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port whose one connection runs a script before anything of TLS was agreed on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                script(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def failure_of(url: str, rules: ProxyRules) -> RegistryUnavailableError:
    with (
        contextlib.closing(HttpSender(proxies=rules, timeouts=PATIENT)) as sender,
        pytest.raises(RegistryUnavailableError) as raised,
    ):
        sender.send(make_request("GET", url), cancel=CancelToken())
    assert "_ssl.c" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("script", [close, say_good_bye, break_off])
def test_a_server_that_hangs_up_in_the_handshake_is_named(script: Callable[[socket.socket], None]) -> None:
    with listening(script) as port:
        failure = failure_of(f"https://127.0.0.1:{port}/v2/", ProxyRules())
    assert str(failure) == f"127.0.0.1:{port}: {SAID}"
    for word in ("http://", "hosts.toml", "port", "proxy"):
        assert word in failure.hint
    assert is_transient(failure)


@pytest.mark.parametrize("script", [close, say_good_bye, break_off])
def test_also_through_a_tunnel(raw_server: RawServers, script: Callable[[socket.socket], None]) -> None:
    def tunnel(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        script(connection)

    rules = ProxyRules(https=f"http://{raw_server(tunnel).host}")
    failure = failure_of("https://registry.example/v2/", rules)
    assert str(failure) == f"registry.example: {SAID}"
    assert "through proxy" in failure.hint


@pytest.mark.parametrize("script", [close, say_good_bye, break_off])
def test_a_proxy_that_hangs_up_in_the_handshake_is_named(script: Callable[[socket.socket], None]) -> None:
    with listening(script) as port:
        failure = failure_of("https://registry.example/v2/", ProxyRules(https=f"https://127.0.0.1:{port}"))
    assert f"through proxy https://127.0.0.1:{port}, which can't be reached: it closed the connection" in str(failure)
    assert "HTTPS_PROXY" in failure.hint


def test_a_server_that_resets_the_connection_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of the other end can be asked for only until then."""
    asked = 0
    address_of = socket.socket.getpeername

    def gone_after_once(connection: socket.socket) -> Any:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return address_of(connection)

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(ANSWER)

    with listening(answer) as port, contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=PATIENT)) as sender:
        monkeypatch.setattr(socket.socket, "getpeername", gone_after_once)
        request = make_request("GET", f"http://127.0.0.1:{port}/")
        bound = sender.bound(Origin("http", "127.0.0.1", port), ConnectionSettings())
        with bound.send(request, cancel=CancelToken()) as response:
            assert response.read(10) == b"hello"
