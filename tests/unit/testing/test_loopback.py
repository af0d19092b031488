"""The loopback server and the proxy: how they begin and end, also with clients that don't do their part."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore import Digest
from imagestore.errors import ConfigError
from imagestore.testing import (
    FaultRule,
    Registry,
    RegistryServer,
    Where,
    build_image,
    make_tape,
    replay,
    save_tape,
    synthetic_layer,
)
from imagestore.testing.faults import GzipCoding, SetHeader
from imagestore.testing.servers.authority import Authority
from imagestore.testing.servers.loopback import LoopbackServer
from imagestore.testing.servers.proxy import ProxyServer
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.session import TapeSession
from tests.support.patience import until
from tests.support.plain_http import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IMAGES = {"registry.example/app:1": build_image()}


def connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def running() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "recorded-registry"]


def test_closing_waits_for_no_client_that_makes_no_handshake() -> None:
    with RegistryServer(IMAGES, tls=True) as server, connect(server.address):
        until(lambda: len(running()) >= 2, "the client is served")
        time.sleep(0.1)
        server.server.close()
        assert running() == []


def test_closing_waits_for_no_client_that_makes_no_handshake_in_a_tunnel() -> None:
    with ProxyServer(Registry(IMAGES).engine, (), authority=Authority()) as server:
        with connect(server.proxy_url.removeprefix("http://")) as client:
            client.sendall(b"CONNECT registry.example:443 HTTP/1.1\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
            time.sleep(0.1)
            server.close()
        assert running() == []


@pytest.mark.parametrize("host", ["...", "-a.example", "a" * 64 + ".example"])
def test_a_tunnel_to_what_no_certificate_can_name_is_refused(host: str) -> None:
    with (
        ProxyServer(Registry(IMAGES).engine, (), authority=Authority()) as server,
        connect(server.proxy_url.removeprefix("http://")) as client,
    ):
        client.sendall(f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_port_that_is_taken_is_named_and_nothing_is_left_listening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests that run in parallel use the shared folder.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    registry = Registry({**IMAGES, "other.example/app:1": build_image()})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"other.example": taken.getsockname()[1]}
        server = LoopbackServer(registry.engine, registry.hosts, ports=ports)
        proxy = ProxyServer(registry.engine, registry.hosts, authority=Authority(), ports=ports)
        for each in (server, proxy):
            with pytest.raises(ConfigError, match=f"listener for other.example: port {ports['other.example']} "), each:
                pass
    assert running() == []
    assert list(tmp_path.iterdir()) == []


def test_a_closed_server_opens_no_listener() -> None:
    with RegistryServer(IMAGES) as server:
        address = server.url
    assert server.url == address
    with pytest.raises(ConfigError, match=r"other\.example: the server is closed"):
        server.server.url_of("other.example")
    assert running() == []


def test_a_servers_url_is_text_and_tells_of_other_hosts(tmp_path: Path) -> None:
    with RegistryServer(IMAGES, tls=True) as server, server.serve("a.example", "b.example") as other:
        assert server.url == f"https://{server.address}"
        assert server.reference("registry.example/app:1") == f"{server.address}/app:1"
        assert other.url == other.url_of("a.example") == f"http://{other.address}"
        assert other.url != other.url_of("b.example")


def test_a_server_has_addresses_inside_of_its_block_only() -> None:
    server = RegistryServer(IMAGES)
    proxy = ProxyServer(Registry(IMAGES).engine, (), authority=Authority())
    asked: list[Callable[[], str]] = [
        lambda: server.address,
        lambda: server.url,
        lambda: server.server.reference("registry.example/app:1"),
        lambda: proxy.proxy_url,
    ]
    for ask in asked:
        with pytest.raises(ConfigError, match="the server doesn't listen yet") as caught:
            ask()
        assert caught.value.hint == "use it in a with block"
    with server:
        pass
    with pytest.raises(ConfigError, match="it was closed, and listens no more"), server:
        pass
    with RegistryServer({}) as empty, pytest.raises(ConfigError, match="it has no logical host"):
        _ = empty.address
    assert running() == []


def test_an_answer_that_cannot_be_made_is_reported_to_client_and_test() -> None:
    large = synthetic_layer("large", 65 << 20, digest=Digest.of(b"not computed"))
    images = {"registry.example/app:1": build_image(layers=[large])}
    with RegistryServer(images, faults=[FaultRule(GzipCoding(), Where(kind="blob"))]) as server:
        answer = httpx.get(f"{server.url}/v2/app/blobs/{large.digest}", verify=PLAIN)
    assert (answer.status_code, "expected at most" in answer.text) == (500, True)
    with pytest.raises(AssertionError, match=r"no answer to GET https://registry\.example/v2/app/blobs/"):
        server.ledger.assert_nothing_unexpected()


def test_an_address_that_no_listener_can_serve_is_reported_to_client_and_test() -> None:
    link = SetHeader("Link", '<https://next..example/v2/>; rel="next"')
    registry, authority = Registry(IMAGES, faults=[FaultRule(link, Where(kind="tags"))]), Authority()
    with (
        LoopbackServer(registry.engine, registry.hosts, authority=authority) as server,
        httpx.Client(verify=authority.client_context()) as client,
    ):
        answer = client.get(f"{server.url}/v2/app/tags/list")
    assert (answer.status_code, "no certificate can name it" in answer.text) == (500, True)
    assert registry.ledger.entries[0].finished is not None
    with pytest.raises(AssertionError, match=r"no answer to GET https://registry\.example/v2/app/tags/list"):
        registry.ledger.assert_nothing_unexpected()


def test_a_tls_server_gives_its_authority_to_clients(tmp_path: Path) -> None:
    path = save_tape(tmp_path / "tapes" / "one", make_tape(IMAGES, BlobFolder(str(tmp_path / "blobs"))))
    with TapeSession(path) as session, replay(path, strict=False) as playing:
        for server in (
            RegistryServer(IMAGES, tls=True),
            Registry(IMAGES).serve(tls=True),
            playing.serve(tls=True),
            session.serve(tls=True),
        ):
            with server:
                address = f"https://{server.address}/v2/"
                assert httpx.get(address, verify=server.authority.client_context()).status_code == 200
                with pytest.raises(httpx.ConnectError):
                    httpx.get(address)
    with RegistryServer(IMAGES) as plain, pytest.raises(ConfigError, match="plain HTTP"):
        _ = plain.authority


def test_the_listeners_of_a_proxy_speak_tls_if_wanted() -> None:
    engine, name = Registry(IMAGES).engine, "registry.example"
    with ProxyServer(engine, (name,), authority=Authority(), tls=True) as server:
        trusting = server.authority.client_context()
        assert server.url_of(name).startswith("https://127.0.0.1:")
        assert httpx.get(f"{server.url_of(name)}/v2/", verify=trusting).status_code == 200
        with httpx.Client(proxy=server.proxy_url, verify=trusting) as client:
            assert client.get(f"https://{name}/v2/").status_code == 200
