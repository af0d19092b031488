"""resolve() and document(): what is believed, what is refused, and how it is said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore import Descriptor, Digest, Reference
from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    DigestMismatchError,
    DocumentError,
    ImageStoreError,
    IntegrityError,
    InvalidDigestError,
    OperationCancelledError,
    ProtocolError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.oci import media_types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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


def test_resolve_asks_with_one_get(router: respx.MockRouter, bench: Any) -> None:
    get = router.get(f"{BASE}/manifests/1").respond(200, headers=HEAD, content=INDEX)
    assert bench.client.resolve_whole(TAGGED, cancel=bench.cancel) == (WANTED, INDEX)
    request = get.calls[0].request
    assert request.headers["Accept"] == ", ".join(media_types.MANIFEST_ACCEPT)
    assert request.headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in request.headers


@pytest.mark.parametrize(("head_status", "ages"), [(200, ["7"]), (404, ["9"])])
def test_the_headers_of_what_is_resolved_are_told_last(
    router: respx.MockRouter, bench: Any, head_status: int, ages: list[str]
) -> None:
    router.head(f"{BASE}/manifests/1").respond(head_status, headers={**HEAD, "Age": "7"})
    router.get(f"{BASE}/manifests/1").respond(200, headers={**HEAD, "Age": "9"}, content=INDEX)
    told: list[Mapping[str, str]] = []
    bench.client.resolve_whole(TAGGED, known=[WANTED], answered=told.append, cancel=bench.cancel)
    assert [headers["age"] for headers in told] == ages


def test_resolve_with_tag_and_digest_asks_by_digest(router: respx.MockRouter, bench: Any) -> None:
    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=HEAD, content=INDEX)
    assert bench.client.resolve(PINNED, cancel=bench.cancel) == WANTED


@pytest.mark.parametrize("reference", [TAGGED, PINNED])
def test_a_head_that_names_what_is_known_is_enough(router: respx.MockRouter, bench: Any, reference: Reference) -> None:
    head = router.head(f"{BASE}/manifests/{reference.digest or reference.tag}").respond(200, headers=HEAD)
    assert bench.client.resolve_whole(reference, known=[WANTED], cancel=bench.cancel) == (WANTED, None)
    assert head.calls[0].request.headers["Accept"] == ", ".join(media_types.MANIFEST_ACCEPT)


@pytest.mark.parametrize("named", ["", str(INDEX_DIGEST), str(Digest.of(INDEX, "sha512")), "nonsense"])
def test_a_head_by_digest_needs_to_name_none(router: respx.MockRouter, bench: Any, named: str) -> None:
    router.head(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers={"Docker-Content-Digest": named})
    assert bench.client.resolve_whole(PINNED, known=[WANTED], cancel=bench.cancel) == (WANTED, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/html"},
        {"Content-Type": media_types.DOCKER_SCHEMA1},
        {"Content-Type": media_types.OCI_MANIFEST},
        {"Content-Length": "7"},
        {"Content-Length": str(4 * 1024 * 1024 + 1)},
    ],
)
def test_other_head_fields_of_a_known_target_are_ignored(
    router: respx.MockRouter, bench: Any, headers: dict[str, str]
) -> None:
    router.head(f"{BASE}/manifests/1").respond(200, headers={**HEAD, **headers})
    assert bench.client.resolve(TAGGED, known=[WANTED], cancel=bench.cancel) == WANTED


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 408, 429, 500, 501, 502, 503, 504, 599])
@pytest.mark.parametrize("reference", [TAGGED, PINNED])
def test_a_head_that_fails_is_followed_by_a_get_at_once(
    router: respx.MockRouter, bench: Any, reference: Reference, status: int
) -> None:
    path = f"{BASE}/manifests/{reference.digest or reference.tag}"
    head = router.head(path).respond(status, headers={"Retry-After": "20"})
    router.get(path).respond(200, headers=HEAD, content=INDEX)
    assert bench.client.resolve_whole(reference, known=[WANTED], cancel=bench.cancel) == (WANTED, INDEX)
    assert (len(head.calls), bench.time.slept) == (1, [])


@pytest.mark.parametrize(
    "failure", [httpx.ReadError("cut"), httpx.RemoteProtocolError("hung up"), httpx.ReadTimeout("silent")]
)
def test_a_connection_that_breaks_at_head_is_followed_by_a_get(
    router: respx.MockRouter, bench: Any, failure: Exception
) -> None:
    head = router.head(f"{BASE}/manifests/1").mock(side_effect=failure)
    router.get(f"{BASE}/manifests/1").respond(200, headers=HEAD, content=INDEX)
    assert bench.client.resolve(TAGGED, known=[WANTED], cancel=bench.cancel) == WANTED
    assert (len(head.calls), bench.time.slept) == (1, [])


def test_a_cancelled_head_is_not_followed_by_a_get(router: respx.MockRouter, bench: Any) -> None:
    def cancelled(request: httpx.Request) -> httpx.Response:
        bench.cancel.cancel("enough")
        raise httpx.ReadError("cut")

    router.head(f"{BASE}/manifests/1").mock(side_effect=cancelled)
    get = router.get(f"{BASE}/manifests/1").respond(200, content=INDEX)
    with pytest.raises(OperationCancelledError, match="enough"):
        bench.client.resolve(TAGGED, known=[WANTED], cancel=bench.cancel)
    assert not get.called


def test_after_a_head_the_get_has_all_its_tries(router: respx.MockRouter, bench: Any) -> None:
    router.head(f"{BASE}/manifests/1").respond(503)
    get = router.get(f"{BASE}/manifests/1").respond(503)
    with pytest.raises(RegistryUnavailableError):
        bench.client.resolve(TAGGED, known=[WANTED], cancel=bench.cancel)
    assert len(get.calls) == bench.client.policy.attempts


@pytest.mark.parametrize(
    ("status", "changed"),
    [
        (200, {"Docker-Content-Digest": ""}),
        (200, {"Docker-Content-Digest": "sha256:short"}),
        (200, {"Docker-Content-Digest": "sha512:" + "A" * 128}),
        (200, {"Docker-Content-Digest": "blake3:" + "a" * 64}),
        (200, {"Docker-Content-Digest": str(Digest.of(b"other"))}),
        (204, {}),
        (206, {}),
    ],
)
def test_resolve_sends_get_when_head_lacks_the_digest(
    router: respx.MockRouter, bench: Any, status: int, changed: dict[str, str]
) -> None:
    router.head(f"{BASE}/manifests/1").respond(status, headers={**HEAD, **changed})
    router.get(f"{BASE}/manifests/1").respond(200, headers={"Content-Type": media_types.OCI_INDEX}, content=INDEX)
    assert bench.client.resolve_whole(TAGGED, known=[WANTED], cancel=bench.cancel) == (WANTED, INDEX)


def wrong_digest(router: respx.MockRouter, by_digest: int) -> None:
    lie = {"Content-Type": media_types.OCI_INDEX, "Docker-Content-Digest": str(Digest.of(b"other"))}
    router.get(f"{BASE}/manifests/1").respond(200, headers=lie, content=INDEX)
    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(by_digest, headers=lie, content=INDEX)


def test_a_wrong_digest_header_of_a_get_does_not_count(router: respx.MockRouter, bench: Any) -> None:
    wrong_digest(router, 200)
    assert bench.client.resolve_whole(TAGGED, cancel=bench.cancel) == (WANTED, INDEX)


def test_bytes_that_only_the_tag_gives_under_another_digest_are_damaged(router: respx.MockRouter, bench: Any) -> None:
    wrong_digest(router, 404)
    with pytest.raises(DigestMismatchError, match=f"content has {INDEX_DIGEST}"):
        bench.client.resolve(TAGGED, cancel=bench.cancel)


@pytest.mark.parametrize("claim", ["", "nonsense", f"blake3:{'a' * 64}"])
def test_a_digest_header_that_says_nothing_needs_no_second_request(
    router: respx.MockRouter, bench: Any, claim: str
) -> None:
    headers = {"Content-Type": media_types.OCI_INDEX, "Docker-Content-Digest": claim}
    router.get(f"{BASE}/manifests/1").respond(200, headers=headers, content=INDEX)
    assert bench.client.resolve_whole(TAGGED, cancel=bench.cancel) == (WANTED, INDEX)


def test_json_that_ends_early_with_the_connection_is_asked_for_again(make_bench: Callable[..., Any]) -> None:
    bodies = [INDEX[:-5], INDEX]

    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Type": media_types.OCI_INDEX}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(bodies.pop(0)))

    bench = make_bench(answer)
    assert bench.client.resolve_whole(TAGGED, cancel=bench.cancel) == (WANTED, INDEX)


def test_a_media_type_of_any_length_makes_a_short_message(router: respx.MockRouter, bench: Any) -> None:
    odd = {"Content-Type": "x/" + "x" * 50_000}
    router.get(f"{BASE}/manifests/1").respond(200, headers=odd, content=INDEX)
    router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=odd, content=INDEX)
    with pytest.raises(ProtocolError, match="sent content type") as raised:
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


def test_by_digest_a_header_that_names_another_does_not_count(router: respx.MockRouter, bench: Any) -> None:
    lie = {**HEAD, "Docker-Content-Digest": str(Digest.of(b"other"))}
    router.head(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=lie)
    get = router.get(f"{BASE}/manifests/{INDEX_DIGEST}").respond(200, headers=lie, content=INDEX)
    assert bench.client.resolve_whole(PINNED, cancel=bench.cancel) == (WANTED, INDEX)
    assert bench.client.resolve_whole(PINNED, known=[WANTED], cancel=bench.cancel) == (WANTED, INDEX)
    assert len(get.calls) == 2


def test_resolve_by_digest_verifies_the_bytes_of_a_get(router: respx.MockRouter, bench: Any) -> None:
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
        ({"Content-Type": media_types.OCI_INDEX}, b"x" * (16 * 1024 * 1024 + 1), ProtocolError),
        ({"Content-Type": media_types.OCI_MANIFEST}, b"x" * (4 * 1024 * 1024 + 1), ProtocolError),
    ],
)
def test_resolve_refuses_what_is_no_index_and_no_manifest(
    router: respx.MockRouter, bench: Any, headers: dict[str, str], content: bytes, error: type[ImageStoreError]
) -> None:
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
def test_schema_1_is_recognized_by_its_members_without_a_type(
    router: respx.MockRouter, bench: Any, content: bytes
) -> None:
    router.get(f"{BASE}/manifests/1").respond(200, headers={"Content-Type": "application/json"}, content=content)
    with pytest.raises(ProtocolError, match="schema 1") as caught:
        bench.client.resolve(TAGGED, cancel=bench.cancel)
    assert "push the image again" in caught.value.hint


GENERIC = (
    "application/binary",
    "application/json",
    "Application/Octet-Stream; charset=binary",
    "application/x-download",
    "application/x-troff-man",
    "binary/octet-stream",
    "httpd/unix-directory",
    "text/plain; charset=utf-8",
    "unknown/unknown",
    "x-unknown/x-unknown",
    "Application/X-Unknown-Mime-Type",
    "x-binary/octet-stream",
    "*/*",
    "json",
    "",
)
OLD_TYPES = (media_types.DOCKER_SCHEMA1, media_types.DOCKER_SCHEMA1_SIGNED)


@pytest.mark.parametrize("content_type", [*GENERIC, *OLD_TYPES])
@pytest.mark.parametrize("reference", [TAGGED, PINNED])
def test_a_type_that_says_nothing_leaves_the_decision_to_the_body(
    router: respx.MockRouter, bench: Any, reference: Reference, content_type: str
) -> None:
    router.get(url__startswith=f"{BASE}/manifests/").respond(200, headers={"Content-Type": content_type}, content=INDEX)
    assert bench.client.resolve_whole(reference, cancel=bench.cancel) == (WANTED, INDEX)
    assert bench.client.document(TAGGED, WANTED, cancel=bench.cancel) == INDEX


@pytest.mark.parametrize("content_type", ["text/html", "application/xhtml+xml", "image/png", "application/pdf"])
def test_another_type_is_refused_and_named_as_the_servers(
    router: respx.MockRouter, bench: Any, content_type: str
) -> None:
    router.get(f"{BASE}/manifests/1").respond(200, headers={"Content-Type": content_type}, content=INDEX)
    with pytest.raises(ProtocolError, match=f"the server sent content type '{re.escape(content_type)}'"):
        bench.client.resolve(TAGGED, cancel=bench.cancel)


def labelled(media_type: str | None, *members: str) -> bytes:
    """A document that states a media type, or none."""
    stated = {} if media_type is None else {"mediaType": media_type}
    return json.dumps({"schemaVersion": 2, **stated, **{name: [] for name in members}}).encode()


AN_INDEX, A_MANIFEST = ("manifests",), ("config", "layers")


@pytest.mark.parametrize(
    ("content_type", "document", "found"),
    [
        (media_types.OCI_INDEX, labelled(media_types.OCI_MANIFEST, *A_MANIFEST), media_types.OCI_MANIFEST),
        (media_types.DOCKER_LIST, labelled(media_types.DOCKER_MANIFEST, *A_MANIFEST), media_types.DOCKER_MANIFEST),
        (media_types.OCI_MANIFEST, labelled(media_types.OCI_INDEX, *AN_INDEX), media_types.OCI_INDEX),
        (media_types.DOCKER_MANIFEST, labelled(media_types.OCI_MANIFEST, *A_MANIFEST), media_types.OCI_MANIFEST),
        (media_types.OCI_MANIFEST, labelled(None, *AN_INDEX), "it is an index"),
        (media_types.OCI_INDEX, labelled(None, *A_MANIFEST), "it is a manifest"),
    ],
)
@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_document_under_another_ones_type_is_refused_with_both_names(
    router: respx.MockRouter, bench: Any, content_type: str, document: bytes, found: str, is_pinned: bool
) -> None:
    """Peers go by the header: to them it would be something else than to who goes by the body."""
    digest = Digest.of(document)
    headers = {"Content-Type": content_type, "Docker-Content-Digest": str(digest)}
    router.get(url__startswith=f"{BASE}/manifests/").respond(200, headers=headers, content=document)
    reference = Reference.parse(f"{TAGGED}@{digest}") if is_pinned else TAGGED
    with pytest.raises(DocumentError, match=f"content type '{re.escape(content_type)}', but .*{re.escape(found)}"):
        bench.client.resolve_whole(reference, cancel=bench.cancel)


@pytest.mark.parametrize(
    "document", [labelled(None, *AN_INDEX, *A_MANIFEST), labelled(None), labelled("a/b"), b"no JSON", b"[]"]
)
def test_what_does_not_say_what_it_is_is_left_to_its_reader(
    router: respx.MockRouter, bench: Any, document: bytes
) -> None:
    headers = {"Content-Type": media_types.OCI_MANIFEST}
    router.get(f"{BASE}/manifests/1").respond(200, headers=headers, content=document)
    assert bench.client.resolve(TAGGED, cancel=bench.cancel).media_type == media_types.OCI_MANIFEST


@pytest.mark.parametrize("content_type", OLD_TYPES)
@pytest.mark.parametrize("reference", [TAGGED, PINNED])
def test_a_real_schema_1_manifest_is_named_in_the_error(
    router: respx.MockRouter, bench: Any, reference: Reference, content_type: str
) -> None:
    old = b'{"schemaVersion": 1, "name": "a", "fsLayers": [], "signatures": []}'
    router.get(url__startswith=f"{BASE}/manifests/").respond(200, headers={"Content-Type": content_type}, content=old)
    with pytest.raises(ProtocolError, match="is a schema 1 manifest"):
        bench.client.resolve(reference, cancel=bench.cancel)


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
def test_bytes_that_a_proxy_coded_are_named_as_coded(make_bench: Callable[..., Any], length: bool) -> None:
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


@pytest.mark.parametrize(
    ("media_type", "longest"),
    [(media_types.OCI_INDEX, 16 << 20), (media_types.OCI_MANIFEST, 4 << 20), (media_types.OCI_CONFIG, 4 << 20)],
)
def test_a_document_that_is_too_long_is_refused_before_any_request(bench: Any, media_type: str, longest: int) -> None:
    with pytest.raises(ProtocolError, match=f"at most {longest} bytes"):
        bench.client.document(TAGGED, Descriptor(media_type, INDEX_DIGEST, longest + 1), cancel=bench.cancel)


@pytest.mark.parametrize("has_type", [True, False])
def test_an_index_may_be_longer_than_a_manifest(router: respx.MockRouter, bench: Any, has_type: bool) -> None:
    for size, media_type, is_read in (
        (5 << 20, media_types.OCI_INDEX, True),
        (5 << 20, media_types.OCI_MANIFEST, False),
    ):
        parts: dict[str, Any] = (
            {"manifests": []} if media_type == media_types.OCI_INDEX else {"config": {}, "layers": []}
        )
        body = json.dumps({"mediaType": media_type, **parts, "annotations": {"a": "x" * size}}).encode()
        headers = {"Content-Type": media_type if has_type else "application/json"}
        router.get(f"{BASE}/manifests/1").respond(200, headers=headers, content=body)
        if is_read:
            assert bench.client.resolve_whole(TAGGED, cancel=bench.cancel)[1] == body
        else:
            with pytest.raises(ProtocolError, match="at most 4194304 bytes"):
                bench.client.resolve(TAGGED, cancel=bench.cancel)


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
