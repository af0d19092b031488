"""Limits and policies of a client: rate, warnings, inline content, layers that live elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from httpx import Headers

from imagestore import Descriptor, Digest, Reference, TransferPolicy
from imagestore.errors import DigestMismatchError, ProtocolError, ReferenceNotFoundError, RegistryUnavailableError
from imagestore.events import Noticed
from imagestore.oci.media_types import DOCKER_FOREIGN_LAYER, OCI_LAYER_GZIP
from imagestore.registry.errors_body import warning_texts
from tests.support.streams import drain

MakeBench = Callable[..., Any]
REFERENCE = Reference.parse("registry.example/windows/base:1")
CONTENT = b"x" * 1000
LAYER = Descriptor(OCI_LAYER_GZIP, Digest.of(CONTENT), len(CONTENT))


def read(bench: Any, descriptor: Descriptor, offset: int = 0) -> bytes:
    with bench.client.blob(REFERENCE, descriptor, offset=offset, cancel=bench.cancel) as stream:
        return drain(stream)


def test_bytes_per_second_are_kept_for_the_operation_as_a_whole(make_bench: MakeBench) -> None:
    bench = make_bench(
        lambda request: httpx.Response(200, content=CONTENT), policy=TransferPolicy(bytes_per_second=100)
    )
    assert read(bench, LAYER) + read(bench, LAYER) == CONTENT * 2
    assert sum(bench.time.slept) == pytest.approx(20)


def test_a_part_of_the_work_has_no_budget_of_its_own(make_bench: MakeBench) -> None:
    bench = make_bench(lambda request: httpx.Response(503), policy=TransferPolicy(attempts=100, total_retries=3))
    with bench.cancel.child() as part, pytest.raises(RegistryUnavailableError):
        bench.client.blob(REFERENCE, LAYER, cancel=part)
    with pytest.raises(RegistryUnavailableError):
        read(bench, LAYER)
    assert len(bench.time.slept) == 3


def test_without_a_limit_there_is_no_sleep(make_bench: MakeBench) -> None:
    bench = make_bench(lambda request: httpx.Response(200, content=CONTENT))
    read(bench, LAYER)
    assert bench.time.slept == []


def test_a_registrys_warning_is_passed_on_once(make_bench: MakeBench) -> None:
    warned = {"Warning": '299 - "this registry moves\x1b[2J soon"'}
    bench = make_bench(lambda request: httpx.Response(200, headers=warned, content=CONTENT))
    read(bench, LAYER)
    read(bench, LAYER)
    assert bench.events == [Noticed("registry.example says: this registry moves\\x1b[2J soon")]


def test_a_registry_that_warns_of_something_else_each_time_is_not_listened_to_for_ever(make_bench: MakeBench) -> None:
    numbers = itertools.count()
    bench = make_bench(
        lambda request: httpx.Response(200, headers={"Warning": f'299 - "{next(numbers)}"'}, content=CONTENT)
    )
    for _ in range(120):
        read(bench, LAYER)
    assert len(bench.events) == 100


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([], ()),
        (['299 - "a"'], ("a",)),
        (['299 - "a"', '299 - "b", 299 - "c, d"'], ("a", "b", "c, d")),
        (['110 - "stale"'], ()),
        (['299 proxy.example "a"'], ()),
        (["299 - a"], ()),
        (['299 - "a'], ()),
        (['1299 - "a"'], ()),
        ([f'299 - "{"x" * 5000}"'], ()),
        ([f'299 - "{"x" * 3000}"', f'299 - "{"y" * 3000}"'], ("x" * 2045 + "...",)),
    ],
)
def test_only_warnings_for_people_count(values: list[str], texts: tuple[str, ...]) -> None:
    assert warning_texts(Headers(tuple(("Warning", value) for value in values))) == texts


def test_inline_content_of_a_blob_needs_no_request(make_bench: MakeBench) -> None:
    bench = make_bench(lambda request: httpx.Response(500))
    inline = Descriptor(OCI_LAYER_GZIP, LAYER.digest, LAYER.size, data=CONTENT)
    assert read(bench, inline) == CONTENT
    assert read(bench, inline, offset=990) == CONTENT[990:]
    with pytest.raises(DigestMismatchError):
        read(bench, Descriptor(OCI_LAYER_GZIP, LAYER.digest, LAYER.size, data=b"y" * 1000))


class TestForeignLayers:
    """Row 1 of the pitfalls: CVE-2020-15157, GHSA-qvqc-4c52-x6qp."""

    URL = "https://vendor.example/v2/base/blobs/x?y=z"
    ALLOWED = TransferPolicy(foreign_hosts=frozenset({"vendor.example"}))

    @staticmethod
    def layer(*urls: str) -> Descriptor:
        return Descriptor(DOCKER_FOREIGN_LAYER, LAYER.digest, LAYER.size, urls=urls)

    @staticmethod
    def bench(make_bench: MakeBench, authenticator: Any, policy: TransferPolicy, answer: httpx.Response) -> Any:
        ledger: list[httpx.Request] = []

        def handle(request: httpx.Request) -> httpx.Response:
            if request.url.host == "registry.example":
                return httpx.Response(404)
            ledger.append(request)
            return answer

        authenticator.known = "Bearer registry-token"
        bench = make_bench(handle, policy=policy, authenticators=lambda endpoint: authenticator)
        bench.ledger = ledger
        return bench

    def test_addresses_are_not_followed_by_default(self, make_bench: MakeBench, authenticator: Any) -> None:
        bench = self.bench(make_bench, authenticator, TransferPolicy(), httpx.Response(200, content=CONTENT))
        with pytest.raises(ReferenceNotFoundError):
            read(bench, self.layer(self.URL))
        assert bench.ledger == []

    def test_an_allowed_host_is_asked_after_the_registry_and_without_credentials(
        self, make_bench: MakeBench, authenticator: Any
    ) -> None:
        bench = self.bench(make_bench, authenticator, self.ALLOWED, httpx.Response(200, content=CONTENT))
        assert read(bench, self.layer("https://other.example/x", self.URL)) == CONTENT
        (asked,) = bench.ledger
        assert str(asked.url) == self.URL
        assert "Authorization" not in asked.headers

    def test_each_address_at_a_host_is_asked(self, make_bench: MakeBench, authenticator: Any) -> None:
        bench = self.bench(make_bench, authenticator, self.ALLOWED, httpx.Response(404))
        urls = ["https://vendor.example/one", "https://vendor.example/two"]
        with pytest.raises(ReferenceNotFoundError):
            read(bench, self.layer(*urls, urls[0]))
        assert [str(request.url) for request in bench.ledger] == urls

    @pytest.mark.parametrize(
        "url",
        [
            "http://vendor.example/x",
            "https://vendor.example:8443/x",
            "https://vendor.example.evil.example/x",
            "https://user@vendor.example/x",
            "ftp://vendor.example/x",
            "nonsense",
        ],
    )
    def test_only_the_allowed_host_over_https(self, make_bench: MakeBench, authenticator: Any, url: str) -> None:
        bench = self.bench(make_bench, authenticator, self.ALLOWED, httpx.Response(200, content=CONTENT))
        with pytest.raises(ReferenceNotFoundError):
            read(bench, self.layer(url))
        assert bench.ledger == []

    def test_an_ordinary_layers_addresses_are_never_followed(self, make_bench: MakeBench, authenticator: Any) -> None:
        bench = self.bench(make_bench, authenticator, self.ALLOWED, httpx.Response(200, content=CONTENT))
        with pytest.raises(ReferenceNotFoundError):
            read(bench, Descriptor(OCI_LAYER_GZIP, LAYER.digest, LAYER.size, urls=(self.URL,)))
        assert bench.ledger == []

    def test_a_challenge_there_is_not_answered(self, make_bench: MakeBench, authenticator: Any) -> None:
        challenge = httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        bench = self.bench(make_bench, authenticator, self.ALLOWED, challenge)
        with pytest.raises(ProtocolError, match="never given"):
            read(bench, self.layer(self.URL))
        assert authenticator.asked == []
