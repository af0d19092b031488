"""The front ends agree: what the httpx transport does without a socket is what the loopback server does with one."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import httpx
import pytest
import respx

from imagestore.testing import TokenAuth
from imagestore.testing.faults import (
    Drip,
    Effect,
    ExtraBytes,
    Flip,
    GzipCoding,
    IgnoreRange,
    Redirect,
    Refuse,
    Reset,
    SetHeader,
    ShortRange,
    SlowFirstByte,
    SlowHead,
    Stall,
    Truncate,
    Unframed,
    WrongLength,
    WrongRange,
)
from imagestore.testing.servers.authority import Authority
from imagestore.testing.servers.loopback import LoopbackServer
from imagestore.testing.servers.proxy import ProxyServer
from imagestore.testing.servers.transport import mount
from tests.support.plain_http import PLAIN
from tests.unit.testing.faulty_registry import CONTENT, LAYER, registry_with

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = f"/v2/app/blobs/{LAYER.digest}"
# A client's patience: short only where an effect outlasts it.
PATIENCE = 60.0


def patience_for(effect: Effect | None) -> float:
    return 0.1 if isinstance(effect, Stall) or getattr(effect, "seconds", 0.0) > 1.0 else PATIENCE


def outcome(client: httpx.Client, address: str, headers: dict[str, str], timeout: float) -> tuple[object, ...]:
    """What a client can see of one exchange, read in raw form."""
    try:
        with client.stream("GET", address, headers=headers, timeout=timeout) as answer:
            kept = {name: answer.headers.get(name) for name in ("content-length", "content-range", "content-encoding")}
            body = b"".join(answer.iter_raw())
            return answer.status_code, kept, body
    except httpx.HTTPError as problem:
        return (type(problem),)


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=100-999"}], ids=["whole", "range"])
@pytest.mark.parametrize(
    "effect",
    [
        None,
        Refuse(429, retry_after="1"),
        Reset(0),
        Reset(500),
        Reset(before_head=True),
        Truncate(500),
        Truncate(0),
        Truncate(-1),
        Truncate(500, "close"),
        Truncate(500, "chunked"),
        Unframed("chunked"),
        Unframed("close"),
        WrongLength(1),
        WrongLength(-1),
        ExtraBytes(4),
        Flip(150),
        GzipCoding(),
        SetHeader("Docker-Content-Digest"),
        SetHeader("Warning", "299 - \x07"),
        SetHeader("Warning", "299 - \x00"),
        IgnoreRange(),
        WrongRange(by=7),
        ShortRange(5),
        SlowHead(0.02),
        SlowFirstByte(0.02),
        SlowHead(3.0),
        SlowFirstByte(3.0),
        Stall(500),
        Drip(500_000.0),
    ],
    ids=repr,
)
def test_a_client_sees_the_same_with_and_without_a_socket(effect: Effect | None, headers: dict[str, str]) -> None:
    faults = [effect] if effect is not None else []
    with httpx.Client(transport=registry_with(*faults).transport) as client:
        without = outcome(client, f"https://registry.example{PATH}", headers, patience_for(effect))
    with registry_with(*faults).serve() as server, httpx.Client(verify=PLAIN) as client:
        assert outcome(client, f"{server.url}{PATH}", headers, patience_for(effect)) == without


def test_the_async_transport_agrees() -> None:
    async def run() -> list[object]:
        seen: list[object] = []
        for effect in (None, Reset(10), Truncate(10), SlowHead(3.0), SlowFirstByte(0.01), Stall(5)):
            registry = registry_with(*([effect] if effect else []))
            async with httpx.AsyncClient(transport=registry.async_transport) as client:
                try:
                    seen.append(
                        (await client.get(f"https://registry.example{PATH}", timeout=patience_for(effect))).content
                    )
                except httpx.HTTPError as problem:
                    seen.append(type(problem))
        return seen

    expected = [
        CONTENT,
        httpx.ReadError,
        httpx.RemoteProtocolError,
        httpx.ReadTimeout,
        CONTENT,
        httpx.ReadTimeout,
    ]
    assert asyncio.run(run()) == expected


def test_a_respx_router_serves_sync_and_async_next_to_other_routes() -> None:
    registry = registry_with()
    with respx.mock() as router:
        router.get("https://other.example/").respond(204)
        mount(router, registry.engine, hosts=["registry.example"])

        async def ask() -> bytes:
            async with httpx.AsyncClient() as client:
                return (await client.get(f"https://registry.example{PATH}")).content

        assert httpx.get("https://other.example/").status_code == 204
        assert httpx.get(f"https://registry.example{PATH}").content == CONTENT
        assert asyncio.run(ask()) == CONTENT
    assert registry.ledger.count(kind="blob") == 2


def test_a_respx_router_breaks_bodies_too() -> None:
    with respx.mock() as router:
        mount(router, registry_with(Truncate(5)).engine)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"https://registry.example{PATH}")


# -- the loopback server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_connections_are_kept_and_shared_requests_counted() -> None:
    registry = registry_with()
    with registry.serve() as server, httpx.Client(base_url=server.url, verify=PLAIN) as client:
        addresses = {client.get(PATH).extensions["network_stream"].get_extra_info("client_addr") for _ in range(3)}
        assert client.head(PATH).headers["content-length"] == str(LAYER.size)
    assert len(addresses) == 1
    assert registry.ledger.bytes_sent(LAYER.digest) == 3 * LAYER.size


def test_logical_addresses_in_answers_become_listeners() -> None:
    auth = TokenAuth(realm_host="auth.example")
    registry = registry_with(auth=auth)
    with registry.serve() as server, httpx.Client(verify=PLAIN) as client:
        challenge = client.get(f"{server.url}{PATH}").headers["www-authenticate"]
        realm = challenge.partition('realm="')[2].partition('"')[0]
        assert realm == f"{server.url_of('auth.example')}/token"
        token = client.get(realm, params={"scope": "repository:app:pull"}).json()["token"]
        answer = client.get(f"{server.url}{PATH}", headers={"Authorization": f"Bearer {token}"})
        assert answer.content == CONTENT
    assert [entry.host for entry in registry.ledger.entries] == ["registry.example", "auth.example", "registry.example"]


def test_a_redirect_to_another_host_opens_its_listener() -> None:
    registry = registry_with(Redirect("cross"))
    with registry.serve() as server, httpx.Client(follow_redirects=True, verify=PLAIN) as client:
        answer = client.get(f"{server.url}{PATH}")
        assert answer.content == CONTENT
        assert str(answer.url).startswith(f"http://{server.hosts['storage.example']}/-/0/registry.example/v2/")


def test_tls_listeners_have_a_certificate_for_each_logical_host(authority: Authority) -> None:
    registry = registry_with(Redirect("cross"))
    hosts = registry.hosts
    with (
        LoopbackServer(registry.engine, hosts, authority=authority) as server,
        httpx.Client(verify=authority.client_context(), follow_redirects=True) as client,
    ):
        assert server.url.startswith("https://127.0.0.1:")
        assert client.get(f"{server.url}{PATH}").content == CONTENT
        with pytest.raises(httpx.ConnectError), httpx.Client() as distrustful:
            distrustful.get(f"{server.url}{PATH}")


def test_a_downgrade_is_plain_http_next_to_tls(authority: Authority) -> None:
    registry = registry_with(Redirect("downgrade"))
    with (
        LoopbackServer(registry.engine, registry.hosts, authority=authority) as server,
        httpx.Client(verify=authority.client_context()) as client,
    ):
        place = client.get(f"{server.url}{PATH}").headers["location"]
        assert place.startswith("http://127.0.0.1:")
        assert client.get(place).content == CONTENT


def test_a_proxy_serves_logical_names_over_tls_and_plain(authority: Authority) -> None:
    registry = registry_with()
    with ProxyServer(registry.engine, (), authority=authority) as server:
        assert set(server.environment()) >= {"HTTPS_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
        with httpx.Client(proxy=server.proxy_url, verify=authority.client_context()) as client:
            assert client.get(f"https://registry.example{PATH}").content == CONTENT
            assert client.get(f"https://registry.example{PATH}").status_code == 200
            assert client.get(f"http://registry.example{PATH}").content == CONTENT
            assert client.get("https://other.example/v2/").status_code == 501
        assert httpx.get(f"{server.proxy_url}/v2/", verify=PLAIN).status_code == 400
        with_port = b"GET http://registry.example:80/v2/ HTTP/1.1\r\nConnection: close\r\n\r\n"
        assert talk(server, with_port).startswith(b"HTTP/1.1 200 ")


def talk(server: LoopbackServer, data: bytes) -> bytes:
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


@pytest.fixture(scope="module")
def plain_server() -> Iterator[LoopbackServer]:
    with registry_with().serve() as server:
        yield server


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v2/ HTTP/1.1\r\nHost: x\r\n",
        b"GET /v2/ HTTP/1.1\r\nHost: x",
        b"GET /v2/ HTTP/1.1",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n",
    ],
)
def test_a_bad_request_is_answered_with_400(plain_server: LoopbackServer, data: bytes) -> None:
    assert talk(plain_server, data).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_long_body_is_read_and_answered_with_413(plain_server: LoopbackServer, framing: str) -> None:
    pieces = [bytes(1 << 20)] * 65
    headers = {"Content-Length": str(65 << 20)} if framing == "length" else {}
    answer = httpx.post(f"{plain_server.url}/v2/app/blobs/uploads/", content=iter(pieces), headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (413, "SIZE_INVALID")


def test_request_bodies_are_read_in_both_framings(plain_server: LoopbackServer) -> None:
    for framing in (
        b"Content-Length: 3\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
    ):
        ask = b"POST /v2/app/manifests/1 HTTP/1.1\r\nHost: x\r\n" + framing + b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = talk(plain_server, ask)
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"HTTP/1.1 200 OK" in answer


def test_a_client_that_expects_continue_gets_it(plain_server: LoopbackServer) -> None:
    ask = b"POST /v2/ HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na"
    assert talk(plain_server, ask).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 ")


def test_closing_ends_stalled_connections_at_once() -> None:
    registry = registry_with(Stall(10, seconds=60.0))
    before = set(threading.enumerate())
    with registry.serve() as server:
        threading.Thread(target=_ask_quietly, args=(f"{server.url}{PATH}",), daemon=True).start()
        while registry.ledger.count(kind="blob") == 0:
            threading.Event().wait(0.005)
    assert not [one for one in set(threading.enumerate()) - before if one.name == "recorded-registry"]


def _ask_quietly(address: str) -> None:
    try:
        httpx.get(address, timeout=60, verify=PLAIN)
    except httpx.HTTPError:
        return


def test_a_fixed_port_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    registry = registry_with()
    with LoopbackServer(registry.engine, registry.hosts, ports={"registry.example": port}) as server:
        assert server.address == f"127.0.0.1:{port}"
        assert server.reference("registry.example/app:1") == f"127.0.0.1:{port}/app:1"
