"""Through a proxy on real sockets: plain requests are forwarded, https ones tunnelled, refusals said."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trustme

from imagestore import CancelToken
from imagestore.config import ConnectionSettings
from imagestore.errors import (
    ConfigError,
    DeadlineExceededError,
    OperationCancelledError,
    ProtocolError,
    RegistryUnavailableError,
)
from imagestore.registry.errors_body import failure
from imagestore.registry.retry import is_transient
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.network import Timeouts
from imagestore.registry.transport.proxy import ProxyRules
from tests.unit.registry.wire import PATIENT

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
RawServers = Callable[..., Any]


def fetch(rules: ProxyRules, url: str, *, settings: ConnectionSettings | None = None, home: str = "") -> bytes:
    with contextlib.closing(HttpSender(proxies=rules, timeouts=PATIENT)) as sender:
        origin = Origin("https", home or "registry.example", 443)
        used = sender.bound(origin, settings or ConnectionSettings())
        with used.send(make_request("GET", url), cancel=CancelToken()) as response:
            return response.read(100)


def answer_one(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(OK)


def test_a_plain_request_is_forwarded_with_the_proxys_login(raw_server: RawServers) -> None:
    proxy = raw_server(lambda connection: connection.sendall(OK))
    rules = ProxyRules(http=f"http://user:p%40ss@{proxy.host}")
    assert fetch(rules, "http://registry.example/v2/?a=b") == b"hello"
    head = proxy.requests[0]
    assert head.startswith("GET http://registry.example/v2/?a=b HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in head


@pytest.mark.parametrize(
    ("login", "sent"),
    [
        *((f"user:p{mark}ss", f"user:p{mark}ss") for mark in "#/?@%[]:\\^ |<>{}`\"'$&+=;,!"),
        *((f"us{mark}er:word", f"us{mark}er:word") for mark in "#/?@%[]\\"),
        ("user:8080/p?q#r@s%", "user:8080/p?q#r@s%"),
        ("user:http://p", "user:http://p"),
        ("user:p%23ss%25", "user:p#ss%"),
        ("user:50%off", "user:50%off"),
        ("user:p\u00e4ss", "user:p\u00e4ss"),
        ("user:p\udce4ss", b"user:p\xe4ss"),
        ("user:p%E4ss", b"user:p\xe4ss"),
        ("user:", "user:"),
        ("user", "user:"),
    ],
)
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxys_login_may_be_written_as_it_is(
    raw_server: RawServers, scheme: str, login: str, sent: str | bytes
) -> None:
    proxy = raw_server(lambda connection: connection.sendall(OK))
    rules = ProxyRules.from_environment({"HTTP_PROXY": f"{scheme}{login}@{proxy.host}"})
    assert fetch(rules, "http://registry.example/v2/") == b"hello"
    encoded = base64.b64encode(sent if isinstance(sent, bytes) else sent.encode()).decode()
    assert f"Proxy-Authorization: Basic {encoded}\r\n" in proxy.requests[0]


@pytest.mark.parametrize("place", ["", "proxy.example:0", "proxy.example:99999", "[::1", "pro xy", "proxy.\u00e4"])
def test_a_proxy_that_cannot_be_read_is_refused_without_its_login(place: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as raised:
        ProxyRules.from_environment({"HTTPS_PROXY": f"http://user:s3cret#@{place}"})
    assert "percent-encoded" in raised.value.hint
    assert "s3cret" not in f"{raised.value} {raised.value.hint}"


def test_a_proxys_login_may_have_no_password(raw_server: RawServers) -> None:
    proxy = raw_server(lambda connection: connection.sendall(OK))
    assert fetch(ProxyRules(http=f"http://user@{proxy.host}"), "http://registry.example/v2/") == b"hello"
    assert "Proxy-Authorization: Basic dXNlcjo=\r\n" in proxy.requests[0]


def test_a_proxy_may_be_an_ipv6_address() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        proxy = f"http://[::1]:{listener.getsockname()[1]}"
        answering = threading.Thread(target=lambda: answer_one(listener))
        answering.start()
        assert fetch(ProxyRules(http=proxy), "http://registry.example/v2/") == b"hello"
        answering.join()


def test_a_registry_with_an_ipv6_address_is_not_asked_through_a_proxy(raw_server: RawServers) -> None:
    """httpx leaves out the brackets, so that proxies would read another host and port."""
    proxy = raw_server(lambda connection: connection.sendall(OK))
    rules = ProxyRules(http=f"http://{proxy.host}", https=f"http://{proxy.host}")
    for url in ("http://[fd00::1]:5000/v2/", "https://[fd00::1]:5443/v2/"):
        with pytest.raises(ConfigError, match="IPv6 address can't be asked through a proxy") as raised:
            fetch(rules, url, home="[fd00::1]")
        assert "NO_PROXY" in raised.value.hint
    assert proxy.requests == []


def test_a_proxys_refusal_is_unavailable_and_shows_no_login(raw_server: RawServers) -> None:
    proxy = raw_server(lambda connection: connection.sendall(b"HTTP/1.1 407 Login\r\nContent-Length: 0\r\n\r\n"))
    rules = ProxyRules(https=f"http://user:hunter2@{proxy.host}")
    with pytest.raises(RegistryUnavailableError, match="the proxy refused: 407") as raised:
        fetch(rules, "https://registry.example/v2/")
    assert not is_transient(raised.value)
    assert "hunter2" not in str(raised.value) + raised.value.hint
    assert f"proxy http://{proxy.host}" in raised.value.hint
    assert "it wants a login" in raised.value.hint
    assert proxy.requests[0].startswith("CONNECT registry.example:443 HTTP/1.1\r\n")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cannot_be_reached_is_named_without_its_login(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    proxy = f"http://user:hunter2@127.0.0.1:{port}"
    with pytest.raises(RegistryUnavailableError) as raised:
        fetch(ProxyRules(http=proxy, https=proxy), f"{scheme}://registry.example/v2/")
    named = f"no connection through proxy http://127.0.0.1:{port}, which can't be reached: Connection refused"
    assert str(raised.value) == f"registry.example: {named}"
    assert "HTTPS_PROXY" in raised.value.hint


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_unknown_proxy_name_differs_from_an_unknown_registry_name(scheme: str) -> None:
    proxy = "http://user:hunter2@nowhere.invalid:3128"
    with pytest.raises(RegistryUnavailableError, match=r"through proxy http://nowhere\.invalid:3128, which") as raised:
        fetch(ProxyRules(http=proxy, https=proxy), f"{scheme}://registry.example/v2/")
    assert "name resolution failed" in str(raised.value)


def test_a_proxy_that_speaks_no_tls_is_not_taken_for_the_registry() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = f"https://127.0.0.1:{listener.getsockname()[1]}"
        answering = threading.Thread(target=lambda: answer_one(listener))
        answering.start()
        with pytest.raises(RegistryUnavailableError, match="no TLS connection through proxy https://") as raised:
            fetch(ProxyRules(https=proxy), "https://registry.example/v2/")
        answering.join()
    assert "hosts.toml" not in raised.value.hint


def test_a_response_names_the_proxy_that_may_have_answered(raw_server: RawServers) -> None:
    proxy = raw_server(lambda connection: connection.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"))
    rules = ProxyRules(http=f"http://user:hunter2@{proxy.host}")
    with contextlib.closing(HttpSender(proxies=rules, timeouts=PATIENT)) as sender:
        response = sender.send(make_request("GET", "http://registry.example/v2/"), cancel=CancelToken())
        hint = failure(response, what="image").hint
    assert hint.startswith(f"it is asked through proxy http://{proxy.host}, which may have answered instead; ")


def test_a_certificate_that_is_not_accepted_behind_a_proxy_names_the_proxy_too(raw_server: RawServers) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("registry.example").configure_cert(context)

    def tunnel(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        with contextlib.suppress(OSError):
            context.wrap_socket(connection, server_side=True)

    proxy = f"http://{raw_server(tunnel).host}"
    with pytest.raises(RegistryUnavailableError, match="no TLS connection") as raised:
        fetch(ProxyRules(https=proxy), "https://registry.example/v2/")
    assert raised.value.hint.startswith(f"it is asked through proxy {proxy}; ")


def test_https_is_tunnelled_and_checked_against_the_registrys_name(raw_server: RawServers, tmp_path: Any) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("registry.example", key_type=trustme.KeyType.ECDSA).configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def tunnel(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        with context.wrap_socket(connection, server_side=True) as inside:
            inside.recv(65536)
            inside.sendall(OK)

    rules = ProxyRules(https=f"http://{raw_server(tunnel).host}")
    settings = ConnectionSettings(ca_files=(str(tmp_path / "ca.pem"),))
    assert fetch(rules, "https://registry.example/v2/", settings=settings) == b"hello"


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1",
        "[::ffff:10.0.0.1]",
        "10.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "0",
        "localhost",
        "a.localhost",
        "10.1.",
    ],
)
def test_behind_a_proxy_private_literals_named_by_a_server_are_still_refused(raw_server: RawServers, host: str) -> None:
    proxy = raw_server(lambda connection: connection.sendall(OK))
    with pytest.raises(ProtocolError, match=r"expected a public address|Invalid IPv4 address"):
        fetch(ProxyRules(http=f"http://{proxy.host}"), f"http://{host}/latest")
    assert proxy.requests == []


def test_behind_a_proxy_a_public_literal_named_by_a_server_is_asked(raw_server: RawServers) -> None:
    proxy = raw_server(lambda connection: connection.sendall(OK))
    assert fetch(ProxyRules(http=f"http://{proxy.host}"), "http://93.184.216.34/blob") == b"hello"


def test_the_private_address_of_a_proxy_is_not_that_of_its_registries(raw_server: RawServers) -> None:
    """Or every registry behind a proxy could send us to the proxy's neighbours."""
    proxy = raw_server(*[lambda connection: connection.sendall(OK)] * 2)
    home = Origin("http", "registry.example", 80)
    with contextlib.closing(HttpSender(proxies=ProxyRules(http=f"http://{proxy.host}"), timeouts=PATIENT)) as sender:
        bound = sender.bound(home, ConnectionSettings())
        with bound.send(make_request("GET", f"{home}/v2/"), cancel=CancelToken()) as response:
            assert response.read(100) == b"hello"
        with pytest.raises(ProtocolError, match="expected a public address"):
            bound.send(make_request("GET", "http://10.0.0.1/"), cancel=CancelToken()).close()
    assert len(proxy.requests) == 1


def test_socks_without_its_package_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="socksio"):
        fetch(ProxyRules(https="socks5://127.0.0.1:1"), "https://registry.example/v2/")


class TestSlowNames:
    """The system's resolver can't be ended, but it can be left."""

    @pytest.fixture
    def stuck(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        release = threading.Event()

        def resolve(*args: Any, **more: Any) -> Any:
            release.wait()
            raise socket.gaierror("too late")

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        yield
        release.set()

    @staticmethod
    def ask(cancel: CancelToken, timeouts: Timeouts = PATIENT) -> None:
        with contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=timeouts)) as sender:
            sender.send(make_request("GET", "http://registry.example/"), cancel=cancel)

    def test_cancelling_leaves_it(self, stuck: Any) -> None:
        token = CancelToken()
        timer = threading.Timer(0.05, token.cancel)
        timer.start()
        with pytest.raises(OperationCancelledError):
            self.ask(token)
        timer.join()

    def test_the_deadline_leaves_it(self, stuck: Any) -> None:
        with pytest.raises(DeadlineExceededError):
            self.ask(CancelToken(deadline_seconds=0.05))

    def test_the_heads_limit_leaves_it(self, stuck: Any) -> None:
        with pytest.raises(RegistryUnavailableError):
            self.ask(CancelToken(), Timeouts(head=0.05))
