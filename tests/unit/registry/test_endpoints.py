"""Which hosts are asked, for what, and what happens when they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from imagestore import Descriptor, Digest, Reference
from imagestore.config import ConnectionSettings
from imagestore.config.hosts import HostConfig, RegistryHosts
from imagestore.errors import (
    DigestMismatchError,
    ProtocolError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.events import SourceSwitched
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.registry.endpoints import default_endpoint, endpoints_from
from tests.support.streams import drain

if TYPE_CHECKING:
    from imagestore.registry.endpoints import Endpoint

MakeBench = Callable[..., Any]
INDEX = b'{"schemaVersion": 2, "manifests": []}'
WANTED = Descriptor(OCI_INDEX, Digest.of(INDEX), len(INDEX))
TAGGED = Reference.parse("docker.io/library/python:3")
PINNED = TAGGED.with_digest(WANTED.digest)


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("docker.io", "https://registry-1.docker.io/v2"),
        ("registry.example", "https://registry.example/v2"),
        ("registry.example:80", "https://registry.example:80/v2"),
        ("localhost", "https://localhost/v2"),
        ("localhost:443", "https://localhost:443/v2"),
        ("localhost:5000", "http://localhost:5000/v2"),
        ("127.0.0.1:5000", "http://127.0.0.1:5000/v2"),
        ("127.9.8.7:80", "http://127.9.8.7:80/v2"),
        ("[::1]:5000", "http://[::1]:5000/v2"),
        ("localhost.example:5000", "https://localhost.example:5000/v2"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000/v2"),
    ],
)
def test_the_default_endpoint(host: str, base: str) -> None:
    assert default_endpoint(host).base == base


def test_mirrors_come_in_order_and_the_registry_last() -> None:
    configured = RegistryHosts((HostConfig("https://b.example/v2"), HostConfig("https://a.example/v2")))
    found = endpoints_from("docker.io", configured)
    assert [endpoint.base for endpoint in found] == [
        "https://b.example/v2",
        "https://a.example/v2",
        "https://registry-1.docker.io/v2",
    ]
    assert [endpoint.is_upstream for endpoint in found] == [False, False, True]


def test_a_mirror_at_the_registrys_own_address_is_not_asked_twice() -> None:
    configured = RegistryHosts(
        (HostConfig("https://m.example/v2"),), HostConfig("https://m.example/v2", headers=(("A", "b"),))
    )
    (only,) = endpoints_from("docker.io", configured)
    assert only.is_upstream
    assert only.headers == (("A", "b"),)


OWN = HostConfig(
    "https://r.example/v2", headers=(("A", "b"),), connection=ConnectionSettings(ca_files=("/ca.pem",)), location="here"
)


@pytest.mark.parametrize("server", [HostConfig(), HostConfig("https://r.example/v2")], ids=["unnamed", "named"])
def test_a_host_table_for_the_registrys_own_address_holds_for_the_registry(server: HostConfig) -> None:
    (only,) = endpoints_from("r.example", RegistryHosts((OWN,), server))
    assert only.is_upstream
    assert (only.headers, only.connection, only.source) == (OWN.headers, OWN.connection, "here")


def test_a_host_table_for_the_registry_before_a_mirror_keeps_its_place() -> None:
    found = endpoints_from("r.example", RegistryHosts((OWN, HostConfig("https://m.example/v2"))))
    assert [endpoint.origin.host for endpoint in found] == ["r.example", "m.example", "r.example"]
    assert [endpoint.headers for endpoint in found] == [OWN.headers, (), OWN.headers]


def test_two_ways_to_reach_the_registry_are_both_tried() -> None:
    server = HostConfig("https://r.example/v2", connection=ConnectionSettings(ca_files=("/other.pem",)))
    found = endpoints_from("r.example", RegistryHosts((OWN,), server))
    assert [endpoint.connection for endpoint in found] == [OWN.connection, server.connection]


@pytest.mark.parametrize(
    ("host", "base", "url"),
    [
        ("docker.io", "https://registry-1.docker.io/v2", "https://registry-1.docker.io/v2/a/b/tags/list"),
        ("docker.io", "https://m.example/v2", "https://m.example/v2/a/b/tags/list?ns=docker.io"),
        ("r.example:5000", "https://r.example:5000/v2", "https://r.example:5000/v2/a/b/tags/list"),
        ("r.example:5000", "http://m.example/x", "http://m.example/x/a/b/tags/list?ns=r.example%3A5000"),
        ("r.example:443", "https://r.example:443/v2", "https://r.example:443/v2/a/b/tags/list"),
        ("r.example:443", "", "https://r.example:443/v2/a/b/tags/list"),
        ("r.example:443", "https://r.example:444/v2", "https://r.example:444/v2/a/b/tags/list?ns=r.example%3A443"),
    ],
)
def test_a_mirror_gets_the_registry_as_ns_parameter(host: str, base: str, url: str) -> None:
    (endpoint,) = endpoints_from(host, RegistryHosts(server=HostConfig(base)))
    assert endpoint.url("a/b", "tags/list") == url


def test_ns_joins_a_query() -> None:
    (endpoint,) = endpoints_from("docker.io", RegistryHosts(server=HostConfig("https://m.example/v2")))
    assert endpoint.url("a", "tags/list", "n=5") == "https://m.example/v2/a/tags/list?n=5&ns=docker.io"


class Mirrors:
    """Two mirrors and the registry, each answering by its own function, and a ledger."""

    def __init__(self, **by_host: Any) -> None:
        self.by_host = by_host
        self.asked: list[str] = []
        self.capabilities: dict[str, frozenset[str]] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name = request.url.host.partition(".")[0].partition("-")[0]
        self.asked.append(f"{request.method} {name}")
        answer = self.by_host[name]
        found = answer(request) if callable(answer) else answer
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, httpx.Response)
        return found

    def read(self, host: str) -> RegistryHosts:
        mirrors = tuple(
            replace(found, capabilities=self.capabilities.get(name, found.capabilities))
            for name in ("first", "second")
            for found in (HostConfig(f"https://{name}.example/v2"),)
        )
        return RegistryHosts(mirrors)

    def bench(self, make_bench: MakeBench, **more: Any) -> Any:
        return make_bench(self, endpoints=lambda host: endpoints_from(host, self.read(host)), **more)


def good(request: httpx.Request) -> httpx.Response:
    headers = {
        "Content-Type": OCI_INDEX,
        "Content-Length": str(len(INDEX)),
        "Docker-Content-Digest": str(WANTED.digest),
    }
    return httpx.Response(200, headers=headers, content=b"" if request.method == "HEAD" else INDEX)


def absent(request: httpx.Request) -> httpx.Response:
    return httpx.Response(404)


def wrong(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Type": OCI_INDEX}, content=INDEX[:-1] + b"]")


def test_the_first_host_that_serves_is_the_only_one_asked(make_bench: MakeBench) -> None:
    mirrors = Mirrors(first=good)
    bench = mirrors.bench(make_bench)
    assert bench.client.resolve(TAGGED, cancel=bench.cancel) == WANTED
    assert mirrors.asked == ["GET first"]


@pytest.mark.parametrize(
    "failing",
    [
        absent,
        httpx.ConnectError("refused"),
        httpx.Response(403),
        httpx.Response(401),
        httpx.Response(429, headers={"Retry-After": "1"}),
        httpx.Response(500),
        httpx.Response(200, headers={"Content-Type": "text/html"}, content=b"<html>"),
        httpx.Response(200, headers={"Content-Type": OCI_MANIFEST}, content=INDEX),
    ],
)
def test_a_failing_mirror_is_passed_over_and_said_so(make_bench: MakeBench, failing: Any, authenticator: Any) -> None:
    authenticator.answers = ["Bearer a"] * 9
    mirrors = Mirrors(first=failing, second=good)
    bench = mirrors.bench(make_bench, authenticators=lambda endpoint: authenticator)
    assert bench.client.resolve(TAGGED, cancel=bench.cancel) == WANTED
    (switched,) = [event for event in bench.events if isinstance(event, SourceSwitched)]
    assert (switched.failed_host, switched.next_host) == ("first.example", "second.example")


@pytest.mark.parametrize("bad", [wrong, httpx.Response(200, headers={"Content-Length": "3"}, content=b"xyz")])
def test_a_mirror_with_wrong_content_is_passed_over(make_bench: MakeBench, bad: Any) -> None:
    mirrors = Mirrors(first=bad, second=good)
    bench = mirrors.bench(make_bench)
    assert bench.client.document(TAGGED, WANTED, cancel=bench.cancel) == INDEX


def test_wrong_content_everywhere_is_an_integrity_error_that_names_all(make_bench: MakeBench) -> None:
    mirrors = Mirrors(first=wrong, second=absent, registry=wrong)
    bench = mirrors.bench(make_bench)
    with pytest.raises(DigestMismatchError) as raised:
        bench.client.document(TAGGED, WANTED, cancel=bench.cancel)
    assert "second.example answered 404" in raised.value.hint
    cause = raised.value.__cause__
    assert isinstance(cause, ExceptionGroup)
    assert [type(error) for error in cause.exceptions] == [DigestMismatchError, ReferenceNotFoundError]


def test_the_registrys_own_verdict_counts(make_bench: MakeBench) -> None:
    mirrors = Mirrors(first=absent, second=absent, registry=httpx.ConnectError("refused"))
    bench = mirrors.bench(make_bench)
    with pytest.raises(RegistryUnavailableError):
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    mirrors = Mirrors(first=httpx.ConnectError("refused"), second=httpx.Response(500), registry=absent)
    bench = mirrors.bench(make_bench)
    with pytest.raises(ReferenceNotFoundError):
        bench.client.resolve(TAGGED, cancel=bench.cancel)


def test_mirrors_get_fewer_tries_than_the_registry(make_bench: MakeBench) -> None:
    down = httpx.ConnectError("refused")
    mirrors = Mirrors(first=down, second=down, registry=down)
    bench = mirrors.bench(make_bench)
    with pytest.raises(RegistryUnavailableError):
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert [mirrors.asked.count(f"GET {name}") for name in ("first", "second", "registry")] == [2, 2, 5]


def test_waits_for_a_mirror_are_short(make_bench: MakeBench) -> None:
    mirrors = Mirrors(first=httpx.Response(429, headers={"Retry-After": "100"}), second=good)
    bench = mirrors.bench(make_bench)
    assert bench.client.resolve(TAGGED, cancel=bench.cancel) == WANTED
    assert bench.time.slept == []


def test_a_host_without_resolve_is_not_asked_what_a_tag_means(make_bench: MakeBench) -> None:
    mirrors = Mirrors(first=good, second=good)
    mirrors.capabilities["first"] = frozenset({"pull"})
    bench = mirrors.bench(make_bench)
    bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert mirrors.asked == ["GET second"]
    bench.client.resolve(PINNED, cancel=bench.cancel)
    bench.client.document(TAGGED, WANTED, cancel=bench.cancel)
    assert mirrors.asked[1:] == ["GET first", "GET first"]


def test_a_host_without_pull_is_never_asked(make_bench: MakeBench) -> None:
    mirrors = Mirrors(second=good)
    mirrors.capabilities["first"] = frozenset({"push", "resolve"})
    bench = mirrors.bench(make_bench)
    bench.client.resolve(TAGGED, cancel=bench.cancel)
    bench.client.document(TAGGED, WANTED, cancel=bench.cancel)
    assert mirrors.asked == ["GET second"] * 2


def test_no_able_host_is_an_error_with_a_hint(make_bench: MakeBench) -> None:
    nobody = RegistryHosts(server=HostConfig("https://m.example/v2", capabilities=frozenset({"push"})))
    bench = make_bench(absent, endpoints=lambda host: endpoints_from(host, nobody))
    with pytest.raises(ProtocolError, match="no configured host") as raised:
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert "capability" in raised.value.hint


def test_a_dead_mirror_is_left_out_until_it_has_rested(make_bench: MakeBench) -> None:
    mirrors = Mirrors(first=httpx.ConnectError("refused"), second=good)
    bench = mirrors.bench(make_bench)
    for _ in range(3):
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert mirrors.asked.count("GET first") == 2
    bench.time.seconds += 60
    mirrors.by_host["first"] = good
    mirrors.asked.clear()
    for _ in range(2):
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert mirrors.asked == ["GET first", "GET first"]


def test_a_mirror_that_lacks_one_image_is_not_dead(make_bench: MakeBench) -> None:
    mirrors = Mirrors(first=absent, second=good)
    bench = mirrors.bench(make_bench)
    for _ in range(2):
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert mirrors.asked.count("GET first") == 2


def test_a_blob_goes_on_at_the_next_host(make_bench: MakeBench) -> None:
    content = bytes(range(200))
    layer = Descriptor("application/octet-stream", Digest.of(content), len(content))
    ranges: list[tuple[str, str | None]] = []

    class Cut(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield content[:50]
            raise httpx.ReadError("reset")

    def first(request: httpx.Request) -> httpx.Response:
        ranges.append(("first", request.headers.get("Range")))
        if len(ranges) > 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, stream=Cut())

    def second(request: httpx.Request) -> httpx.Response:
        ranges.append(("second", request.headers.get("Range")))
        return httpx.Response(206, headers={"Content-Range": "bytes 50-199/200"}, content=content[50:])

    bench = Mirrors(first=first, second=second).bench(make_bench)
    with bench.client.blob(TAGGED, layer, cancel=bench.cancel) as stream:
        assert drain(stream) == content
        assert stream.hosts == ("first.example", "second.example")
    assert ranges[-1] == ("second", "bytes=50-")


def test_a_host_that_always_breaks_at_the_same_place_is_left_for_another(make_bench: MakeBench) -> None:
    content = bytes(range(200))
    layer = Descriptor("application/octet-stream", Digest.of(content), len(content))

    class Cut(httpx.SyncByteStream):
        def __init__(self, *pieces: bytes) -> None:
            self.pieces = pieces

        def __iter__(self) -> Any:
            yield from self.pieces
            raise httpx.ReadError("reset")

    def first(request: httpx.Request) -> httpx.Response:
        if "Range" not in request.headers:
            return httpx.Response(200, stream=Cut(content[:50]))
        return httpx.Response(206, headers={"Content-Range": "bytes 50-199/200"}, stream=Cut())

    def second(request: httpx.Request) -> httpx.Response:
        return httpx.Response(206, headers={"Content-Range": "bytes 50-199/200"}, content=content[50:])

    mirrors = Mirrors(first=first, second=second)
    bench = mirrors.bench(make_bench)
    with bench.client.blob(TAGGED, layer, cancel=bench.cancel) as stream:
        assert drain(stream) == content
    assert mirrors.asked == ["GET first", "GET first", "GET second"]


def test_hosts_with_wrong_content_can_be_avoided(make_bench: MakeBench) -> None:
    layer = Descriptor("application/octet-stream", Digest.of(b"x"), 1)
    mirrors = Mirrors(first=httpx.Response(200, content=b"y"), second=httpx.Response(200, content=b"x"))
    bench = mirrors.bench(make_bench)
    with bench.client.blob(TAGGED, layer, avoid={"first.example"}, cancel=bench.cancel) as stream:
        assert drain(stream) == b"x"
    assert mirrors.asked == ["GET second"]


def test_another_size_at_a_mirror_is_passed_over(make_bench: MakeBench) -> None:
    layer = Descriptor("application/octet-stream", Digest.of(b"x"), 1)
    mirrors = Mirrors(
        first=httpx.Response(200, content=b"yy"),
        second=httpx.Response(200, content=b"zzz"),
        registry=httpx.Response(200, content=b"www"),
    )
    bench = mirrors.bench(make_bench)
    with pytest.raises(SizeMismatchError):
        bench.client.blob(TAGGED, layer, cancel=bench.cancel)
    assert mirrors.asked == ["GET first", "GET second", "GET registry"]


def test_credentials_of_the_registry_are_not_the_mirrors(make_bench: MakeBench) -> None:
    seen: dict[str, str | None] = {}

    class PerEndpoint:
        def __init__(self, endpoint: Endpoint) -> None:
            self.origin = endpoint.origin

        def authorization(self, origin: Any, repository: str) -> str:
            assert origin == self.origin
            return f"Bearer for-{origin.host}"

        def forget(self, origin: Any, repository: str, refused: str) -> None:
            assert refused == f"Bearer for-{origin.host}"

        def provenance(self, origin: Any, repository: str) -> str:
            return ""

    def note(request: httpx.Request) -> httpx.Response:
        seen[request.url.host] = request.headers.get("Authorization")
        return httpx.Response(404)

    bench = Mirrors(first=note, second=note, registry=note).bench(make_bench, authenticators=PerEndpoint)
    with pytest.raises(ReferenceNotFoundError):
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert seen == {host: f"Bearer for-{host}" for host in ("first.example", "second.example", "registry-1.docker.io")}
