"""The system's authorities are looked up one by one where that is possible, and all are read before one is refused."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Self

import pytest
import trustme
from cryptography import x509

from imagestore import CancelToken
from imagestore.config import ConnectionSettings
from imagestore.errors import RegistryUnavailableError
from imagestore.registry.transport import tls
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.proxy import ProxyRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OF_OTHERS = "0badcafe.0"


class Server:
    """Answers each request of a TLS connection; counts connections, those that came to nothing too.

    Args:
        authority: whose certificate it shows.
        on_connection: told the number of each connection before it is answered.
    """

    def __init__(self, authority: trustme.CA, on_connection: Callable[[int], None] = lambda _: None) -> None:
        self._on_connection = on_connection
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(self._context)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.origin = Origin("https", "127.0.0.1", self._socket.getsockname()[1])
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection, self.connections), daemon=True).start()

    def _answer(self, plain: socket.socket, number: int) -> None:
        self._on_connection(number)
        with contextlib.suppress(OSError), plain, self._context.wrap_socket(plain, server_side=True) as connection:
            while connection.recv(65536):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


class System:
    """What a machine trusts: a folder and a bundle in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.bundle = folder / "ca-certificates.crt"
        folder.mkdir()
        other = trustme.CA(key_type=trustme.KeyType.ECDSA)
        other.cert_pem.write_to_path(str(folder / OF_OTHERS))
        other.cert_pem.write_to_path(str(self.bundle))
        monkeypatch.setenv("SSL_CERT_FILE", str(self.bundle))
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))

    def add_by_name(self, authority: trustme.CA) -> None:
        """As openssl-rehash(1) does."""
        authority.cert_pem.write_to_path(str(self.folder / f"{_hashed_name(authority)}.0"))

    def add_to_bundle(self, authority: trustme.CA) -> None:
        """As people do by hand."""
        authority.cert_pem.write_to_path(str(self.bundle), append=True)


def _hashed_name(authority: trustme.CA) -> str:
    """X509_NAME_hash(3): of the subject with its texts in lower case, as UTF-8, without the outermost header."""
    certificate = x509.load_pem_x509_certificate(authority.cert_pem.bytes())

    def wrapped(tag: int, content: bytes) -> bytes:
        assert len(content) < 128
        return bytes([tag, len(content)]) + content

    parts = b""
    for attribute in certificate.subject:
        name = x509.Name([attribute]).public_bytes()
        length = name[name.index(b"\x06") + 1] + 2
        identifier = name[name.index(b"\x06") :][:length]
        text = " ".join(str(attribute.value).lower().split()).encode()
        parts += wrapped(0x31, wrapped(0x30, identifier + wrapped(0x0C, text)))
    return hashlib.sha1(parts, usedforsecurity=False).digest()[3::-1].hex()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    return System(tmp_path / "certs", monkeypatch)


@pytest.fixture
def named(system: System, monkeypatch: pytest.MonkeyPatch) -> System:
    """The system's own places, which no variable names."""
    paths = ssl.get_default_verify_paths()
    own = paths._replace(capath=str(system.folder), openssl_cafile_env="NO_FILE", openssl_capath_env="NO_FOLDER")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: own)
    return system


@pytest.fixture
def sender() -> Iterator[HttpSender]:
    with contextlib.closing(HttpSender(proxies=ProxyRules())) as made:
        yield made


def ask(sender: HttpSender, server: Server) -> bytes:
    request = make_request("GET", f"{server.origin}/")
    bound = sender.bound(server.origin, ConnectionSettings())
    with bound.send(request, cancel=CancelToken(60)) as response:
        return response.read(100)


def test_an_authority_in_the_folder_is_trusted(system: System, authority: trustme.CA, sender: HttpSender) -> None:
    system.add_by_name(authority)
    with Server(authority) as server:
        assert [ask(sender, server), ask(sender, server)] == [b"hello", b"hello"]
        assert server.connections == 1


def test_an_authority_in_the_bundle_alone_is_trusted(system: System, authority: trustme.CA, sender: HttpSender) -> None:
    system.add_to_bundle(authority)
    with Server(authority) as server:
        assert [ask(sender, server), ask(sender, server)] == [b"hello", b"hello"]
        assert server.connections == 1


@pytest.mark.usefixtures("system")
def test_an_unknown_authority_is_refused(authority: trustme.CA, sender: HttpSender) -> None:
    with Server(authority) as server:
        for connections in (1, 2):
            with pytest.raises(RegistryUnavailableError, match="certificate is not accepted"):
                ask(sender, server)
            assert server.connections == connections


def test_no_folder_but_the_system_s_is_searched_whatever_its_path(
    system: System, authority: trustme.CA, sender: HttpSender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenSSL takes paths apart at colons; a part without a slash in front is below the working directory.
    link, stranger = tmp_path / "link", tmp_path / "2026"
    link.symlink_to(system.folder.rename(tmp_path / "certs:2026"))
    monkeypatch.setenv("SSL_CERT_DIR", str(link))
    monkeypatch.setenv("SSL_CERT_FILE", str(link / system.bundle.name))
    system.folder = stranger
    stranger.mkdir()
    system.add_by_name(authority)
    monkeypatch.chdir(tmp_path)
    with Server(authority) as server, pytest.raises(RegistryUnavailableError, match="certificate is not accepted"):
        ask(sender, server)


def test_several_folders_of_authorities_are_the_system_s(
    system: System, authority: trustme.CA, sender: HttpSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = system.folder.parent / "other"
    monkeypatch.setenv("SSL_CERT_DIR", f"{system.folder}:{other}")
    monkeypatch.setenv("SSL_CERT_FILE", str(system.folder.parent / "missing"))
    other.mkdir()
    system.folder = other
    system.add_by_name(authority)
    # Nobody else's are added.
    assert tls.make_context(ConnectionSettings()).cert_store_stats()["x509"] == 0
    with Server(authority) as server:
        assert ask(sender, server) == b"hello"


def test_the_folder_is_enough_for_an_authority_that_it_has(
    named: System, authority: trustme.CA, sender: HttpSender
) -> None:
    named.add_by_name(authority)
    assert tls.make_context(ConnectionSettings(), is_by_name=True).cert_store_stats()["x509"] == 0
    with Server(authority) as server:
        assert [ask(sender, server), ask(sender, server)] == [b"hello", b"hello"]
        assert server.connections == 1


def test_the_bundle_is_read_before_a_server_is_refused(
    named: System, authority: trustme.CA, sender: HttpSender
) -> None:
    named.add_to_bundle(authority)
    with Server(authority) as server:
        assert [ask(sender, server), ask(sender, server)] == [b"hello", b"hello"]
        assert server.connections == 2


@pytest.mark.usefixtures("named")
def test_who_is_in_neither_is_refused_and_the_bundle_is_read_once(authority: trustme.CA, sender: HttpSender) -> None:
    with Server(authority) as server:
        for connections in (2, 3):
            with pytest.raises(RegistryUnavailableError, match="certificate is not accepted"):
                ask(sender, server)
            assert server.connections == connections


def test_without_names_by_hash_all_are_read(named: System, authority: trustme.CA) -> None:
    (named.folder / OF_OTHERS).unlink()
    named.add_to_bundle(authority)
    assert tls.make_context(ConnectionSettings(), is_by_name=True).cert_store_stats()["x509"] == 2
