"""The sender on real sockets: what a peer can do to us, and how quickly we get away."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import (
    BasicConstraints,
    CertificateBuilder,
    ExtensionType,
    IPAddress,
    Name,
    NameAttribute,
    NameOID,
    SubjectAlternativeName,
    random_serial_number,
)

from imagestore.cancel import CancelToken
from imagestore.config.connection import ConnectionSettings
from imagestore.errors import (
    ConfigError,
    DeadlineExceededError,
    OperationCancelledError,
    ProtocolError,
    RegistryUnavailableError,
)
from imagestore.registry.auth.policy import AuthPolicy
from imagestore.registry.connect import EndpointLines
from imagestore.registry.credentials.model import Anonymous
from imagestore.registry.endpoints import default_endpoint
from imagestore.registry.exchange import Origin, Request
from imagestore.registry.transport.http import HttpSender, Timeouts
from imagestore.registry.transport.network import Pace
from imagestore.registry.transport.proxies import ProxyRules

if TYPE_CHECKING:
    from pathlib import Path

SHORT = Timeouts(connect=2.0, idle=0.2, pace=Pace(head_seconds=0.4))
RawServers = Callable[..., Any]


@pytest.fixture
def sender() -> Iterator[HttpSender]:
    made = HttpSender(proxies=ProxyRules(), timeouts=SHORT)
    yield made
    made.close()


def say(*pieces: bytes, then: Callable[[socket.socket], None] | None = None) -> Callable[[socket.socket], None]:
    def run(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
        if then is not None:
            then(connection)

    return run


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()


def stall(connection: socket.socket) -> None:
    # Until the client goes away; the connection's own timeout is the longest it can last.
    connection.recv(1)


def get(sender: HttpSender, server: Any, cancel: CancelToken | None = None) -> bytes:
    request = Request("GET", f"http://{server.host}/v2/x?token=very-secret")
    with sender.send(request, cancel=cancel or CancelToken()) as response:
        return response.read(1000)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def test_cancelling_leaves_a_connection_that_is_not_answered() -> None:
    made = HttpSender(proxies=ProxyRules(), timeouts=Timeouts(connect=5.0))
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
        began = time.monotonic()
        with pytest.raises(OperationCancelledError, match="stop"):
            made.send(Request("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/"), cancel=cancel)
        assert time.monotonic() - began < 3
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
def test_a_broken_connection_is_unavailable(sender: HttpSender, raw_server: RawServers, script: Any) -> None:
    with pytest.raises(RegistryUnavailableError) as raised:
        get(sender, raw_server(script))
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


def test_a_head_that_drips_ends_at_its_own_limit(sender: HttpSender, raw_server: RawServers) -> None:
    def drip(connection: socket.socket) -> None:
        for byte in OK:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    started = time.monotonic()
    with pytest.raises(RegistryUnavailableError):
        get(sender, raw_server(drip))
    assert time.monotonic() - started < 10


def test_a_body_that_drips_is_unavailable(raw_server: RawServers) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        for _ in range(500):
            connection.sendall(b"x")
            time.sleep(0.02)

    sender = HttpSender(proxies=ProxyRules(), timeouts=Timeouts(pace=Pace(window_seconds=0.2)))
    with contextlib.closing(sender), pytest.raises(RegistryUnavailableError, match="slower than 1024 bytes"):
        get(sender, raw_server(drip))


def test_a_slow_start_is_no_slow_body(raw_server: RawServers) -> None:
    def late(connection: socket.socket) -> None:
        time.sleep(0.15)
        connection.sendall(OK + b"h")
        time.sleep(0.05)
        connection.sendall(b"ello")

    sender = HttpSender(proxies=ProxyRules(), timeouts=Timeouts(pace=Pace(window_seconds=0.12)))
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
    with sender.send(Request("GET", f"http://{server.host}/"), cancel=CancelToken()) as response:
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
    started = time.monotonic()
    with pytest.raises(OperationCancelledError, match="enough"):
        get(sender, raw_server(script), token)
    timer.join()
    sender.close()
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("script", [say(then=stall), say(OK, b"he", then=stall)], ids=["head", "body"])
def test_the_deadline_ends_a_blocked_read(raw_server: RawServers, script: Any) -> None:
    sender = HttpSender(proxies=ProxyRules())
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        get(sender, raw_server(script), CancelToken(deadline_seconds=0.1))
    sender.close()
    assert time.monotonic() - started < 10


def test_a_cancelled_operation_sends_nothing(sender: HttpSender, raw_server: RawServers) -> None:
    token = CancelToken()
    token.cancel()
    server = raw_server(say(OK, b"hello"))
    with pytest.raises(OperationCancelledError):
        get(sender, server, token)
    assert server.requests == []


def test_a_connection_is_used_again_after_a_whole_body(sender: HttpSender, raw_server: RawServers) -> None:
    def twice(connection: socket.socket) -> None:
        connection.sendall(OK + b"hello")
        connection.recv(65536)
        connection.sendall(OK + b"again")

    server = raw_server(twice)
    assert get(sender, server) == b"hello"
    assert get(sender, server) == b"again"
    assert len(server.requests) == 1


def test_a_late_cancel_does_not_touch_the_connections_next_user(sender: HttpSender, raw_server: RawServers) -> None:
    def twice(connection: socket.socket) -> None:
        connection.sendall(OK + b"hello")
        connection.recv(65536)
        connection.sendall(OK + b"again")

    server, token = raw_server(twice), CancelToken()
    assert get(sender, server, token) == b"hello"
    token.cancel()
    assert get(sender, server) == b"again"


def test_nobody_listening_is_unavailable(sender: HttpSender) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RegistryUnavailableError, match="no connection: Connection refused"):
        sender.send(Request("GET", f"http://127.0.0.1:{port}/"), cancel=CancelToken())


def test_a_name_that_does_not_resolve_is_unavailable(sender: HttpSender) -> None:
    with pytest.raises(RegistryUnavailableError, match="name resolution failed"):
        sender.send(Request("GET", "http://nowhere.invalid/"), cancel=CancelToken())


@pytest.mark.parametrize("value", ["a\r\nX-Injected: b", "a\nb", "a\0b", "ä€"])
def test_a_header_that_would_smuggle_another_is_not_sent(
    sender: HttpSender, raw_server: RawServers, value: str
) -> None:
    server = raw_server(say(OK, b"hello"))
    request = Request("GET", f"http://{server.host}/", (("Authorization", value),))
    with pytest.raises(ProtocolError) as raised:
        sender.send(request, cancel=CancelToken())
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
        with sender.send(Request("GET", "http://registry.example/v2/"), cancel=CancelToken()) as response:
            assert response.read(10) == b"hello"
        thread.join()
        sender.close()


class TestPrivateAddresses:
    """A public registry may not send us into our own network; resolution included."""

    HOME = Origin("https", "registry.example", 443)

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"]
    )
    def test_a_private_literal_named_by_a_public_registry_is_refused(self, sender: HttpSender, host: str) -> None:
        bound = sender.bound(self.HOME, ConnectionSettings())
        with pytest.raises(ProtocolError, match="expected a public address"):
            bound.send(Request("GET", f"http://{host}:1/"), cancel=CancelToken())

    def test_a_name_that_resolves_to_a_private_address_is_refused(
        self, sender: HttpSender, raw_server: RawServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = raw_server(say(OK, b"hello"))
        loopback = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: loopback)
        bound = sender.bound(self.HOME, ConnectionSettings())
        with pytest.raises(ProtocolError, match=r"storage\.example: expected a public address"):
            bound.send(Request("GET", f"http://storage.example:{server.port}/"), cancel=CancelToken())
        assert server.requests == []

    def test_a_private_registry_may_name_its_neighbours(self, sender: HttpSender, raw_server: RawServers) -> None:
        server = raw_server(say(OK, b"hello"))
        bound = sender.bound(Origin("http", "10.0.0.9", 80), ConnectionSettings())
        with bound.send(Request("GET", f"http://{server.host}/"), cancel=CancelToken()) as response:
            assert response.read(10) == b"hello"

    @pytest.mark.parametrize("registry", ["registry.example", "other.example"])
    def test_a_host_the_operator_trusts_may_have_a_private_address(
        self, sender: HttpSender, raw_server: RawServers, registry: str
    ) -> None:
        server = raw_server(say(OK, b"hello"))
        policy = AuthPolicy(trusted_realms=frozenset({("registry.example", "127.0.0.1")}))
        line = EndpointLines(sender, Anonymous(), policy)(default_endpoint(registry))
        allowed = registry == "registry.example"
        with contextlib.nullcontext() if allowed else pytest.raises(ProtocolError, match="expected a public address"):
            line.sender.send(Request("GET", f"http://{server.host}/"), cancel=CancelToken()).close()
        assert len(server.requests) == allowed

    def test_a_registry_found_at_a_private_address_may_name_its_neighbours(
        self, sender: HttpSender, raw_server: RawServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry, storage = raw_server(say(OK, b"hello")), raw_server(say(OK, b"again"))
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, port, *args, **more: real("127.0.0.1", port, *args, **more)
        )
        home = Origin("http", "registry.internal", registry.port)
        bound = sender.bound(home, ConnectionSettings())
        with bound.send(Request("GET", f"{home}/"), cancel=CancelToken()) as response:
            response.read(10)
        with bound.send(Request("GET", f"http://storage.internal:{storage.port}/"), cancel=CancelToken()) as response:
            assert response.read(10) == b"again"


class TestTls:
    """Private authorities and client certificates."""

    @pytest.fixture(scope="class")
    @staticmethod
    def authority() -> trustme.CA:
        return trustme.CA(key_type=trustme.KeyType.ECDSA)

    @pytest.fixture
    def server(self, authority: trustme.CA, raw_server: RawServers) -> Any:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(context)
        return _TlsServer(context)

    @staticmethod
    def ask(server: _TlsServer, settings: ConnectionSettings) -> bytes:
        request = Request("GET", f"{server.origin}/")
        with (
            contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=SHORT)) as sender,
            server,
            sender.bound(server.origin, settings).send(request, cancel=CancelToken()) as response,
        ):
            return response.read(100)

    def test_an_unknown_authority_is_refused_with_advice(self, server: Any) -> None:
        with pytest.raises(RegistryUnavailableError, match="certificate is not accepted") as raised:
            self.ask(server, ConnectionSettings())
        assert "hosts.toml" in raised.value.hint
        assert isinstance(raised.value.__cause__, ssl.SSLCertVerificationError)

    def test_a_configured_authority_is_trusted(self, server: Any, authority: trustme.CA, tmp_path: Path) -> None:
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        assert self.ask(server, ConnectionSettings(ca_files=(str(tmp_path / "ca.pem"),))) == b"hello"

    def test_skip_verify_takes_any_certificate(self, server: Any) -> None:
        assert self.ask(server, ConnectionSettings(skip_verify=True)) == b"hello"

    def test_files_that_are_replaced_count_from_then_on(
        self, authority: trustme.CA, tmp_path: Path, sender: HttpSender
    ) -> None:
        path = tmp_path / "ca.pem"
        settings = ConnectionSettings(ca_files=(str(path),))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(context)

        def ask() -> bytes:
            server = _TlsServer(context)
            request = Request("GET", f"{server.origin}/")
            bound = sender.bound(server.origin, settings)
            with server, bound.send(request, cancel=CancelToken(5)) as response:
                return response.read(100)

        trustme.CA(key_type=trustme.KeyType.ECDSA).cert_pem.write_to_path(str(path))
        with pytest.raises(RegistryUnavailableError, match="certificate"):
            ask()
        authority.cert_pem.write_to_path(str(path))
        assert [ask(), ask()] == [b"hello", b"hello"]
        path.unlink()
        with pytest.raises(ConfigError, match=str(path)):
            ask()

    @pytest.mark.parametrize("is_one_file", [True, False])
    def test_a_client_certificate_is_presented(
        self, server: Any, authority: trustme.CA, tmp_path: Path, is_one_file: bool
    ) -> None:
        server.context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(server.context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        issued = authority.issue_cert("client.example", key_type=trustme.KeyType.ECDSA)
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / "client.cert"))
        issued.private_key_pem.write_to_path(str(tmp_path / "client.key"))
        pair = ("both.pem", "") if is_one_file else ("client.cert", "client.key")
        paths = (str(tmp_path / pair[0]), str(tmp_path / pair[1]) if pair[1] else "")
        settings = ConnectionSettings(ca_files=(str(tmp_path / "ca.pem"),), client_pairs=(paths,))
        assert self.ask(server, settings) == b"hello"

    def test_an_authority_without_the_extensions_of_rfc_5280_is_trusted(self, tmp_path: Path) -> None:
        # As "openssl req -x509" and "openssl x509 -req" made them for years; containerd takes them.
        authority, server = _Certified("an authority"), _Certified("127.0.0.1")
        (tmp_path / "ca.pem").write_bytes(authority.signed_by(authority, BasicConstraints(ca=True, path_length=None)))
        address = SubjectAlternativeName([IPAddress(ipaddress.ip_address("127.0.0.1"))])
        (tmp_path / "server.pem").write_bytes(server.private_pem + server.signed_by(authority, address))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem")
        settings = ConnectionSettings(ca_files=(str(tmp_path / "ca.pem"),))
        assert self.ask(_TlsServer(context), settings) == b"hello"

    def test_an_authority_that_another_signed_is_trusted_without_that_one(
        self, authority: trustme.CA, tmp_path: Path
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        between = authority.create_child_ca(key_type=trustme.KeyType.ECDSA)
        between.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(context)
        between.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        settings = ConnectionSettings(ca_files=(str(tmp_path / "ca.pem"),))
        assert self.ask(_TlsServer(context), settings) == b"hello"

    @pytest.mark.parametrize("content", [None, "no certificate"])
    def test_a_file_that_is_no_authority_names_itself(self, server: Any, tmp_path: Path, content: str | None) -> None:
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigError, match=str(path)):
            self.ask(server, ConnectionSettings(ca_files=(str(path),)))

    def test_a_plain_http_server_behind_https_gets_advice(self, raw_server: RawServers) -> None:
        plain = _PlainServer()
        with pytest.raises(RegistryUnavailableError, match="no TLS connection") as raised:
            self.ask(plain, ConnectionSettings())
        assert "plain HTTP" in raised.value.hint


class _TlsServer:
    """Answers one TLS connection with hello, after those on which its certificate was refused."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(2.0)
        self._thread = threading.Thread(target=self._serve)
        self._is_over = False
        self.origin = Origin("https", "127.0.0.1", self._listener.getsockname()[1])

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *ignored: object) -> None:
        self._is_over = True
        # Should nobody have come, this ends accept().
        with contextlib.suppress(OSError), socket.create_connection(self._listener.getsockname(), timeout=1.0):
            self._thread.join(0.2)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over:
                with contextlib.suppress(ssl.SSLError):
                    self._answer()
                    return

    def _answer(self) -> None:
        accepted, _ = self._listener.accept()
        with accepted:
            accepted.settimeout(2.0)
            if self.context is None:
                accepted.recv(100)
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            with self.context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(65536)
                connection.sendall(OK + b"hello")


class _Certified:
    """A key whose certificates say only what they are told to."""

    def __init__(self, name: str) -> None:
        self.name = Name([NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.private_pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def signed_by(self, issuer: _Certified, extension: ExtensionType) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(issuer.name)
            .public_key(self.key.public_key())
            .serial_number(random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(extension, critical=True)
            .sign(issuer.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


class _PlainServer(_TlsServer):
    def __init__(self) -> None:
        super().__init__(None)
