"""The sender's TLS: whom it trusts, whom it refuses, and what it says then."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
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

from imagestore import CancelToken
from imagestore.config import ConnectionSettings
from imagestore.errors import (
    ConfigError,
    RegistryUnavailableError,
)
from imagestore.registry.transport import tls
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.proxy import ProxyRules
from tests.unit.registry.wire import OK, PATIENT, RawServers

if TYPE_CHECKING:
    from pathlib import Path


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
        request = make_request("GET", f"{server.origin}/")
        with (
            contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=PATIENT)) as sender,
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

    @pytest.mark.parametrize("is_said", [True, False])
    def test_a_body_without_length_ends_with_its_connection(self, authority: trustme.CA, *, is_said: bool) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(context)
        server = _EndingServer(context, is_said=is_said)
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
            request = make_request("GET", f"{server.origin}/")
            bound = sender.bound(server.origin, settings)
            with server, bound.send(request, cancel=CancelToken(60)) as response:
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

    @pytest.mark.parametrize(
        ("names", "fields", "words"),
        [
            (
                ["127.0.0.1"],
                {"not_after": datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)},
                "renewed, unless the clock",
            ),
            (
                ["127.0.0.1"],
                {"not_before": datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)},
                "renewed, unless the clock",
            ),
            (["other.example"], {}, "by a name that its certificate holds"),
            (["127.0.0.2"], {}, "by a name that its certificate holds"),
        ],
    )
    def test_a_certificate_of_a_known_authority_gets_other_advice(
        self, server: Any, authority: trustme.CA, tmp_path: Path, names: list[str], fields: dict[str, Any], words: str
    ) -> None:
        server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if "not_before" in fields:
            fields = {**fields, "not_after": datetime.datetime(2121, 1, 1, tzinfo=datetime.UTC)}
        issued = authority.issue_cert(*names, key_type=trustme.KeyType.ECDSA, **fields)
        issued.configure_cert(server.context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        with pytest.raises(RegistryUnavailableError, match="certificate") as raised:
            self.ask(server, ConnectionSettings(ca_files=(str(tmp_path / "ca.pem"),)))
        assert words in raised.value.hint
        assert "'ca'" not in raised.value.hint

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_a_server_that_wants_a_client_certificate_gets_advice(
        self, server: Any, authority: trustme.CA, tmp_path: Path, version: ssl.TLSVersion
    ) -> None:
        server.context.verify_mode = ssl.CERT_REQUIRED
        server.context.maximum_version = version
        authority.configure_trust(server.context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        with pytest.raises(RegistryUnavailableError) as raised:
            self.ask(server, ConnectionSettings(ca_files=(str(tmp_path / "ca.pem"),)))
        assert "name it as 'client'" in raised.value.hint

    @pytest.mark.parametrize(
        ("reason", "words"),
        [
            ("TLSV1_UNRECOGNIZED_NAME", "no certificate for this name"),
            ("TLSV1_ALERT_UNRECOGNIZED_NAME", "no certificate for this name"),
            ("TLSV1_ALERT_PROTOCOL_VERSION", "1.2 and 1.3"),
            ("TLSV1_ALERT_UNKNOWN_CA", "doesn't accept the client certificate"),
        ],
    )
    def test_a_servers_alert_is_explained(self, reason: str, words: str) -> None:
        failure = ssl.SSLError(1, "alert")
        failure.reason = reason
        assert words in tls.hint(failure)

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
        self._listener.settimeout(60)
        self._thread = threading.Thread(target=self._serve)
        self._is_over = False
        self.origin = Origin("https", "127.0.0.1", self._listener.getsockname()[1])

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *ignored: object) -> None:
        self._is_over = True
        # Should nobody have come, this ends accept().
        with contextlib.suppress(OSError), socket.create_connection(self._listener.getsockname(), timeout=60):
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
            accepted.settimeout(60)
            if self.context is None:
                accepted.recv(100)
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            with self.context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(65536)
                connection.sendall(OK + b"hello")


class _EndingServer(_TlsServer):
    """Tells the end of a body by closing, which TLS has a word for; not every server says it."""

    def __init__(self, context: ssl.SSLContext, *, is_said: bool) -> None:
        super().__init__(context)
        self._is_said = is_said

    def _answer(self) -> None:
        accepted, _ = self._listener.accept()
        assert self.context is not None
        with accepted, self.context.wrap_socket(accepted, server_side=True) as connection:
            connection.settimeout(60)
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
            if self._is_said:
                connection.settimeout(0)  # said, and no answer waited for
                with contextlib.suppress(OSError):
                    connection.unwrap()


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
