"""Conditional requests, ranges, requests that a mirror doesn't serve, long heads and long indexes."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from imagestore import Digest
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.testing import RegistryServer, build_artifact, build_image, layer
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import StoredDocument
from tests.support.mirror import RunningMirror, mirror_table, running_mirror

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE: Final = build_image("linux/amd64", layers=[layer("conditions")])
SIGNATURE: Final = build_artifact(
    "application/vnd.example.signature", {"a": b"signed"}, subject=IMAGE.target, annotations={"by": "me"}
)
LAYER: Final = IMAGE.manifests[0].layers[0]
DATA: Final = b"".join(IMAGE.blobs[LAYER.digest].chunks())
OTHER: Final = Digest.of(b"other")


@pytest.fixture
def upstream() -> Iterator[RegistryServer]:
    images = {"registry.example/team/app:1": IMAGE, "registry.example/team/app:signed": SIGNATURE}
    with RegistryServer(images) as server:
        yield server


@pytest.fixture
def mirror(tmp_path: Path, upstream: RegistryServer) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, mirror_table({upstream.address: ""})) as running:
        yield running


def path(upstream: RegistryServer, rest: str) -> str:
    return f"/v2/team/app/{rest}?ns={upstream.address}"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("rest", "digest"),
    [
        ("manifests/1", IMAGE.target.digest),
        (f"manifests/{IMAGE.target.digest}", IMAGE.target.digest),
        (f"blobs/{LAYER.digest}", LAYER.digest),
    ],
)
def test_what_a_client_has_is_not_sent(
    mirror: RunningMirror, upstream: RegistryServer, rest: str, digest: Digest, method: str
) -> None:
    whole = mirror.get(path(upstream, rest), method)
    assert (whole.status_code, whole.headers["ETag"]) == (200, f'"{digest}"')
    for known in (f'"{digest}"', f'W/"{digest}"', f'"{OTHER}", "{digest}"', str(digest), "*"):
        answer = mirror.get(path(upstream, rest), method, **{"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", f'"{digest}"')
    assert mirror.get(path(upstream, rest), method, **{"If-None-Match": f'"{OTHER}"'}).status_code == 200


def test_a_condition_fetches_no_blob_and_reveals_none(mirror: RunningMirror, upstream: RegistryServer) -> None:
    rest, known = path(upstream, f"blobs/{LAYER.digest}"), {"If-None-Match": f'"{LAYER.digest}"'}
    assert mirror.get(rest, **known).status_code == 304
    assert upstream.ledger.count(method="GET", kind="blob") == 0
    assert mirror.get(path(upstream, f"blobs/{OTHER}"), **{"If-None-Match": f'"{OTHER}"'}).status_code == 404
    assert mirror.get(path(upstream, "manifests/2"), **{"If-None-Match": "*"}).status_code == 404


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=-0", 416, None),
        (f"bytes={len(DATA)}-", 416, None),
        (f"bytes={'9' * 30}-", 416, None),
        (f"bytes=0-{'9' * 30}", 206, DATA),
        (f"bytes=-{'9' * 30}", 206, DATA),
        ("BYTES=0-0", 206, DATA[:1]),
        ("bytes=5-4", 200, DATA),
        ("bytes=-", 200, DATA),
        ("bytes=0-1,3-4", 200, DATA),
        (f"bytes=0-{'9' * 5000}", 200, DATA),
        ("lines=0-1", 200, DATA),
    ],
)
def test_odd_ranges(
    mirror: RunningMirror, upstream: RegistryServer, asked: str, status: int, body: bytes | None
) -> None:
    answer = mirror.get(path(upstream, f"blobs/{LAYER.digest}"), Range=asked)
    assert answer.status_code == status
    if body is None:
        assert answer.headers["Content-Range"] == f"bytes */{len(DATA)}"
    else:
        assert answer.content == body


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        (f'"{LAYER.digest}"', 206),
        (f'W/"{LAYER.digest}"', 200),
        (f'"{OTHER}"', 200),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 200),
        ("", 200),
    ],
)
def test_a_range_of_another_version_is_the_whole(
    mirror: RunningMirror, upstream: RegistryServer, condition: str, status: int
) -> None:
    rest = path(upstream, f"blobs/{LAYER.digest}")
    answer = mirror.get(rest, **{"Range": "bytes=1-", "If-Range": condition})
    assert (answer.status_code, answer.content) == (status, DATA[1:] if status == 206 else DATA)
    beyond = mirror.get(rest, **{"Range": "bytes=-0", "If-Range": condition})
    assert beyond.status_code == (416 if status == 206 else 200)


def test_the_base_has_a_slash_or_none(mirror: RunningMirror) -> None:
    with_slash, without = mirror.get("/v2/"), mirror.get("/v2")
    assert (without.status_code, without.content) == (with_slash.status_code, with_slash.content) == (200, b"{}")
    assert without.headers["Docker-Distribution-Api-Version"] == "registry/2.0"
    assert mirror.get("/v2", "HEAD").status_code == 200


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("POST", "blobs/uploads/"),
        ("POST", "blobs/uploads/?mount=x&from=y"),
        ("POST", "blobs/uploads"),
        ("GET", "blobs/uploads/1"),
        ("PATCH", "blobs/uploads/1"),
        ("PUT", "blobs/uploads/1?digest=x"),
        ("DELETE", "blobs/uploads/1"),
        ("DELETE", f"blobs/{OTHER}"),
        ("PUT", "manifests/1"),
        ("DELETE", "manifests/1"),
    ],
)
def test_nothing_is_written(mirror: RunningMirror, upstream: RegistryServer, method: str, rest: str) -> None:
    answer = mirror.get(f"/v2/team/app/{rest}", method)
    assert answer.status_code == 405
    assert answer.json()["errors"][0]["code"] == "UNSUPPORTED"
    assert "Allow" in answer.headers
    assert upstream.ledger.count() == 0


def test_long_heads_are_read(mirror: RunningMirror, upstream: RegistryServer) -> None:
    token = "x" * (31 * 1024)
    assert mirror.get(path(upstream, "manifests/1"), Authorization=f"Bearer {token}").status_code == 200
    assert mirror.get(f"{path(upstream, 'manifests/1')}&token={token}").status_code == 200


def first_line_and_head(mirror: RunningMirror, said: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", httpx.URL(mirror.url).port), timeout=60) as client:
        client.sendall(said)
        found = b""
        while b"\r\n\r\n" not in found and (piece := client.recv(4096)):
            found += piece
    return found


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /v2/ HTTP/9\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /v2/ HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", b"400"),
        (b"GET /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"GET /v2/ HTTP/1.1\r\nHost: x\r\nExpect: nothing\r\n\r\n", b"417"),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"POST /v2/ HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
    ],
)
def test_every_answer_has_this_servers_name(mirror: RunningMirror, said: bytes, status: bytes) -> None:
    head = first_line_and_head(mirror, said)
    assert head.split()[1] == status
    names = [line for line in head.split(b"\r\n") if line.lower().startswith(b"server:")]
    assert names == [b"Server: imagestore"]


def test_referrers_come_with_all_that_the_registry_says(mirror: RunningMirror, upstream: RegistryServer) -> None:
    (found,) = mirror.get(path(upstream, f"referrers/{IMAGE.target.digest}")).json()["manifests"]
    assert found["digest"] == str(SIGNATURE.target.digest)
    assert found["artifactType"] == "application/vnd.example.signature"
    assert found["annotations"] == {"by": "me"}


def push_padded(upstream: RegistryServer, tag: str, size: int, media_type: str) -> bytes:
    """A document of a size, under a tag."""
    parts: dict[str, Any] = (
        {"manifests": []} if media_type == OCI_INDEX else {"config": IMAGE.manifests[0].config.members()}
    )
    raw = json.dumps({"schemaVersion": 2, "mediaType": media_type, **parts, "annotations": {"a": ""}}).encode()
    raw = raw.replace(b'"a": ""', b'"a": "' + b"x" * (size - len(raw)) + b'"')
    repository = upstream.library.open("registry.example", "team/app")
    repository.documents[Digest.of(raw)] = StoredDocument(media_type, BytesBody(raw))
    repository.tags[tag] = Digest.of(raw)
    return raw


@pytest.mark.parametrize(
    ("size", "media_type", "is_served"),
    [
        (16 << 20, OCI_INDEX, True),
        ((16 << 20) + 1, OCI_INDEX, False),
        (4 << 20, OCI_MANIFEST, True),
        ((4 << 20) + 1, OCI_MANIFEST, False),
    ],
)
def test_indexes_may_be_longer_than_manifests(
    mirror: RunningMirror, upstream: RegistryServer, size: int, media_type: str, is_served: bool
) -> None:
    raw = push_padded(upstream, "long", size, media_type)
    for rest in ("manifests/long", f"manifests/{Digest.of(raw)}") * 2:
        answer = mirror.get(path(upstream, rest))
        assert answer.status_code == (200 if is_served else 503)
        assert (answer.content == raw) is is_served
