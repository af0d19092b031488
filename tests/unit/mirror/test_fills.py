"""Blobs on their way: read along, never finished unless they verify, resumed, and refused in time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from imagestore import Digest
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.faults import Drip, Flip, Refuse, SlowHead, Truncate
from tests.support.mirror import mirror_table, running_mirror
from tests.support.patience import until
from tests.support.plain_http import PLAIN

if TYPE_CHECKING:
    from pathlib import Path

LAYER_BYTES: Final = 2 << 20
IMAGE: Final = build_image("linux/amd64", layers=[synthetic_layer("fill", LAYER_BYTES)])
LAYER: Final = IMAGE.manifests[0].layers[0]
NAME: Final = "registry.example/team/app:1"


def serving(*faults: FaultRule) -> RegistryServer:
    return RegistryServer({NAME: IMAGE}, faults=faults)


def layer_path(upstream: RegistryServer) -> str:
    return f"/v2/team/app/blobs/{LAYER.digest}?ns={upstream.address}"


def test_who_asks_later_reads_along_from_the_start(tmp_path: Path) -> None:
    slow = FaultRule(Drip(bytes_per_second=LAYER_BYTES / 2), Where(reference=str(LAYER.digest), method="GET"))
    with serving(slow) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        bodies: list[bytes] = []

        def ask() -> None:
            bodies.append(mirror.get(layer_path(upstream)).content)

        first = threading.Thread(target=ask)
        first.start()
        with httpx.stream("GET", f"{mirror.url}{layer_path(upstream)}", verify=PLAIN) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            # The first client is not through yet, and this one has bytes.
            assert not bodies
            for _ in pieces:
                pass
        first.join()
        assert Digest.of(bodies[0]) == LAYER.digest
        upstream.ledger.assert_single_flight(LAYER.digest)


def test_a_client_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    slow = FaultRule(Drip(bytes_per_second=LAYER_BYTES), Where(reference=str(LAYER.digest), method="GET"))
    with serving(slow) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        with httpx.stream("GET", f"{mirror.url}{layer_path(upstream)}", verify=PLAIN) as answer:
            next(answer.iter_raw())
        assert Digest.of(mirror.get(layer_path(upstream)).content) == LAYER.digest
        upstream.ledger.assert_single_flight(LAYER.digest)


def test_damage_is_fetched_again_and_never_served_whole(tmp_path: Path) -> None:
    flipped = FaultRule(Flip(), Where(reference=str(LAYER.digest), method="GET"), times=1)
    with serving(flipped) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        mirror.serve_whole(layer_path(upstream), LAYER.digest)


def test_an_upstream_that_lies_serves_nobody(tmp_path: Path) -> None:
    with (
        serving(FaultRule(Flip(), Where(reference=str(LAYER.digest), method="GET"), times=0)) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror,
    ):

        def is_refused() -> bool:
            try:
                return mirror.get(layer_path(upstream)).status_code == 404
            except httpx.RemoteProtocolError:
                return False

        # It is tried once more, in vain; and then not again for every client that comes.
        until(is_refused, "the layer is taken for missing")
        asked = upstream.ledger.count(kind="blob", method="GET")
        assert mirror.get(layer_path(upstream)).status_code == 404
        assert upstream.ledger.count(kind="blob", method="GET") == asked
        with mirror.workers.lend() as store:
            assert not store.content.exists(LAYER.digest)


def test_a_transfer_that_breaks_is_resumed(tmp_path: Path) -> None:
    cut = FaultRule(Truncate(), Where(reference=str(LAYER.digest), method="GET"), times=2)
    with serving(cut) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        assert Digest.of(mirror.get(layer_path(upstream)).content) == LAYER.digest
        upstream.ledger.assert_bytes_fetched(LAYER.digest, LAYER_BYTES)


def test_an_answer_in_time_is_no(tmp_path: Path) -> None:
    late = FaultRule(SlowHead(seconds=60.0), Where(kind="blob"), times=0)
    settings = mirror_table({"PLACE": ""}, answer_timeout='"300ms"')
    with serving(late) as upstream, running_mirror(tmp_path, settings.replace("PLACE", upstream.address)) as mirror:
        assert mirror.get(layer_path(upstream)).status_code == 404


@pytest.mark.parametrize(
    ("status", "kind", "answered"), [(500, "blob", 404), (429, "blob", 404), (429, "manifest", 503)]
)
def test_trouble_upstream_is_not_passed_on(tmp_path: Path, status: int, kind: str, answered: int) -> None:
    trouble = FaultRule(Refuse(status=status), Where(kind=kind), times=0)
    settings = mirror_table({"PLACE": ""}, answer_timeout='"2s"')
    with serving(trouble) as upstream, running_mirror(tmp_path, settings.replace("PLACE", upstream.address)) as mirror:
        rest = f"blobs/{LAYER.digest}" if kind == "blob" else "manifests/1"
        answer = mirror.get(f"/v2/team/app/{rest}?ns={upstream.address}")
        assert answer.status_code == answered
        assert "WWW-Authenticate" not in answer.headers


def test_logins_are_never_asked_for(tmp_path: Path) -> None:
    with (
        serving(FaultRule(Refuse(status=401), Where(), times=0)) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror,
    ):
        for rest in ("manifests/1", f"blobs/{LAYER.digest}", "tags/list"):
            answer = mirror.get(f"/v2/team/app/{rest}?ns={upstream.address}")
            assert answer.status_code == 404
            assert "WWW-Authenticate" not in answer.headers


def test_damage_at_rest_is_fetched_again(tmp_path: Path) -> None:
    with serving() as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        mirror.get(layer_path(upstream))
        with mirror.workers.lend() as store:
            path = store.content.path(LAYER.digest)
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:1000])
        assert Digest.of(mirror.get(layer_path(upstream)).content) == LAYER.digest


def test_a_mirror_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """What stopped in the middle stays on disk, and the next start fetches the rest."""
    slow = FaultRule(Drip(bytes_per_second=LAYER_BYTES), Where(reference=str(LAYER.digest), method="GET"), times=1)
    with serving(slow) as upstream:
        table = mirror_table({upstream.address: ""})
        with (
            running_mirror(tmp_path, table) as first,
            httpx.stream("GET", f"{first.url}{layer_path(upstream)}", verify=PLAIN) as answer,
        ):
            pieces = answer.iter_raw()
            next(pieces)
            next(pieces)
        with running_mirror(tmp_path, table) as second:
            assert Digest.of(second.get(layer_path(upstream)).content) == LAYER.digest
        *_, last = upstream.ledger.select(digest=LAYER.digest)
        assert last.range.startswith("bytes=")
        upstream.ledger.assert_bytes_fetched(LAYER.digest, LAYER_BYTES, ratio=1.6)
