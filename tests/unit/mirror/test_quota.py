"""No request evicts more than it brings: what is too large, fails, or lies about its size evicts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
import pytest

from imagestore.content.ingest import LocalIngestWriter
from imagestore.errors import StoreFullError
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.faults import ExtraBytes, Flip, Refuse, Reset, Truncate, Unframed, WrongLength
from tests.support.mirror import RunningMirror, mirror_table, push_naming, running_mirror
from tests.unit.mirror.test_retention import IMAGES, LAYER_BYTES, pull

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore import Digest
    from imagestore.testing.faults import Effect

#: For the three images, and not for one more of them.
QUOTA: Final = "3500Ki"
LARGE: Final = build_image("linux/amd64", layers=[synthetic_layer("large", 4 * LAYER_BYTES)])
FITTING: Final = build_image("linux/amd64", layers=[synthetic_layer("fitting", 3 * LAYER_BYTES)])
SMALL: Final = build_image("linux/amd64", layers=[synthetic_layer("small", 4096)])
OTHERS: Final = {
    "registry.example/large:1": LARGE,
    "registry.example/fitting:1": FITTING,
    "registry.example/small:1": SMALL,
}
LAYER: Final = FITTING.manifests[0].layers[0]


@pytest.fixture(autouse=True)
def nothing_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.mirror.retention.SPARED_SECONDS", -1.0)


def filled(mirror: RunningMirror, upstream: RegistryServer) -> set[Digest]:
    """Pull what fits; what is then here."""
    assert [pull(mirror, upstream, number) for number in range(3)] == [200] * 3
    return here(mirror)


def here(mirror: RunningMirror) -> set[Digest]:
    with mirror.workers.lend() as store:
        return {info.digest for info in store.content.walk()}


def ask(mirror: RunningMirror, upstream: RegistryServer, path: str, digest: Digest) -> int:
    """Ask for a manifest and a blob of it; the status, 0 for an answer that broke off."""
    assert mirror.get(f"/v2/{path}/manifests/1?ns={upstream.address}").status_code == 200
    try:
        return mirror.get(f"/v2/{path}/blobs/{digest}?ns={upstream.address}").status_code
    except httpx.TransportError:
        return 0


def table(upstream: RegistryServer) -> str:
    return mirror_table({upstream.address: f'quota = "{QUOTA}"\ntag_freshness = "1h"'}, answer_timeout='"2s"')


def test_a_blob_larger_than_the_quota_evicts_nothing(tmp_path: Path) -> None:
    layer = LARGE.manifests[0].layers[0].digest
    with RegistryServer({**IMAGES, **OTHERS}) as upstream, running_mirror(tmp_path, table(upstream)) as mirror:
        before = filled(mirror, upstream)
        for _ in range(2):
            assert ask(mirror, upstream, "large", layer) == 404
            assert mirror.get(f"/v2/large/blobs/{layer}?ns={upstream.address}", Range="bytes=0-9").status_code == 404
        assert here(mirror) >= before
        assert upstream.ledger.count(method="GET", digest=layer) == 0


@pytest.mark.parametrize(
    "effect",
    [
        Refuse(status=404),
        Refuse(status=500),
        Flip(),
        Reset(before_head=True),
        Truncate(),
        Truncate(framing="chunked"),
        Truncate(framing="close"),
        ExtraBytes(),
        WrongLength(1),
        WrongLength(-1),
    ],
    ids=str,
)
def test_a_fetch_that_fails_evicts_nothing(tmp_path: Path, effect: Effect) -> None:
    failing = FaultRule(effect, Where(reference=str(LAYER.digest), method="GET"), times=0)
    with (
        RegistryServer({**IMAGES, **OTHERS}, faults=[failing]) as upstream,
        running_mirror(tmp_path, table(upstream)) as mirror,
    ):
        before = filled(mirror, upstream)
        for _ in range(2):
            assert ask(mirror, upstream, "fitting", LAYER.digest) in {404, 0}
        assert here(mirror) >= before


@pytest.mark.parametrize("claimed", [0, 1, LAYER_BYTES, 3_000_000, 3500 << 10, (3500 << 10) + 1, 1 << 62])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_manifest_that_lies_about_a_size_evicts_nothing(tmp_path: Path, claimed: int, framing: str) -> None:
    layer = SMALL.manifests[0].layers[0].digest
    unframed = FaultRule(Unframed(framing), Where(reference=str(layer), method="GET"), times=0)
    with (
        RegistryServer({**IMAGES, **OTHERS}, faults=[unframed]) as upstream,
        running_mirror(tmp_path, table(upstream)) as mirror,
    ):
        push_naming(upstream, "small", SMALL, size=claimed)
        before = filled(mirror, upstream)
        assert ask(mirror, upstream, "small", layer) in {404, 0}
        assert here(mirror) >= before


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_what_comes_makes_room_for_itself_and_no_more(tmp_path: Path, framing: str) -> None:
    layer = build_image("linux/amd64", layers=[synthetic_layer("one more", LAYER_BYTES)])
    blob = layer.manifests[0].layers[0]
    unframed = FaultRule(Unframed(framing), Where(reference=str(blob.digest), method="GET"), times=0)
    with (
        RegistryServer({**IMAGES, "registry.example/more:1": layer}, faults=[unframed]) as upstream,
        running_mirror(tmp_path, table(upstream)) as mirror,
    ):
        before = filled(mirror, upstream)
        assert ask(mirror, upstream, "more", blob.digest) == 200
        gone = before - here(mirror)
        oldest = IMAGES["registry.example/app:0"]
        assert gone == {*oldest.blobs, *oldest.documents}
        used, quota = mirror.mirror.usage()[upstream.address]
        assert quota is not None
        assert used <= quota


def test_asking_whether_others_have_what_is_here_fills_no_quota(tmp_path: Path) -> None:
    """A HEAD brings nothing, also where the bytes are on the disk by another upstream."""
    with RegistryServer({**IMAGES, **OTHERS}) as large, RegistryServer({**IMAGES, **OTHERS}) as small:
        members = {large.address: "", small.address: f'quota = "{QUOTA}"\ntag_freshness = "1h"'}
        with running_mirror(tmp_path, mirror_table(members)) as mirror:
            before = filled(mirror, small)
            for path in ("large", "fitting"):
                assert mirror.get(f"/v2/{path}/manifests/1?ns={large.address}").status_code == 200
            blobs = [(f"/v2/{name.partition('/')[2][:-2]}/blobs", image) for name, image in OTHERS.items()]
            for path, image in blobs:
                layer = image.manifests[0].layers[0].digest
                assert mirror.get(f"{path}/{layer}?ns={large.address}").status_code == 200
            used = mirror.mirror.usage()[small.address][0]
            for path, image in blobs:
                layer = image.manifests[0].layers[0].digest
                assert mirror.get(f"{path}/{layer}?ns={small.address}", "HEAD").status_code == 200
            assert mirror.mirror.usage()[small.address][0] == used
            assert ask(mirror, small, "small", SMALL.manifests[0].layers[0].digest) == 200
            assert here(mirror) >= before


def test_documents_count_and_are_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many documents that are served at the same time don't exceed the quota."""
    monkeypatch.setattr("imagestore.mirror.retention.SPARED_SECONDS", 600.0)
    with RegistryServer(dict(OTHERS)) as upstream:
        size = SMALL.target.size
        members = f'quota = "{5 * size}"\ntag_freshness = "1h"'
        with running_mirror(tmp_path, mirror_table({upstream.address: members})) as mirror:
            statuses = []
            for number in range(8):
                push_naming(upstream, f"small{number}", build_image("linux/amd64", seed=str(number)))
                answer = mirror.get(f"/v2/small{number}/manifests/1?ns={upstream.address}")
                statuses.append(answer.status_code)
            assert set(statuses) == {200, 503}
            used, quota = mirror.mirror.usage()[upstream.address]
            assert quota is not None
            assert used <= quota


def test_a_full_disk_keeps_no_half_of_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreFullError("no space is left")

    with RegistryServer(dict(OTHERS)) as upstream, running_mirror(tmp_path, table(upstream)) as mirror:
        assert mirror.get(f"/v2/fitting/manifests/1?ns={upstream.address}").status_code == 200
        monkeypatch.setattr(LocalIngestWriter, "write", full)
        assert ask(mirror, upstream, "fitting", LAYER.digest) in {404, 0}
        with mirror.workers.lend() as store:
            assert list(store.content.statuses()) == []
