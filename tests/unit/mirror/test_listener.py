"""TLS, private upstreams, and clients that are too many, silent, or say nothing sensible."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final

import httpx
import pytest
import trustme

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.mirror.listener import parse_address
from imagestore.testing import RegistryServer, build_image, layer
from tests.support.mirror import RunningMirror, mirror_table, running_mirror
from tests.support.patience import until

if TYPE_CHECKING:
    from pathlib import Path

IMAGE: Final = build_image("linux/amd64", layers=[layer("tls")])
NAME: Final = "registry.example/app:1"


def certificates(folder: Path) -> dict[str, str]:
    """The listener's settings, with files for them."""
    authority = trustme.CA()
    issued, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("node.example")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, certificate in (("server", issued), ("client", client)):
        certificate.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    return {"certificate": f'"{folder}/server.pem"', "client_ca": f'"{folder}/ca.pem"'}


def test_private_upstreams_are_for_clients_with_certificates(tmp_path: Path) -> None:
    settings = certificates(tmp_path)
    with (
        RegistryServer({NAME: IMAGE}) as upstream,
        RegistryServer({NAME: IMAGE}) as public,
        running_mirror(
            tmp_path / "root", mirror_table({upstream.address: "private = true", public.address: ""}, **settings)
        ) as mirror,
    ):
        url = mirror.url.replace("http:", "https:") + "/v2/app/manifests/1"
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        assert httpx.get(url, params={"ns": public.address}, verify=trusting).status_code == 200
        refused = httpx.get(url, params={"ns": upstream.address}, verify=trusting)
        assert refused.status_code == 404
        assert "certificate" in refused.json()["errors"][0]["message"]
        assert not upstream.ledger.entries
        trusting.load_cert_chain(str(tmp_path / "client.pem"))
        assert httpx.get(url, params={"ns": upstream.address}, verify=trusting).status_code == 200


def test_a_certificate_that_can_not_be_used(tmp_path: Path) -> None:
    table = mirror_table({"r.example": ""}, certificate=f'"{tmp_path}/none.pem"')
    with pytest.raises(ConfigError, match=r"none\.pem"), running_mirror(tmp_path / "root", table):
        pass


def test_one_connection_too_many_is_closed(tmp_path: Path) -> None:
    with running_mirror(tmp_path, mirror_table({"r.example": ""}, max_connections="2")) as mirror:
        address = ("127.0.0.1", httpx.URL(mirror.url).port)
        with contextlib.ExitStack() as stack:
            first = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(2)]
            for each in first:
                each.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert each.recv(9) == b"HTTP/1.1 "
            third = stack.enter_context(socket.create_connection(address, timeout=60))
            assert third.recv(1) == b""
        until(lambda: is_served(mirror), "the mirror has seen that the first are gone")


def is_served(mirror: RunningMirror) -> bool:
    try:
        return mirror.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.mirror.listener._FIRST_REQUEST_SECONDS", 0.2)
    monkeypatch.setattr("imagestore.mirror.listener._LOOK_SECONDS", 0.1)
    with running_mirror(tmp_path, mirror_table({"r.example": ""})) as mirror:
        address = ("127.0.0.1", httpx.URL(mirror.url).port)
        for said in (b"", b"GET /v2/ HTT"):
            with socket.create_connection(address, timeout=60) as silent:
                silent.sendall(said)
                assert silent.recv(1000) == b"" or said


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01\x00\xa5", b"GET / HTTP/9\r\n\r\n", b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_request_harms_nobody(tmp_path: Path, said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with running_mirror(tmp_path, mirror_table({"r.example": ""})) as mirror:
        with socket.create_connection(("127.0.0.1", httpx.URL(mirror.url).port), timeout=60) as client:
            client.sendall(said)
            client.recv(1000)
        assert mirror.get("/healthz").status_code == 200
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize("text", ["5000", "host.example:5000", "127.0.0.1:", "127.0.0.1:99999", "::1:x", ""])
def test_addresses_that_can_not_be_read(text: str) -> None:
    with pytest.raises(InvalidInputError, match="expected ADDRESS:PORT"):
        parse_address(text)


def test_a_client_that_takes_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("imagestore.mirror.listener._STUCK_SECONDS", 0.3)
    monkeypatch.setattr("imagestore.mirror.listener._LOOK_SECONDS", 0.1)
    tags = {f"registry.example/app:{'x' * 100}{number}": IMAGE for number in range(5000)}
    with RegistryServer(tags) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(30)
            client.connect(("127.0.0.1", httpx.URL(mirror.url).port))
            request = f"GET /v2/app/tags/list?ns={upstream.address} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            client.sendall(request * 20)
            until(lambda: "disconnected a client that takes no bytes" in caplog.messages, "it is cut off")
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while piece := client.recv(1 << 16):
                    received += len(piece)
            assert received < 20 * 5000 * 100
        assert mirror.get("/healthz").status_code == 200
