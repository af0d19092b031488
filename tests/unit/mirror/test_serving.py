"""What clients get from a mirror, cold and warm, and what its upstream is asked for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from imagestore import Digest
from imagestore.testing import RegistryServer, build_artifact, build_index, synthetic_layer
from tests.support.mirror import RunningMirror, mirror_table, running_mirror
from tests.support.plain_http import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE: Final = build_index(["linux/amd64", "linux/arm64"], seed="mirror", shared=[synthetic_layer("mirror", 3 << 20)])
SIGNATURE: Final = build_artifact("application/vnd.example.signature", {"a": b"signed"}, subject=IMAGE.target)
LAYER: Final = IMAGE.manifests[0].layers[0]
MANIFEST: Final = IMAGE.manifests[0].descriptor


@pytest.fixture
def upstream() -> Iterator[RegistryServer]:
    images = {"registry.example/team/app:1": IMAGE, "registry.example/team/app:signed": SIGNATURE}
    with RegistryServer(images) as server:
        yield server


@pytest.fixture
def mirror(tmp_path: Path, upstream: RegistryServer) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, mirror_table({upstream.address: ""}, catalog="true")) as running:
        yield running


def path(upstream: RegistryServer, rest: str) -> str:
    """By ``?ns=``, as containerd asks."""
    return f"/v2/team/app/{rest}?ns={upstream.address}"


def test_a_manifest_comes_as_it_is(mirror: RunningMirror, upstream: RegistryServer) -> None:
    for method in ("HEAD", "GET"):
        answer = mirror.get(path(upstream, "manifests/1"), method)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == IMAGE.target.media_type
        assert answer.headers["Docker-Content-Digest"] == str(IMAGE.target.digest)
        assert answer.headers["Content-Length"] == str(IMAGE.target.size)
    assert answer.content == IMAGE.documents[IMAGE.target.digest].data
    assert upstream.ledger.count(method="GET", kind="manifest") == 1


@pytest.mark.parametrize("rest", [f"manifests/{MANIFEST.digest}", f"blobs/{LAYER.digest}"])
def test_by_path_too(mirror: RunningMirror, upstream: RegistryServer, rest: str) -> None:
    answer = mirror.get(f"/v2/{upstream.address}/team/app/{rest}")
    assert answer.status_code == 200
    assert Digest.of(answer.content) in {MANIFEST.digest, LAYER.digest}


def test_a_blob_is_fetched_once_by_many(mirror: RunningMirror, upstream: RegistryServer) -> None:
    mirror.get(path(upstream, f"manifests/{MANIFEST.digest}"))
    barrier = threading.Barrier(8)

    def ask(_: int) -> bytes:
        barrier.wait()
        return mirror.get(path(upstream, f"blobs/{LAYER.digest}")).content

    with ThreadPoolExecutor(8) as clients:
        bodies = list(clients.map(ask, range(8)))
    assert {Digest.of(body) for body in bodies} == {LAYER.digest}
    assert upstream.ledger.count(method="GET", kind="blob") == 1
    results = mirror.results("blob")
    assert results["fetched"] == 1
    assert sum(results.values()) == 8


def test_a_warm_blob_asks_nobody(mirror: RunningMirror, upstream: RegistryServer) -> None:
    mirror.get(path(upstream, f"blobs/{LAYER.digest}"))
    before = upstream.ledger.count()
    answer = mirror.get(path(upstream, f"blobs/{LAYER.digest}"))
    assert Digest.of(answer.content) == LAYER.digest
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert upstream.ledger.count() == before


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("bytes=1000-", 1000, LAYER.size), ("bytes=5-9", 5, 10), ("bytes=-7", LAYER.size - 7, LAYER.size)],
)
def test_ranges(
    mirror: RunningMirror, upstream: RegistryServer, asked: str, start: int, end: int, is_warm: bool
) -> None:
    whole = IMAGE.blobs[LAYER.digest]
    data = b"".join(whole.chunks())
    if is_warm:
        mirror.get(path(upstream, f"blobs/{LAYER.digest}"))
    answer = mirror.get(path(upstream, f"blobs/{LAYER.digest}"), Range=asked)
    assert answer.status_code == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{LAYER.size}"
    assert answer.content == data[start:end]


def test_the_size_of_a_blob_of_which_nothing_is_known(mirror: RunningMirror, upstream: RegistryServer) -> None:
    answer = mirror.get(path(upstream, f"blobs/{LAYER.digest}"), "HEAD")
    assert answer.status_code == 200
    assert answer.headers["Content-Length"] == str(LAYER.size)
    assert upstream.ledger.count(method="GET", kind="blob") == 0


def test_lists(mirror: RunningMirror, upstream: RegistryServer) -> None:
    answer = mirror.get(path(upstream, "tags/list") + "&n=1")
    assert answer.json() == {"name": "team/app", "tags": ["1"]}
    rest = httpx.get(f"{mirror.url}{answer.headers['Link'].partition('<')[2].partition('>')[0]}", verify=PLAIN)
    assert rest.json()["tags"] == ["signed"]
    referrers = mirror.get(path(upstream, f"referrers/{IMAGE.target.digest}")).json()
    assert [each["digest"] for each in referrers["manifests"]] == [str(SIGNATURE.target.digest)]
    mirror.get(path(upstream, "manifests/1"))
    assert mirror.get("/v2/_catalog").json() == {"repositories": [f"{upstream.address}/team/app"]}


def test_a_closed_table(mirror: RunningMirror, upstream: RegistryServer) -> None:
    for asked in ("/v2/team/app/manifests/1?ns=other.example", "/v2/other.example/team/app/manifests/1"):
        answer = mirror.get(asked)
        assert answer.status_code == 404
        assert answer.json()["errors"][0]["code"] == "MANIFEST_UNKNOWN"
    assert upstream.ledger.count() == 0


@pytest.mark.parametrize(
    "rest", ["manifests/2", f"blobs/{Digest.of(b'other')}", "manifests/..", "blobs/sha256:zz", "manifests/sha256:00"]
)
def test_what_is_not_there(mirror: RunningMirror, upstream: RegistryServer, rest: str) -> None:
    assert mirror.get(path(upstream, rest)).status_code == 404


def test_base_and_health(mirror: RunningMirror) -> None:
    assert mirror.get("/v2/").status_code == 200
    assert mirror.get("/healthz").json()["status"] == "ok"
    assert mirror.get("/v2/team/app/manifests/1", "PUT").status_code == 405
