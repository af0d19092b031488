"""Known pitfalls of registry clients, one class of test for each; test ids carry the advisories.

Rows of the table that aren't here, and why:

- rollback and freeze of signed content (CVE-2024-23332): freshness is the verifier's policy; records tell their times;
- archive members that escape (CVE-2007-4559 and kin): layers are kept packed; the importer of archives has its tests;
- races on shared folders (CVE-2018-15664, CVE-2025-47290): the content store's tests, private folders and no links;
- local names poisoned by an import (CVE-2026-50195), links inside a layout that is read: the importer's tests;
- mounts across repositories in a shared server (CVE-2024-39897): a server's, and this is a client;
- collection of content in use: tests of the collector and the store's state machine;
- fixtures that leak secrets: tests of recording.
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import httpx
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference, errors
from imagestore.config import ConnectionSettings
from imagestore.oci.media_types import OCI_LAYER
from imagestore.registry.client_factory import connect
from imagestore.registry.transport.addresses import Origin
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.proxy import ProxyRules
from imagestore.testing import (
    FaultRule,
    RegistryServer,
    Where,
    build_image,
    build_index,
    invalid_images,
    layer,
)
from imagestore.testing.faults import (
    Drip,
    DuplicateKeys,
    Flip,
    GzipCoding,
    HugeManifest,
    LinkLoop,
    Refuse,
    Stall,
)
from tests.support.node import HYPERV, PROCESS, PYTHON, node
from tests.support.streams import drain
from tests.unit.registry.pitfall_bench import ALWAYS, LOGIN, REFERENCE, Bench, fault

INVALID = {one.name: one for one in invalid_images()}


def test_a_link_to_another_host_is_not_followed(tmp_path: Path) -> None:
    """GHSA-h7vf-4x9w-h99v."""
    with Bench(tmp_path, auth=LOGIN, faults=[fault(LinkLoop(to_host="inside.example"), kind="tags")]) as bench:
        with pytest.raises(errors.ProtocolError):
            bench.client.tags(Reference.parse(REFERENCE), cancel=CancelToken(60))
        assert bench.hosts_asked == {"registry.example"}


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "https://10.1.2.3/", "https://[::1]/", "http://localhost/"]
)
def test_a_public_registry_cannot_send_us_to_a_private_address(url: str) -> None:
    """GHSA-h7vf-4x9w-h99v, go-containerregistry#2440; names are judged when they are connected to (test_addresses)."""
    sender = HttpSender(proxies=ProxyRules())
    bound = sender.bound(Origin("https", "registry.example", 443), ConnectionSettings())
    with pytest.raises(errors.ProtocolError, match="expected a public address"):
        bound.send(make_request("GET", url), cancel=CancelToken(60))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("manifest-and-index-in-one", id="CVE-2021-41190"),
        pytest.param("index-with-layers", id="GHSA-mc8v-mgrf-8f4m"),
        pytest.param("media-type-of-an-index", id="GHSA-77vh-xpmg-72qh"),
        pytest.param("entry-of-wrong-type", id="descriptor-and-answer-disagree"),
        pytest.param("digest-with-path", id="CVE-2024-3727-path"),
        pytest.param("digest-with-newline", id="GHSA-6wvf-f2vw-3425-newline"),
        pytest.param("data-contradicts-digest", id="CVE-2025-24882-inline-data"),
        pytest.param("config-of-other-content", id="CVE-2025-24882-config"),
        pytest.param("manifest-of-other-content", id="GHSA-qv35-3gw6-8q4j-manifest"),
        pytest.param("layer-with-flipped-byte", id="oras-py-247-layer"),
        pytest.param("plain-layers-in-another-order", id="layers-in-another-order-than-diff-ids"),
        pytest.param("huge-document", id="CVE-2020-1702-manifest"),
        pytest.param("endless-number", id="CVE-2020-1702-number"),
        pytest.param("too-deeply-nested-index", id="GHSA-298f-872v-2rcx"),
        pytest.param("duplicate-member", id="parser-differences-duplicates"),
        pytest.param("member-differing-by-case", id="parser-differences-case"),
        pytest.param("byte-order-mark", id="parser-differences-encoding"),
    ],
)
def test_an_image_that_breaks_a_rule_does_not_enter(tmp_path: Path, name: str) -> None:
    case = INVALID[name]
    with Bench(tmp_path, {REFERENCE: case.image}) as bench:
        with pytest.raises(case.error):
            bench.pull()
        assert bench.blobs == []
        assert all(".." not in entry.path and "\n" not in entry.path for entry in bench.registry.ledger.entries)


@pytest.mark.parametrize("kind", ["manifest", "blob"])
def test_content_other_than_the_pinned_digest_is_refused(tmp_path: Path, kind: str) -> None:
    """CVE-2025-24882, GHSA-qv35-3gw6-8q4j."""
    image = build_image()
    with Bench(tmp_path, {REFERENCE: image}, faults=[fault(Flip(), kind=kind, method="GET")]) as bench:
        with pytest.raises(errors.IntegrityError):
            bench.pull(f"{REFERENCE}@{image.target.digest}")
        assert bench.blobs == []


def test_the_verifier_is_asked_for_every_handler(tmp_path: Path) -> None:
    """CVE-2022-24778: a policy that saw one manifest says nothing about the next."""

    class Verifier:
        asked = 0

        def verify(self, reference: str, target: Descriptor, *, cancel: CancelToken) -> None:
            self.asked += 1
            if self.asked > 1:
                raise errors.ImageDeniedError(reference, "a test", "no")

    with node(tmp_path, verifier=Verifier()) as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        with pytest.raises(errors.ImageDeniedError):
            here.store.pull(PYTHON, runtime_handler=HYPERV)
        assert [image.runtime_handler for image in here.store.list()] == [PROCESS]


def test_a_manifest_of_many_megabytes_is_not_read_to_its_end(tmp_path: Path) -> None:
    """CVE-2020-1702."""
    with Bench(tmp_path, faults=[fault(HugeManifest(64 << 20), kind="manifest", method="GET")]) as bench:
        with pytest.raises(errors.ImageStoreError):
            bench.pull()
        assert bench.registry.ledger.bytes_sent() < 16 << 20


def test_no_memory_and_no_disk_is_taken_on_a_declared_size(tmp_path: Path) -> None:
    """CVE-2023-25153, GHSA-f36w-mj3v-6jqv."""
    size = 1 << 60
    claimed = {"mediaType": OCI_LAYER, "digest": str(Digest.of(b"small")), "size": size}
    with Bench(tmp_path, {REFERENCE: build_image(members={"layers": [claimed] * 2})}) as bench:
        with pytest.raises(errors.ImageStoreError):
            bench.pull()
        assert bench.registry.ledger.count(digest=Digest.of(b"small")) == 0


@pytest.mark.parametrize("kind", ["blob", "manifest", "tags"])
def test_a_body_compressed_in_transit_is_not_unpacked(tmp_path: Path, kind: str) -> None:
    """CVE-2025-66418, CVE-2025-66471, CVE-2026-21441."""
    with Bench(tmp_path, faults=[fault(GzipCoding(is_bomb=True), kind=kind)]) as bench:
        with pytest.raises(errors.ImageStoreError):
            bench.pull() if kind != "tags" else bench.client.tags(Reference.parse(REFERENCE), cancel=CancelToken(60))
        assert bench.blobs == []


def test_no_other_user_can_read_the_store(tmp_path: Path) -> None:
    """CVE-2024-25621."""
    before = os.umask(0)
    try:
        with Bench(tmp_path) as bench:
            bench.pull()
            assert stat.S_IMODE(bench.root.stat().st_mode) == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["rootfs-of-unknown-type", "config-without-rootfs", "diff-ids-not-a-list"])
def test_an_image_config_is_checked_before_it_is_returned(tmp_path: Path, name: str) -> None:
    """CVE-2022-23648, CVE-2026-53488: what a consumer gets has the types it expects, and nothing was expanded."""
    with Bench(tmp_path, {REFERENCE: INVALID[name].image}) as bench:
        with pytest.raises(INVALID[name].error):
            bench.pull()
        assert list(bench.store.list()) == []


def test_a_registrys_words_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    """CWE-150."""
    refusal = Refuse(403, code="\x1b[2J\u202e\x9b")
    with Bench(tmp_path, faults=[fault(refusal)]) as bench, pytest.raises(errors.AccessDeniedError) as caught:
        bench.pull()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "a b", "\u00e9", ""])
def test_a_token_that_no_header_may_carry_is_refused(tmp_path: Path, token: str) -> None:
    """Header injection through tokens."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.url.path == "/token":
            return httpx.Response(200, json={"token": token})
        challenge = 'Bearer realm="https://registry.example/token"'
        return httpx.Response(401, headers={"WWW-Authenticate": challenge})

    with Bench(tmp_path, transport=httpx.MockTransport(handle)) as bench, pytest.raises(errors.RegistryError):
        bench.pull()
    assert all("X-Evil" not in request.headers for request in seen)
    assert sum("Authorization" in request.headers and request.url.path != "/token" for request in seen) == 0


@pytest.mark.parametrize("text", ["registry.example/a\r\nb:1", "registry.example/a:1\n", "registry.example/a%0d:1"])
def test_a_reference_cannot_carry_a_header(text: str) -> None:
    """Header injection through references."""
    with pytest.raises(errors.InvalidReferenceError):
        Reference.parse(text)


@pytest.mark.parametrize("what", [Stall(at=10, seconds=60), Drip(bytes_per_second=200)], ids=["stall", "drip"])
def test_an_endless_body_ends_at_the_deadline(tmp_path: Path, what: Stall | Drip) -> None:
    """Slow drips and stalls; the least rate without a deadline is tested at the transport."""
    image = build_image(layers=[layer("slow", size=20_000, compression="none")])
    faults = [FaultRule(what, Where(reference=str(image.layers[0].digest)), times=ALWAYS)]
    with RegistryServer({REFERENCE: image}, faults=faults) as server, Bench(tmp_path) as bench:
        client = bench.enter_context(connect())
        reference = Reference.parse(server.server.reference(REFERENCE))
        with (
            pytest.raises(errors.DeadlineExceededError),
            client.blob(reference, image.layers[0], cancel=CancelToken(0.3)) as reader,
        ):
            drain(reader)


def test_pages_that_lead_to_themselves_come_to_an_end(tmp_path: Path) -> None:
    """GHSA-298f-872v-2rcx."""
    with Bench(tmp_path, faults=[fault(LinkLoop(), kind="tags")]) as bench:
        assert bench.client.tags(Reference.parse(REFERENCE), cancel=CancelToken(60)) == ("1",)
        assert bench.registry.ledger.count(kind="tags") < 5


def test_a_member_that_parsers_read_differently_is_refused(tmp_path: Path) -> None:
    """The class behind CVE-2021-41190: a second reader must not see another document."""
    with Bench(tmp_path, faults=[fault(DuplicateKeys(), kind="manifest", method="GET")]) as bench:
        with pytest.raises(errors.ImageStoreError):
            bench.pull()
        assert bench.blobs == []


@pytest.mark.parametrize(
    "host",
    ["[::1%25eth0]", "registry.example@evil.example", "evil.example\\@registry.example", "[::1", "registry%2eexample"],
)
def test_a_host_that_parsers_read_differently_is_refused(host: str) -> None:
    """CVE-2024-11168."""
    sender = HttpSender(proxies=ProxyRules())
    with pytest.raises(errors.ProtocolError):
        sender.send(make_request("GET", f"https://{host}/v2/"), cancel=CancelToken(60))


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ConnectError("tls", request=None)], ids=["refused", "certificate"]
)
def test_nothing_falls_back_to_plain_http(tmp_path: Path, error: httpx.ConnectError) -> None:
    """Fallback to plain http or unverified TLS."""
    if error.args == ("tls",):
        failure = ssl.SSLCertVerificationError(1, "certificate verify failed")
        failure.verify_message = "self-signed certificate"
        error.__cause__ = failure
    schemes: set[str] = set()

    def handle(request: httpx.Request) -> httpx.Response:
        schemes.add(request.url.scheme)
        raise error

    with (
        Bench(tmp_path, transport=httpx.MockTransport(handle)) as bench,
        pytest.raises(errors.RegistryUnavailableError),
    ):
        bench.pull()
    assert schemes == {"https"}


@pytest.mark.parametrize("wish", ["999999", "+99999"])
def test_a_huge_retry_after_is_an_error_at_once(tmp_path: Path, wish: str) -> None:
    """Denial by Retry-After."""
    with Bench(tmp_path, faults=[fault(Refuse(429, retry_after=wish))]) as bench:
        with pytest.raises(errors.RateLimitedError) as caught:
            bench.pull()
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 90_000
        assert len(bench.registry.ledger.entries) <= 2


@pytest.mark.parametrize("expires", ["", f"; expires=1-1-{'1' * 5000}"], ids=["plain", "a year of 5,000 digits"])
def test_cookies_are_neither_read_nor_kept(tmp_path: Path, expires: str) -> None:
    """Cookie tracking across hosts and requests; Python's parser warns of what it can't read."""
    sent: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("Cookie"))
        return httpx.Response(
            200, headers={"Set-Cookie": f"id=1; Domain=example; Path=/{expires}"}, json={"tags": ["a"]}
        )

    with Bench(tmp_path, transport=httpx.MockTransport(handle)) as bench:
        for _ in range(2):
            bench.client.tags(Reference.parse(REFERENCE), cancel=CancelToken(60))
    assert sent == [None, None]


def test_a_tag_that_moves_between_two_questions_does_not_mix_images(tmp_path: Path) -> None:
    """One GET by tag, or the pair (HEAD by tag, GET by digest), are free of races; the tag's document comes once."""
    index = build_index(["linux/amd64", "linux/arm64"])
    with Bench(tmp_path, {REFERENCE: index}) as bench:
        for asked in (["GET"], ["GET", "HEAD"]):
            assert bench.pull().target.digest == index.target.digest
            by_tag = [entry for entry in bench.registry.ledger.select(kind="manifest") if entry.path.endswith("/1")]
            assert [entry.method for entry in by_tag] == asked
