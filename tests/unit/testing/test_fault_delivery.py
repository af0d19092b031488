"""Faults of delivery: redirects, pauses, broken bodies, and chaos made of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore import Digest
from imagestore.errors import DocumentError
from imagestore.testing import Registry, RegistryServer, TokenAuth, build_image
from imagestore.testing.faults import (
    Drip,
    Effect,
    FaultRule,
    Flip,
    Redirect,
    Reset,
    SlowFirstByte,
    SlowHead,
    Stall,
    Truncate,
    Unframed,
    Where,
    chaos,
)
from imagestore.testing.servers.transport import ReplayTransport
from imagestore.testing.tapes.tape_text import parse_tape
from tests.support.plain_http import PLAIN
from tests.unit.testing.faulty_registry import BASE, BLOB, CONTENT, IMAGE, MANIFEST, client_with, registry_with

if TYPE_CHECKING:
    from collections.abc import Sequence

# -- redirects -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "hosts"),
    [
        (Redirect("same"), ["registry.example", "registry.example"]),
        (Redirect("same", is_relative=True), ["registry.example", "registry.example"]),
        (Redirect("cross"), ["registry.example", "storage.example"]),
        (Redirect("cross", "cdn.example", hops=3), ["registry.example", "cdn.example", "cdn.example", "cdn.example"]),
        (Redirect("downgrade"), ["registry.example", "registry.example"]),
    ],
)
def test_redirects_lead_to_the_content(effect: Effect, hosts: list[str]) -> None:
    registry = registry_with(FaultRule(effect, times=0))
    client = httpx.Client(transport=registry.transport, follow_redirects=True)
    assert client.get(BLOB, headers={"Range": "bytes=3-5"}).content == CONTENT[3:6]
    assert [entry.host for entry in registry.ledger.entries] == hosts


def test_a_downgrade_leads_to_plain_http_and_a_loop_never_ends() -> None:
    assert client_with(Redirect("downgrade", status=302)).get(BLOB).headers["location"].startswith("http://registry.")
    with pytest.raises(httpx.TooManyRedirects):
        client_with(Redirect("loop")).get(BLOB, follow_redirects=True)


def test_redirected_content_needs_no_credential_and_the_ledger_shows_one_that_came() -> None:
    registry = registry_with(FaultRule(Redirect(), Where(kind="blob"), times=0), auth=TokenAuth())
    client = httpx.Client(transport=registry.transport)
    token = client.get("https://registry.example/token?scope=repository:app:pull").json()["token"]
    place = client.get(BLOB, headers={"Authorization": f"Bearer {token}"}).headers["location"]
    assert client.get(place).content == CONTENT
    registry.ledger.assert_no_credential_at("storage.example")
    client.get(place, headers={"Authorization": f"Bearer {token}"})
    with pytest.raises(AssertionError, match=r"storage\.example"):
        registry.ledger.assert_credentials_only_at("registry.example")


# -- the wire, as httpx sees it (test_servers compares the loopback server with this) -------------------------------


def slept(*faults: Effect) -> list[float]:
    pauses: list[float] = []
    transport = ReplayTransport(registry_with(*faults).engine, sleep=pauses.append)
    httpx.Client(transport=transport).get(BLOB)
    return [one for one in pauses if one]


def test_pauses_come_where_they_should() -> None:
    assert slept(SlowHead(0.5)) == [0.5]
    assert slept(SlowFirstByte(0.25)) == [0.25]
    assert sum(slept(Drip(len(CONTENT) * 2.0))) == pytest.approx(0.5)
    assert slept() == []


@pytest.mark.parametrize("effect", [SlowHead(60.0), SlowFirstByte(60.0), Stall(10)])
def test_a_client_that_waits_less_gets_its_timeout(effect: Effect) -> None:
    client = client_with(effect)
    with pytest.raises(httpx.ReadTimeout):
        client.get(BLOB, timeout=0.01)


@pytest.mark.parametrize(
    ("effect", "error"),
    [
        (Reset(10), httpx.ReadError),
        (Reset(before_head=True), httpx.ReadError),
        (Truncate(10), httpx.RemoteProtocolError),
        (Truncate(10, "chunked"), httpx.RemoteProtocolError),
        (Truncate(-1), httpx.RemoteProtocolError),
    ],
)
def test_a_broken_body_is_the_error_that_httpx_has_for_it(effect: Effect, error: type[Exception]) -> None:
    with pytest.raises(error):
        client_with(effect).get(BLOB)


def test_truncation_without_a_length_is_silent() -> None:
    answer = client_with(Truncate(10, "close")).get(BLOB)
    assert (answer.content, "content-length" in answer.headers) == (CONTENT[:10], False)


def test_an_unframed_body_is_whole() -> None:
    answer = client_with(Unframed("chunked")).get(BLOB)
    assert (answer.content, answer.headers["transfer-encoding"]) == (CONTENT, "chunked")


# -- chaos ---------------------------------------------------------------------------------------------------------


def mishaps(seed: int, addresses: Sequence[str]) -> dict[str, list[str]]:
    registry = Registry({"registry.example/app:1": IMAGE}, faults=[chaos(seed, rate=0.6)])
    client = httpx.Client(transport=ReplayTransport(registry.engine, sleep=lambda _: None))
    for address in addresses:
        for _ in range(6):
            try:
                client.get(address)
            except httpx.HTTPError:
                continue
    out: dict[str, list[str]] = {}
    for entry in registry.ledger.entries:
        out.setdefault(entry.path, []).append(",".join(entry.faults))
    return out


def test_chaos_depends_on_the_seed_and_not_on_the_order_of_requests() -> None:
    addresses = [MANIFEST, *(f"{BASE}/blobs/{one.digest}" for one in IMAGE.layers)]
    assert mishaps(1, addresses) == mishaps(1, addresses[::-1])
    assert mishaps(1, addresses) != mishaps(2, addresses)


def test_chaos_lets_a_patient_client_through() -> None:
    for seed in range(5):
        for names in mishaps(seed, [MANIFEST, BLOB]).values():
            assert sum(bool(name) for name in names) <= 2


@pytest.mark.parametrize(
    "faults",
    [
        [FaultRule(Flip(at=5)), FaultRule(Redirect())],
        [FaultRule(Redirect()), FaultRule(Flip(at=5), Where(kind="blob", repository="app"))],
    ],
)
def test_a_fault_together_with_a_redirect_is_not_lost(faults: list[FaultRule]) -> None:
    digest = IMAGE.layers[0].digest
    registry = Registry({"registry.example/app:1": IMAGE}, faults=faults)
    with httpx.Client(transport=registry.transport, follow_redirects=True) as client:
        body = client.get(f"https://registry.example/v2/app/blobs/{digest}").content
    assert Digest.of(body) != digest
    assert [entry.faults for entry in registry.ledger.entries] == [("redirect",), ("flip",)]


def test_a_stall_ends_with_a_close_for_a_client_without_timeout() -> None:
    waits: list[float] = []
    registry = Registry({"registry.example/app:1": IMAGE}, faults=[FaultRule(Stall(at=10, seconds=7.0))])
    transport = ReplayTransport(registry.engine, sleep=waits.append)
    with httpx.Client(transport=transport, timeout=None) as client, pytest.raises(httpx.RemoteProtocolError):
        client.get(f"https://registry.example/v2/app/blobs/{IMAGE.layers[0].digest}")
    assert waits[-1] == 7.0


@pytest.mark.parametrize(
    "line",
    [
        'what = "redirect"\nform = "dowgrade"',
        'what = "redirect"\nstatus = 200',
        'what = "flip"\nkind = "blobs"',
        'what = "refuse"\nstatus = -5',
        'what = "deep-json"\ndepth = 100000000000',
        'what = "truncate"\nframing = "chunkd"',
    ],
)
def test_a_fault_in_a_tape_with_an_impossible_value_is_refused(line: str) -> None:
    with pytest.raises(DocumentError, match="expected"):
        parse_tape(f'format = "imagestore-tape"\nversion = 1\n[[fault]]\n{line}\n'.encode())


@pytest.mark.parametrize("effect", [Reset(at=1000), Truncate(at=1000), Stall(at=1000, seconds=0.01)])
def test_a_fault_beyond_the_end_of_a_body_waits_for_a_longer_one(effect: Effect) -> None:
    rule = FaultRule(effect, Where(kind="blob"))
    image = build_image()
    registry = Registry({"registry.example/a:1": image}, faults=[rule])
    sizes = {body.size: digest for digest, body in image.blobs.items()}
    assert min(sizes) < 1000 < max(sizes)
    with httpx.Client(transport=registry.transport) as client:
        for _, digest in sorted(sizes.items()):
            with contextlib.suppress(httpx.HTTPError):
                client.get(f"https://registry.example/v2/a/blobs/{digest}")
    happened = [bool(entry.faults) for entry in registry.ledger.entries]
    assert happened == [False, True, False]


@pytest.mark.parametrize(
    "effects",
    [
        [Truncate(at=1 << 20, framing="chunked")],
        [Unframed("chunked"), Reset(at=1 << 20)],
        [Unframed("close"), Reset(at=1 << 20)],
        [Unframed("chunked"), Stall(at=1 << 20, seconds=0.01)],
    ],
)
def test_a_body_without_a_length_can_lack_its_end_alone(effects: list[Effect]) -> None:
    image = build_image()
    digest = image.layers[0].digest
    rules = [FaultRule(effect, Where(kind="blob")) for effect in effects]
    with RegistryServer({"registry.example/a:1": image}, faults=rules) as server, httpx.Client(verify=PLAIN) as client:
        with pytest.raises(httpx.HTTPError):
            client.get(f"http://{server.address}/v2/a/blobs/{digest}")
        assert len(server.ledger.select(digest=digest)[0].faults) == len(effects)
