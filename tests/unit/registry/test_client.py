"""resolve() and document(): what is believed, what is refused, and how it is said."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore import media_types
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    DigestMismatchError,
    DocumentError,
    ImageStoreError,
    IntegrityError,
    InvalidDigestError,
    ProtocolError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import respx

INDEX = json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": []}).encode()
INDEX_DIGEST = Digest.of(INDEX)
TAGGED = Reference.parse("registry.example/team/app:1")
PINNED = Reference.parse(f"registry.example/team/app:1@{INDEX_DIGEST}")
BASE = "https://registry.example/v2/team/app"
HEAD = {
    "Content-Type": media_types.OCI_INDEX,
    "Content-Length": str(len(INDEX)),
    "Docker-Content-Digest": str(INDEX_DIGEST),
}
WANTED = Descriptor(media_types.OCI_INDEX, INDEX_DIGEST, len(INDEX))


@pytest.fixture
def bench(router: respx.MockRouter, make_bench: Callable[..., Any]) -> Any:
    return make_bench(httpx.MockTransport(router.handler))


def test_resolve_by_tag_takes_a_complete_head(router: respx.MockRouter, bench: Any) -> None:
    head = router.head(f"{BASE}/manifests/1").respond(200, headers=HEAD)
    assert bench.client.resolve(TAGGED, cancel=bench.cancel) == WANTED
    request = head.calls[0].request
    assert request.headers["Accept"] == ", ".join(media_types.MANIFEST_ACCEPT)
    assert request.headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in request.headers


def test_resolve_with_tag_and_digest_asks_by_digest(router: respx.MockRouter, bench: Any) -> None:
    router.head(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=HEAD)
    assert bench.client.resolve(PINNED, cancel=bench.cancel) == WANTED


@pytest.mark.parametrize(
    ("status", "changed"),
    [
        (200, {"Docker-Content-Digest": ""}),
        (200, {"Docker-Content-Digest": "sha256:short"}),
        (200, {"Docker-Content-Digest": "sha512:" + "A" * 128}),
        (200, {"Docker-Content-Digest": "blake3:" + "a" * 64}),
        (200, {"Content-Length": "0"}),
        (200, {"Content-Type": "application/octet-stream"}),
        (200, {"Content-Type": "text/plain; charset=utf-8"}),
        (200, {"Content-Type": ""}),
        (404, {}),
        (405, {}),
        (400, {}),
    ],
)
def test_resolve_lets_get_decide_when_head_says_too_little(
    router: respx.MockRouter, bench: Any, status: int, changed: dict[str, str]
) -> None:
    router.head(f"{BASE}/manifests/1").respond(status, headers={**HEAD, **changed})
    sent_type = changed.get("Content-Type", media_types.OCI_INDEX)
    router.get(f"{BASE}/manifests/1").respond(200, headers={"Content-Type": sent_type}, content=INDEX)
    assert bench.client.resolve(TAGGED, cancel=bench.cancel) == WANTED


def test_resolve_computes_the_digest_of_a_get(router: respx.MockRouter, bench: Any) -> None:
    router.head(f"{BASE}/manifests/1").respond(405)
    lie = {"Content-Type": media_types.OCI_INDEX, "Docker-Content-Digest": str(Digest.of(b"other"))}
    router.get(f"{BASE}/manifests/1").respond(200, headers=lie, content=INDEX)
    assert bench.client.resolve(TAGGED, cancel=bench.cancel).digest == INDEX_DIGEST


def test_a_media_type_of_any_length_makes_a_short_message(router: respx.MockRouter, bench: Any) -> None:
    odd = {"Content-Type": "x" * 50_000}
    router.head(f"{BASE}/manifests/1").respond(405)
    router.get(f"{BASE}/manifests/1").respond(200, headers=odd, content=INDEX)
    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=odd, content=INDEX)
    with pytest.raises(ProtocolError, match="found media type") as raised:
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert len(str(raised.value)) < 500
    with pytest.raises(ProtocolError, match="expected media type") as raised:
        bench.client.document(TAGGED, WANTED, cancel=bench.cancel)
    assert len(str(raised.value)) < 500


def test_a_digest_that_cannot_be_verified_is_not_asked_for(bench: Any) -> None:
    reference = Reference.parse(f"registry.example/team/app@blake3:{'a' * 64}")
    with pytest.raises(
        InvalidDigestError, match=r"^registry\.example/team/app@blake3:.* can't be verified; known: sha256"
    ):
        bench.client.resolve(reference, cancel=bench.cancel)


def test_resolve_by_digest_refuses_another_claimed_digest(router: respx.MockRouter, bench: Any) -> None:
    lie = {**HEAD, "Docker-Content-Digest": str(Digest.of(b"other"))}
    router.head(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=lie)
    with pytest.raises(DigestMismatchError):
        bench.client.resolve(PINNED, cancel=bench.cancel)


def test_resolve_by_digest_takes_a_claim_in_another_algorithm(router: respx.MockRouter, bench: Any) -> None:
    other = {**HEAD, "Docker-Content-Digest": str(Digest.of(INDEX, "sha512"))}
    router.head(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=other)
    assert bench.client.resolve(PINNED, cancel=bench.cancel) == WANTED


def test_resolve_by_digest_verifies_the_bytes_of_a_get(router: respx.MockRouter, bench: Any) -> None:
    router.head(f"{BASE}/manifests/{INDEX_DIGEST}").respond(405)
    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, content=INDEX + b" ")
    with pytest.raises(DigestMismatchError):
        bench.client.resolve(PINNED, cancel=bench.cancel)


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        ({"schemaVersion": 2, "manifests": []}, media_types.OCI_INDEX),
        ({"schemaVersion": 2, "config": {}, "layers": []}, media_types.OCI_MANIFEST),
        ({"schemaVersion": 2, "mediaType": media_types.DOCKER_LIST, "manifests": []}, media_types.DOCKER_LIST),
        ({"schemaVersion": 2, "mediaType": "", "manifests": []}, media_types.OCI_INDEX),
    ],
)
def test_resolve_reads_the_type_inside_when_the_server_names_none(
    router: respx.MockRouter, bench: Any, body: dict[str, object], media_type: str
) -> None:
    router.head(f"{BASE}/manifests/1").respond(405)
    router.get(f"{BASE}/manifests/1").respond(
        200, headers={"Content-Type": "application/json"}, content=json.dumps(body).encode()
    )
    assert bench.client.resolve(TAGGED, cancel=bench.cancel).media_type == media_type


@pytest.mark.parametrize(
    ("headers", "content", "error"),
    [
        ({"Content-Type": media_types.DOCKER_SCHEMA1_SIGNED}, b"{}", ProtocolError),
        ({"Content-Type": "application/json"}, b'{"schemaVersion": 1, "fsLayers": []}', ProtocolError),
        ({"Content-Type": "application/json"}, b'{"schemaVersion": 2}', ProtocolError),
        ({"Content-Type": "text/html"}, b"<html>sign in</html>", ProtocolError),
        ({"Content-Type": "application/json"}, b"<html>", DocumentError),
        ({"Content-Type": media_types.OCI_CONFIG}, b"{}", ProtocolError),
        ({"Content-Type": media_types.OCI_INDEX}, b"x" * (4 * 1024 * 1024 + 1), ProtocolError),
    ],
)
def test_resolve_refuses_what_is_no_index_and_no_manifest(
    router: respx.MockRouter, bench: Any, headers: dict[str, str], content: bytes, error: type[ImageStoreError]
) -> None:
    router.head(f"{BASE}/manifests/1").respond(405)
    router.get(f"{BASE}/manifests/1").respond(200, headers=headers, content=content)
    with pytest.raises(error):
        bench.client.resolve(TAGGED, cancel=bench.cancel)


def test_a_page_instead_of_a_document_is_named_as_that(router: respx.MockRouter, bench: Any) -> None:
    page = {"Content-Type": "text/html; charset=utf-8"}
    router.route().respond(200, headers=page, content=b"<html>sign in</html>")
    with pytest.raises(ProtocolError, match="text/html") as by_tag:
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    with pytest.raises(ProtocolError, match="text/html") as by_digest:
        bench.client.document(TAGGED, WANTED, cancel=bench.cancel)
    assert by_tag.value.hint == by_digest.value.hint != ""


@pytest.mark.parametrize("content", [b'{"schemaVersion": 1}', b'{"fsLayers": []}'])
def test_schema_1_is_told_by_its_members_where_no_type_says_it(
    router: respx.MockRouter, bench: Any, content: bytes
) -> None:
    router.head(f"{BASE}/manifests/1").respond(405)
    router.get(f"{BASE}/manifests/1").respond(200, headers={"Content-Type": "application/json"}, content=content)
    with pytest.raises(ProtocolError, match="schema 1") as caught:
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert "push the image again" in caught.value.hint


def test_resolve_refuses_schema_1_already_at_the_head(router: respx.MockRouter, bench: Any) -> None:
    router.head(f"{BASE}/manifests/1").respond(200, headers={**HEAD, "Content-Type": media_types.DOCKER_SCHEMA1})
    with pytest.raises(ProtocolError, match="schema 1"):
        bench.client.resolve(TAGGED, cancel=bench.cancel)


def test_resolve_refuses_a_head_that_announces_more_than_4_mib(router: respx.MockRouter, bench: Any) -> None:
    router.head(f"{BASE}/manifests/1").respond(200, headers={**HEAD, "Content-Length": str(4 * 1024 * 1024 + 1)})
    with pytest.raises(ProtocolError, match="4194304"):
        bench.client.resolve(TAGGED, cancel=bench.cancel)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, AuthenticationError),
        (403, AccessDeniedError),
        (404, ReferenceNotFoundError),
        (406, ProtocolError),
        (418, ProtocolError),
        (429, RateLimitedError),
        (500, RegistryUnavailableError),
        (503, RegistryUnavailableError),
        (599, RegistryUnavailableError),
    ],
)
def test_refusals_become_typed_errors_with_the_registrys_words(
    router: respx.MockRouter,
    make_bench: Callable[..., Any],
    authenticator: Any,
    status: int,
    error: type[ImageStoreError],
) -> None:
    said = {"errors": [{"code": "SOME_CODE", "message": "because\x1b[2J of me"}, {"code": "OTHER"}]}
    router.route().respond(status, json=said)
    authenticator.answers = ["Bearer a", "Bearer b"]
    bench = make_bench(httpx.MockTransport(router.handler), authenticators=lambda endpoint: authenticator)
    with pytest.raises(error) as raised:
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    message = str(raised.value)
    assert message.startswith(f"{TAGGED}: registry.example answered {status}: SOME_CODE: because\\x1b[2J of me; OTHER")
    assert "\x1b" not in message
    if status in {401, 403, 404}:
        assert "login" in raised.value.hint


def test_document_is_verified_against_size_and_digest(router: respx.MockRouter, bench: Any) -> None:
    route = router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(
        200, headers={"Content-Type": media_types.OCI_INDEX + "; charset=utf-8"}, content=INDEX
    )
    assert bench.client.document(TAGGED, WANTED, cancel=bench.cancel) == INDEX
    assert route.calls[0].request.headers["Accept"].startswith(media_types.OCI_INDEX)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (INDEX[:-1], SizeMismatchError),
        (INDEX + b" ", SizeMismatchError),
        (INDEX.replace(b"2", b"3"), DigestMismatchError),
    ],
)
def test_document_with_other_bytes_is_refused(
    router: respx.MockRouter, bench: Any, content: bytes, error: type[ImageStoreError]
) -> None:
    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(
        200, headers={"Content-Type": media_types.OCI_INDEX}, content=content
    )
    with pytest.raises(error):
        bench.client.document(TAGGED, WANTED, cancel=bench.cancel)


@pytest.mark.parametrize("length", [True, False])
def test_bytes_that_a_proxy_coded_are_told_as_that(make_bench: Callable[..., Any], length: bool) -> None:
    coded = bytes(byte ^ 0x55 for byte in INDEX[1:])
    fields = {"Content-Length": str(len(coded))} if length else {}
    bench = make_bench(marked("br", coded, {**fields, "Docker-Content-Digest": str(INDEX_DIGEST)}))
    blob = replace(WANTED, media_type=media_types.OCI_LAYER_GZIP)
    with pytest.raises(IntegrityError) as document:
        bench.client.document(TAGGED, WANTED, cancel=bench.cancel)
    with pytest.raises(IntegrityError) as resolved:
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    found = [document.value, resolved.value]
    if length:
        with pytest.raises(IntegrityError) as layer:
            bench.client.blob(TAGGED, blob, cancel=bench.cancel).readinto(memoryview(bytearray(1)))
        found.append(layer.value)
    assert all("marked Content-Encoding: br" in error.hint for error in found)


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_what_is_stored_coded_may_be_marked_so(make_bench: Callable[..., Any], coding: str) -> None:
    bench = make_bench(marked(coding, INDEX, {}))
    assert bench.client.document(TAGGED, WANTED, cancel=bench.cancel) == INDEX


def marked(coding: str, body: bytes, fields: dict[str, str]) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            return httpx.Response(405)
        headers = {"Content-Type": media_types.OCI_INDEX, "Content-Encoding": coding, **fields}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))

    return httpx.MockTransport(answer)


def test_document_without_length_is_cut_off_at_its_size(router: respx.MockRouter, bench: Any) -> None:
    def endless() -> Any:
        while True:
            yield b"x" * 1000

    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").mock(
        side_effect=lambda request: httpx.Response(
            200, headers={"Content-Type": media_types.OCI_INDEX}, content=endless()
        )
    )
    with pytest.raises(SizeMismatchError):
        bench.client.document(TAGGED, WANTED, cancel=bench.cancel)


def test_document_of_another_type_than_its_descriptor_is_refused(router: respx.MockRouter, bench: Any) -> None:
    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(
        200, headers={"Content-Type": media_types.OCI_MANIFEST}, content=INDEX
    )
    with pytest.raises(ProtocolError, match=r"expected media type application/vnd\.oci\.image\.index"):
        bench.client.document(TAGGED, WANTED, cancel=bench.cancel)


def test_document_over_4_mib_is_refused_before_any_request(bench: Any) -> None:
    too_long = Descriptor(media_types.OCI_INDEX, INDEX_DIGEST, 4 * 1024 * 1024 + 1)
    with pytest.raises(ProtocolError, match="4194304"):
        bench.client.document(TAGGED, too_long, cancel=bench.cancel)


def test_config_is_fetched_from_the_blobs_endpoint(router: respx.MockRouter, bench: Any) -> None:
    config = Descriptor(media_types.OCI_CONFIG, Digest.of(b"{}"), 2)
    route = router.get(f"{BASE}/blobs/{config.digest}").respond(200, content=b"{}")
    assert bench.client.document(TAGGED, config, cancel=bench.cancel) == b"{}"
    assert "Accept" not in route.calls[0].request.headers


def test_inline_content_needs_no_request_but_must_be_right(bench: Any) -> None:
    inline = Descriptor(media_types.OCI_EMPTY, Digest.of(b"{}"), 2, data=b"{}")
    assert bench.client.document(TAGGED, inline, cancel=bench.cancel) == b"{}"
    wrong = Descriptor(media_types.OCI_EMPTY, Digest.of(b"{}"), 2, data=b"[]")
    with pytest.raises(DigestMismatchError):
        bench.client.document(TAGGED, wrong, cancel=bench.cancel)
