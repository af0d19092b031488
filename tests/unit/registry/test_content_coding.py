"""Answers that were compressed on their way, asked for or not: taken as other clients take them, within bounds."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from httpx import Headers

from imagestore import CancelToken, Descriptor, Digest, Reference, TransferPolicy
from imagestore.errors import AuthenticationError, DigestMismatchError, ImageStoreError, IntegrityError
from imagestore.oci import media_types
from imagestore.registry.auth.realm import Realm
from imagestore.registry.auth.token_service import TokenService
from tests.support.streams import drain
from tests.unit.registry.token_server import FakeResponse
from tests.unit.registry.wire import Body, Mirrored

MakeBench = Callable[..., Any]

REFERENCE = Reference.parse("registry.example/team/app:1")
INDEX = json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": []}).encode()
DOCUMENT = Descriptor(media_types.OCI_INDEX, Digest.of(INDEX), len(INDEX))
PLAIN = random.Random(7).randbytes(300_000)
PACKED = gzip.compress(PLAIN, mtime=0)


def layer(content: bytes, media_type: str = media_types.OCI_LAYER_GZIP) -> Descriptor:
    return Descriptor(media_type, Digest.of(content), len(content))


def serving(body: bytes, *, coding: str = "gzip", length: bool = False, pieces: int = 0, **fields: str) -> Any:
    """A transport that gives this body to every GET; a HEAD tells its length."""

    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Type": media_types.OCI_INDEX, "Content-Encoding": coding}
        headers |= {name.replace("_", "-"): value for name, value in fields.items()}
        if length or request.method == "HEAD":
            headers["Content-Length"] = str(len(body))
        step = pieces or len(body)
        parts = [body[start : start + step] for start in range(0, len(body), step)]
        return httpx.Response(200, headers=headers, stream=Body(*(parts if request.method == "GET" else ())))

    return httpx.MockTransport(answer)


def read(bench: Any, descriptor: Descriptor) -> bytes:
    with bench.client.blob(REFERENCE, descriptor, cancel=bench.cancel) as stream:
        return drain(stream)


@pytest.mark.parametrize(
    "body", [b"<html>" * 1000, gzip.compress(PLAIN), gzip.compress(b"short")], ids=["page", "longer", "shorter"]
)
def test_a_mirror_that_has_other_compressed_content_is_passed_over(make_bench: MakeBench, body: bytes) -> None:
    wrong, content = serving(body, length=True), PLAIN[:3000]
    bench = make_bench(
        lambda request: (
            wrong.handle_request(request)
            if request.url.host == "mirror.example"
            else httpx.Response(200, content=content)
        ),
        endpoints=Mirrored(),
    )
    assert read(bench, layer(content)) == content


@pytest.mark.parametrize("coding", ["gzip", "X-GZip "])
@pytest.mark.parametrize("length", [True, False])
def test_documents_are_unpacked(make_bench: MakeBench, coding: str, length: bool) -> None:
    transport = serving(gzip.compress(INDEX), coding=coding, length=length, Docker_Content_Digest=str(DOCUMENT.digest))
    bench = make_bench(transport)
    assert bench.client.resolve(REFERENCE, cancel=bench.cancel) == DOCUMENT
    assert bench.client.resolve_whole(REFERENCE, cancel=bench.cancel) == (DOCUMENT, INDEX)
    assert bench.client.document(REFERENCE, DOCUMENT, cancel=bench.cancel) == INDEX


@pytest.mark.parametrize("inside", [INDEX + b" " * (16 << 20), INDEX + b" ", INDEX[:-1]])
def test_a_document_with_something_else_inside_is_refused(make_bench: MakeBench, inside: bytes) -> None:
    bench = make_bench(serving(gzip.compress(inside)))
    with pytest.raises(IntegrityError) as raised:
        bench.client.document(REFERENCE, DOCUMENT, cancel=bench.cancel)
    assert "marked Content-Encoding: gzip" in raised.value.hint


def test_a_document_that_is_stored_compressed_stays_so(make_bench: MakeBench) -> None:
    stored = gzip.compress(b"{}")
    config = layer(stored, media_types.OCI_CONFIG)
    bench = make_bench(serving(stored, Content_Type="application/octet-stream"))
    assert bench.client.document(REFERENCE, config, cancel=bench.cancel) == stored


@pytest.mark.parametrize("pieces", [0, 1000, 1])
@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    "descriptor",
    [
        layer(PACKED[:2000]),
        layer(PLAIN[:2000], media_types.OCI_LAYER),
        layer(b"\x28\xb5\x2f\xfd" + PLAIN[:2000], "application/vnd.oci.image.layer.v1.tar+zstd"),
    ],
)
def test_blobs_are_unpacked(make_bench: MakeBench, descriptor: Descriptor, length: bool, pieces: int) -> None:
    stored = {layer(each).digest: each for each in (PACKED[:2000], PLAIN[:2000], b"\x28\xb5\x2f\xfd" + PLAIN[:2000])}
    content = stored[descriptor.digest]
    bench = make_bench(serving(gzip.compress(content), length=length, pieces=pieces))
    assert read(bench, descriptor) == content


def test_a_large_blob_is_unpacked_in_pieces(make_bench: MakeBench) -> None:
    assert read(make_bench(serving(gzip.compress(PACKED))), layer(PACKED)) == PACKED


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    "content", [PACKED, gzip.compress(b"short", mtime=0), b"", b"\x1f"], ids=["long", "short", "empty", "cut"]
)
@pytest.mark.parametrize("media_type", [media_types.OCI_LAYER_GZIP, "application/octet-stream"])
def test_a_blob_that_is_stored_compressed_may_be_marked_so(
    make_bench: MakeBench, content: bytes, length: bool, media_type: str
) -> None:
    assert read(make_bench(serving(content, length=length, pieces=700)), layer(content, media_type)) == content


def members(content: bytes, size: int) -> bytes:
    """As tools that compress in parallel, or file by file, leave it: one member of gzip behind the other."""
    return b"".join(gzip.compress(content[start : start + size]) for start in range(0, len(content), size))


@pytest.mark.parametrize("behind", [b"", bytes(512), b"\x1f", b"\x1f\x8c" + PLAIN[:70_000]])
@pytest.mark.parametrize("pieces", [0, 1000, 1])
@pytest.mark.parametrize("length", [True, False])
def test_a_blob_of_several_members_is_unpacked(make_bench: MakeBench, length: bool, pieces: int, behind: bytes) -> None:
    content = PLAIN[: 2000 if pieces == 1 else 20_000]
    coded = gzip.compress(b"") + members(content, len(content) // 3) + gzip.compress(b"")
    bench = make_bench(serving(coded + behind[: 600 if pieces == 1 else None], length=length, pieces=pieces))
    assert read(bench, layer(content, media_types.OCI_LAYER)) == content


@pytest.mark.parametrize("behind", [b"", bytes(512), b"\x1f", b"\x1f\x8c" + PLAIN[:5000]])
def test_a_document_of_several_members_is_unpacked(make_bench: MakeBench, behind: bytes) -> None:
    bench = make_bench(serving(members(INDEX, 10) + gzip.compress(b"") + behind))
    assert bench.client.document(REFERENCE, DOCUMENT, cancel=bench.cancel) == INDEX
    assert bench.client.resolve_whole(REFERENCE, cancel=bench.cancel)[0] == DOCUMENT


@pytest.mark.parametrize("last", [PACKED[:200_000], PACKED[:-8] + bytes(8), b"\x1f\x8b\x01"])
def test_a_last_member_that_is_cut_or_damaged_counts(make_bench: MakeBench, last: bytes) -> None:
    bench = make_bench(serving(gzip.compress(INDEX) + last))
    with pytest.raises(IntegrityError):
        bench.client.document(REFERENCE, DOCUMENT, cancel=bench.cancel)
    bench = make_bench(serving(gzip.compress(PLAIN[:5000]) + last), policy=TransferPolicy(attempts=1))
    with pytest.raises(ImageStoreError):
        read(bench, layer(PLAIN[:5000] + PLAIN, media_types.OCI_LAYER))


@pytest.mark.parametrize("inside", [b"", b"x" * 100])
def test_members_without_end_stop_at_the_size(make_bench: MakeBench, inside: bytes) -> None:
    bench = make_bench(serving(gzip.compress(inside) * 30_000, length=True))
    with pytest.raises(IntegrityError):
        read(bench, layer(PLAIN[:5000], media_types.OCI_LAYER))
    with pytest.raises(IntegrityError):
        bench.client.document(REFERENCE, DOCUMENT, cancel=bench.cancel)


def test_a_transfer_that_breaks_inside_is_fetched_again(make_bench: MakeBench) -> None:
    coded = gzip.compress(PACKED)
    answers = [Body(coded[:200_000], httpx.ReadError("reset")), Body(coded)]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=answers.pop(0))

    assert read(make_bench(httpx.MockTransport(answer)), layer(PACKED)) == PACKED


@pytest.mark.parametrize("total", ["*", "coded", "size"])
def test_a_part_of_what_a_blob_was_coded_to_is_no_part_of_it(make_bench: MakeBench, total: str) -> None:
    """A cache counts in its own bytes, or codes each part alone; without Range it has the whole."""
    content = b"0123456789" * 10_000
    coded = gzip.compress(content)

    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Encoding": "gzip"}
        if "Range" not in request.headers:
            return httpx.Response(200, headers=headers, stream=Body(coded))
        named = {"*": "*", "coded": len(coded), "size": len(content)}[total]
        part, last = (gzip.compress(content[100:]), len(content)) if total == "size" else (coded[100:], len(coded))
        headers["Content-Range"] = f"bytes 100-{last - 1}/{named}"
        return httpx.Response(206, headers=headers, stream=Body(part))

    bench = make_bench(httpx.MockTransport(answer))
    described = layer(content, media_types.OCI_LAYER)
    with bench.client.blob(REFERENCE, described, offset=100, cancel=bench.cancel) as stream:
        assert (stream.start, drain(stream)) == (0, content)


def test_a_part_of_a_blob_that_is_stored_coded_goes_on(make_bench: MakeBench) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Encoding": "gzip", "Content-Range": f"bytes 100-{len(PACKED) - 1}/{len(PACKED)}"}
        headers["Content-Length"] = str(len(PACKED) - 100)
        return httpx.Response(206, headers=headers, stream=Body(PACKED[100:]))

    bench = make_bench(httpx.MockTransport(answer))
    with bench.client.blob(REFERENCE, layer(PACKED), offset=100, cancel=bench.cancel) as stream:
        assert (stream.start, drain(stream)) == (100, PACKED[100:])


def test_what_unpacks_to_more_ends_at_the_size(make_bench: MakeBench) -> None:
    bomb = gzip.compress(b"\x1f\x8b" + bytes(16 << 20))
    with pytest.raises(IntegrityError) as raised:
        read(make_bench(serving(bomb)), layer(PLAIN[:5000]))
    assert "marked Content-Encoding: gzip" in raised.value.hint


def test_compressed_bytes_that_hold_nothing_end_too(make_bench: MakeBench) -> None:
    packer = zlib.compressobj(wbits=31)
    # An empty stored block, again and again.
    endless = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH) + b"\x00\x00\x00\xff\xff" * 100_000
    with pytest.raises(IntegrityError, match="can't be unpacked"):
        read(make_bench(serving(endless, length=True)), layer(PLAIN[:5000], media_types.OCI_LAYER))


def test_what_is_damaged_inside_is_refused(make_bench: MakeBench) -> None:
    coded = bytearray(gzip.compress(PACKED))
    coded[5000:5100] = bytes(100)
    coded[-8:] = bytes(8)
    with pytest.raises(IntegrityError, match=r"from registry\.example: can't be unpacked"):
        read(make_bench(serving(bytes(coded), length=True)), layer(PACKED))


def test_another_coding_is_named_where_a_blob_ends_early(make_bench: MakeBench) -> None:
    with pytest.raises(ImageStoreError) as raised:
        read(make_bench(serving(b"\x8b" + PLAIN[:100], coding="br")), layer(PLAIN))
    assert "marked Content-Encoding: br" in raised.value.hint


def test_a_list_is_unpacked(make_bench: MakeBench) -> None:
    tags = json.dumps({"name": "team/app", "tags": ["1", "2"]}).encode()
    bench = make_bench(serving(gzip.compress(tags), Content_Type="application/json"))
    assert bench.client.tags(REFERENCE, cancel=bench.cancel) == ("1", "2")


def test_a_refusal_is_unpacked(make_bench: MakeBench) -> None:
    said = gzip.compress(json.dumps({"errors": [{"code": "DENIED", "message": "not you"}]}).encode())

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(said))

    bench = make_bench(httpx.MockTransport(answer))
    with pytest.raises(ImageStoreError, match="DENIED: not you"):
        bench.client.resolve(REFERENCE, cancel=bench.cancel)


class Sender:
    def __init__(self, response: FakeResponse) -> None:
        self.response = response

    def send(self, request: httpx.Request, *, cancel: CancelToken) -> FakeResponse:
        return self.response


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_a_token_is_unpacked_or_its_coding_named(coding: str) -> None:
    body = gzip.compress(json.dumps({"token": "abc"}).encode())
    sender = Sender(FakeResponse(200, body, Headers((("Content-Encoding", coding),))))
    realm = Realm.parse("https://auth.registry.example/token")
    service = TokenService(realm, "", sender, registry="registry.example", remedy="")
    if coding == "gzip":
        assert service.fetch((), None, None, cancel=CancelToken()).token.reveal() == "abc"
        return
    with pytest.raises(AuthenticationError) as raised:
        service.fetch((), None, None, cancel=CancelToken())
    assert "marked Content-Encoding: br" in raised.value.hint


def test_a_wrong_digest_inside_names_the_coding(make_bench: MakeBench) -> None:
    other = INDEX.replace(b"2", b"3")
    bench = make_bench(serving(gzip.compress(other)))
    with pytest.raises(DigestMismatchError) as raised:
        bench.client.document(REFERENCE, DOCUMENT, cancel=bench.cancel)
    assert "Content-Encoding" in raised.value.hint
