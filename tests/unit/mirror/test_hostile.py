"""Upstreams that hang or lie, tables that lead in a circle, and clients that want what isn't theirs."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from imagestore import Digest
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import StoredDocument
from imagestore.testing.faults import Flip, SlowHead, Stall
from tests.support.mirror import mirror_table, running_mirror
from tests.support.plain_http import PLAIN
from tests.unit.mirror.test_listener import certificates
from tests.unit.mirror.test_replicas import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE: Final = build_image("linux/amd64", layers=[synthetic_layer("hostile", 1 << 20)])
OTHER: Final = build_image("linux/amd64", layers=[synthetic_layer("other", 1 << 18)])
LAYER: Final = IMAGE.manifests[0].layers[0]
NAME: Final = "registry.example/app:1"
HANG: Final = FaultRule(SlowHead(seconds=60.0), Where(), times=0)


@contextlib.contextmanager
def hanging() -> Iterator[str]:
    """An address that takes connections and says nothing."""
    with hanging_listener() as (_, address):
        yield address


@contextlib.contextmanager
def hanging_listener() -> Iterator[tuple[list[socket.socket], str]]:
    """As hanging, with the connections that came."""
    came: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                came.append(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield came, f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for each in came:
        each.close()


def test_content_of_a_private_upstream_is_given_to_nobody_by_another_ones_word(tmp_path: Path) -> None:
    """Anybody can push a manifest that names another's digests; that is no proof of having them."""
    evil = build_image("linux/amd64", layers=[synthetic_layer("evil", 1 << 18)])
    with RegistryServer({NAME: IMAGE}) as private, RegistryServer({NAME: evil}) as public:
        document = json.loads(evil.documents[evil.target.digest].data)
        document["layers"].append({**LAYER.members()})
        raw = json.dumps(document).encode()
        public.library.add(NAME, evil)
        repository = public.library.open("registry.example", "app")
        stored = repository.documents[evil.target.digest]
        repository.documents[Digest.of(raw)] = StoredDocument(stored.media_type, BytesBody(raw))
        repository.tags["1"] = Digest.of(raw)
        table = mirror_table({private.address: "private = true", public.address: ""}, **certificates(tmp_path))
        with running_mirror(tmp_path / "root", table) as mirror:
            url = mirror.url.replace("http:", "https:")
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            context.load_cert_chain(str(tmp_path / "client.pem"))
            blob = f"{url}/v2/app/blobs/{LAYER.digest}"
            assert httpx.get(blob, params={"ns": private.address}, verify=context).status_code == 200
            stranger = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            found = httpx.get(f"{url}/v2/app/manifests/1", params={"ns": public.address}, verify=stranger)
            assert str(LAYER.digest) in found.text
            assert httpx.get(blob, params={"ns": public.address}, verify=stranger).status_code == 404
            assert httpx.head(blob, params={"ns": public.address}, verify=stranger).status_code in {200, 404}


def test_an_upstream_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    with RegistryServer({NAME: IMAGE}) as upstream, hanging() as stuck:
        table = mirror_table({upstream.address: "", stuck: ""}, answer_timeout='"4s"')
        with running_mirror(tmp_path, table) as mirror:
            threads = [
                threading.Thread(target=mirror.get, args=(f"/v2/app/{rest}?ns={stuck}",))
                for number in range(80)
                for rest in (f"manifests/{number}", f"blobs/{Digest.of(str(number).encode())}")
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.3)
            assert mirror.get(f"/v2/app/manifests/1?ns={upstream.address}").status_code == 200
            assert mirror.get(f"/v2/app/blobs/{LAYER.digest}?ns={upstream.address}").status_code == 200
            for thread in threads:
                thread.join()


def test_what_is_stale_is_served_while_the_upstream_hangs(tmp_path: Path) -> None:
    with RegistryServer({NAME: IMAGE}) as upstream:
        table = mirror_table({upstream.address: 'tag_freshness = "0s"'})
        path = f"/v2/app/manifests/1?ns={upstream.address}"
        with running_mirror(tmp_path, table) as mirror:
            assert mirror.get(path).status_code == 200
    with hanging_listener() as (came, stuck):
        members = f'tag_freshness = "0s"\nendpoints = ["http://{stuck}"]'
        with running_mirror(tmp_path, mirror_table({upstream.address: members}, answer_timeout='"6s"')) as mirror:
            asked = []
            for _ in range(2):
                answer = mirror.get(path)
                assert (answer.status_code, answer.headers.get("Warning", "")[:3]) == (200, "110")
                asked.append(len(came))
            # The second client doesn't wait for what the first one has found out.
            assert asked[0] == asked[1] > 0


def test_a_replica_that_hangs_is_no_failure(tmp_path: Path) -> None:
    with RegistryServer({NAME: IMAGE}) as upstream, hanging() as stuck:
        (port,) = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        settings = {"replicas": str([url, f"http://{stuck}"]), "replica": f'"{url}"', "answer_timeout": '"4s"'}
        with running_mirror(tmp_path, mirror_table({upstream.address: ""}, **settings), port=port) as mirror:
            for rest in ("manifests/1", *(f"blobs/{digest}" for digest in IMAGE.blobs)):
                assert mirror.get(f"/v2/app/{rest}?ns={upstream.address}").status_code == 200


def test_asking_for_sizes_fills_no_quota(tmp_path: Path) -> None:
    with (
        RegistryServer({NAME: IMAGE}) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: 'quota = "1536Ki"'})) as mirror,
    ):
        path = f"/v2/app/blobs/{LAYER.digest}?ns={upstream.address}"
        for _ in range(3):
            assert mirror.get(path, "HEAD").status_code == 200
        assert mirror.mirror.usage()[upstream.address][0] == 0
        assert mirror.get(path).status_code == 200
        assert mirror.mirror.usage()[upstream.address][0] == LAYER.size
        # Damaged at rest, it doesn't count twice.
        with mirror.workers.lend() as store:
            file = store.content.path(LAYER.digest)
        file.chmod(0o644)
        file.write_bytes(b"short")
        assert Digest.of(mirror.get(path).content) == LAYER.digest


def test_a_range_of_a_blob_that_does_not_verify_is_never_complete(tmp_path: Path) -> None:
    lying = FaultRule(Flip(), Where(reference=str(LAYER.digest), method="GET"), times=0)
    with (
        RegistryServer({NAME: IMAGE}, faults=[lying]) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror,
        contextlib.suppress(httpx.RemoteProtocolError),  # where the answer began before the blob was judged
    ):
        answer = mirror.get(f"/v2/app/blobs/{LAYER.digest}?ns={upstream.address}", Range="bytes=0-999")
        assert answer.status_code == 404


def test_a_mirror_that_would_ask_itself(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    members = f'endpoints = ["http://127.0.0.1:{port}"]'
    with running_mirror(tmp_path, mirror_table({"registry.example": members}), port=port) as mirror:
        assert mirror.get("/v2/app/manifests/1?ns=registry.example").status_code == 404
        assert mirror.mirror.counters.requests() == {("registry.example", "manifest", "missing"): 1}


def test_a_wrong_size_is_believed_once(tmp_path: Path) -> None:
    """A manifest of another repository that names the blob with another size disturbs nobody."""
    wrong = json.loads(OTHER.documents[OTHER.target.digest].data)
    wrong["layers"][0] = {**LAYER.members(), "size": LAYER.size - 70_000}
    raw = json.dumps(wrong).encode()
    with RegistryServer({NAME: IMAGE, "registry.example/evil:1": OTHER}) as upstream:
        repository = upstream.library.open("registry.example", "evil")
        stored = repository.documents[OTHER.target.digest]
        repository.documents[Digest.of(raw)] = StoredDocument(stored.media_type, BytesBody(raw))
        repository.tags["1"] = Digest.of(raw)
        with running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
            mirror.get(f"/v2/evil/manifests/1?ns={upstream.address}")
            with contextlib.suppress(httpx.TransportError):
                assert mirror.get(f"/v2/evil/blobs/{LAYER.digest}?ns={upstream.address}").status_code == 404
            mirror.get(f"/v2/app/manifests/1?ns={upstream.address}")
            answer = mirror.get(f"/v2/app/blobs/{LAYER.digest}?ns={upstream.address}")
            assert Digest.of(answer.content) == LAYER.digest


@pytest.mark.parametrize(
    "path", ["app:7/manifests/1", "app@sha256:00/manifests/1", "app//x/manifests/1", "/manifests/1"]
)
def test_names_that_are_none(tmp_path: Path, path: str) -> None:
    with (
        RegistryServer({NAME: IMAGE}) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror,
    ):
        assert mirror.get(f"/v2/{path}?ns={upstream.address}").status_code == 404


@pytest.mark.parametrize("asked", ["bytes=5-2", "bytes=x", "bytes=0-0,2-3", "items=0-1", f"bytes=0-{'9' * 5000}"])
@pytest.mark.parametrize("is_warm", [True, False])
def test_ranges_that_are_none_are_overlooked(tmp_path: Path, asked: str, is_warm: bool) -> None:
    with (
        RegistryServer({NAME: IMAGE}) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror,
    ):
        path = f"/v2/app/blobs/{LAYER.digest}?ns={upstream.address}"
        if is_warm:
            mirror.get(path)
        answer = mirror.get(path, Range=asked)
        assert (answer.status_code, len(answer.content)) in {(200, LAYER.size), (206, LAYER.size)}
        behind = mirror.get(path, Range=f"bytes={LAYER.size}-")
        assert behind.status_code == 416
        assert behind.headers["Content-Range"] == f"bytes */{LAYER.size}"


def test_what_one_upstream_sent_is_not_shown_before_it_is_verified(tmp_path: Path) -> None:
    """A private upstream broke off; another one that claims the same digest doesn't continue what is here of it."""
    stalling = FaultRule(Stall(at=LAYER.size - 1000, seconds=60.0), Where(reference=str(LAYER.digest), method="GET"))
    lying = FaultRule(Flip(at=0), Where(reference=str(LAYER.digest), method="GET"), times=0)
    with (
        RegistryServer({NAME: IMAGE}, faults=[stalling]) as private,
        RegistryServer({NAME: IMAGE}, faults=[lying]) as public,
    ):
        table = mirror_table({private.address: "", public.address: ""})
        with running_mirror(tmp_path, table) as mirror:
            got = stream(f"{mirror.url}/v2/app/blobs/{LAYER.digest}?ns={private.address}", stop_at=1 << 19)
        with running_mirror(tmp_path, table) as mirror:
            shown = stream(f"{mirror.url}/v2/app/blobs/{LAYER.digest}?ns={public.address}", stop_at=LAYER.size)
        assert len(shown) < LAYER.size
        assert shown[:1] != got[:1]


def stream(url: str, *, stop_at: int) -> bytes:
    """What comes of a body until it is cut off, or is so long."""
    got = b""
    with contextlib.suppress(httpx.TransportError), httpx.stream("GET", url, timeout=60, verify=PLAIN) as answer:
        for piece in answer.iter_raw():
            got += piece
            if len(got) >= stop_at:
                break
    return got


def test_who_waits_behind_blobs_that_do_not_come_is_told_so_too(tmp_path: Path) -> None:
    with RegistryServer(
        {NAME: IMAGE}, faults=[FaultRule(SlowHead(seconds=60.0), Where(kind="blob"), times=0)]
    ) as upstream:
        table = mirror_table({upstream.address: "max_connections = 1"}, answer_timeout='"1s"')
        with running_mirror(tmp_path, table) as mirror:
            assert mirror.get(f"/v2/app/manifests/1?ns={upstream.address}").status_code == 200
            urls = [f"{mirror.url}/v2/app/blobs/{digest}?ns={upstream.address}" for digest in IMAGE.blobs]
            with ThreadPoolExecutor(len(urls)) as clients:
                answers = list(clients.map(lambda url: httpx.get(url, timeout=120), urls))
        assert [answer.status_code for answer in answers] == [404] * len(urls)
