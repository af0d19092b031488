"""Quotas, leases, and what a crash or a lost catalogue leaves."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING, Final

import pytest

from imagestore import Digest, ImageStore
from imagestore.errors import StoreFullError
from imagestore.mirror import Upstream
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.catalogue_database import SqliteCatalogueDatabase
from imagestore.mirror.counters import MirrorCounters
from imagestore.mirror.retention import RESERVED_SECONDS, Retention, lease_of
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import StoredDocument
from tests.support.mirror import RunningMirror, mirror_table, running_mirror

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.testing import Image

LAYER_BYTES: Final = 1 << 20
IMAGES: Final = {
    f"registry.example/app:{number}": build_image("linux/amd64", layers=[synthetic_layer(f"q{number}", LAYER_BYTES)])
    for number in range(3)
}


def pull(mirror: RunningMirror, upstream: RegistryServer, number: int) -> int:
    """As a client does; the last status."""
    image = image_of(number)
    answer = mirror.get(f"/v2/app/manifests/{number}?ns={upstream.address}")
    for blob in (image.manifests[0].config, *image.manifests[0].layers):
        answer = mirror.get(f"/v2/app/blobs/{blob.digest}?ns={upstream.address}")
        if answer.status_code != 200:
            break
    return answer.status_code


def image_of(number: int) -> Image:
    return IMAGES[f"registry.example/app:{number}"]


def layer_of(number: int) -> Digest:
    return image_of(number).manifests[0].layers[0].digest


def is_here(mirror: RunningMirror, number: int) -> bool:
    with mirror.workers.lend() as store:
        return store.content.exists(layer_of(number))


def test_what_was_served_least_recently_is_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.mirror.retention.SPARED_SECONDS", -1.0)
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: 'quota = "2200Ki"\ntag_freshness = "1h"'})
        with running_mirror(tmp_path, table) as mirror:
            assert [pull(mirror, upstream, number) for number in (0, 1, 2)] == [200, 200, 200]
            assert [is_here(mirror, number) for number in (0, 1, 2)] == [False, True, True]
            used, quota = mirror.mirror.usage()[upstream.address]
            assert quota == 2200 * 1024
            assert used <= quota
            (_, numbers), *_ = mirror.mirror.counters.by_upstream()
            assert numbers["evicted_bytes"] > LAYER_BYTES
            assert pull(mirror, upstream, 0) == 200


def test_what_was_served_a_moment_ago_stays_and_the_rest_is_refused(tmp_path: Path) -> None:
    with (
        RegistryServer(IMAGES) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: 'quota = "2200Ki"'})) as mirror,
    ):
        assert [pull(mirror, upstream, number) for number in (0, 1, 2)] == [200, 200, 404]
        assert [is_here(mirror, number) for number in (0, 1, 2)] == [True, True, False]
        (_, numbers), *_ = mirror.mirror.counters.by_upstream()
        assert numbers["quota_refusals"] == 1


def test_a_collection_takes_nothing_that_is_served(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        # A manifest was served and its blobs not yet: from then on they are held.
        mirror.get(f"/v2/app/manifests/0?ns={upstream.address}")
        with mirror.workers.lend() as store:
            held = store.metadata.leases.content(lease_of(upstream.address))
            assert layer_of(0) in held
        assert pull(mirror, upstream, 0) == 200
        with mirror.workers.lend() as store:
            assert not store.collect_garbage().digests
        assert is_here(mirror, 0)


def test_a_lost_catalogue_loses_only_what_it_can_fetch_again(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: ""})
        with running_mirror(tmp_path, table) as mirror:
            pull(mirror, upstream, 0)
        for damage in (None, b"no database at all" * 100):
            path = tmp_path / "mirror.db"
            path.unlink() if damage is None else path.write_bytes(damage)
            with running_mirror(tmp_path, table) as mirror:
                with mirror.workers.lend() as store:
                    assert not [lease for lease in store.metadata.leases.find() if lease.id.startswith("mirror/")]
                    store.collect_garbage()
                assert pull(mirror, upstream, 0) == 200


def test_leases_follow_the_catalogue_at_the_start(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: ""})
        with running_mirror(tmp_path, table) as mirror:
            pull(mirror, upstream, 0)
            lease, other = lease_of(upstream.address), Digest.of(b"evicted just before a crash")
            with mirror.workers.lend() as store:
                store.metadata.leases.add_content(lease, [other])
                store.metadata.leases.remove_content(lease, [layer_of(0)])
        with running_mirror(tmp_path, table) as mirror, mirror.workers.lend() as store:
            held = store.metadata.leases.content(lease)
            assert other not in held
            assert layer_of(0) in held


def test_a_manifest_with_a_wrong_size_uncounts_nothing(tmp_path: Path) -> None:
    """Nor does it keep the blob from those whose manifests are right."""
    image = image_of(0)
    wrong = json.loads(image.documents[image.target.digest].data)
    wrong["layers"][0]["size"] = 7
    raw = json.dumps(wrong).encode()
    with RegistryServer(IMAGES) as upstream:
        repository = upstream.library.open("registry.example", "app")
        repository.documents[Digest.of(raw)] = StoredDocument(image.target.media_type, BytesBody(raw))
        repository.tags["wrong"] = Digest.of(raw)
        with running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
            assert pull(mirror, upstream, 0) == 200
            assert mirror.get(f"/v2/app/manifests/wrong?ns={upstream.address}").status_code == 200
            for _ in range(2):
                assert pull(mirror, upstream, 0) == 200
            assert mirror.mirror.usage()[upstream.address][0] > LAYER_BYTES
            assert upstream.ledger.count(method="GET", digest=layer_of(0)) == 1


def test_a_new_table_lets_go_of_nothing_that_is_being_noted(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        pull(mirror, upstream, 0)
        lease, other = lease_of(upstream.address), Digest.of(b"held, and noted in a moment")
        with mirror.workers.lend() as store:
            store.metadata.leases.add_content(lease, [other])
        mirror.call(mirror.mirror.reload())
        with mirror.workers.lend() as store:
            assert other in store.metadata.leases.content(lease)


def test_a_request_follows_the_table_of_a_reload(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream, running_mirror(tmp_path, mirror_table({upstream.address: ""})) as mirror:
        before = mirror.mirror.upstreams
        repository = before.repository("app", upstream.address, is_for_replica=False)
        mirror.call(mirror.mirror.reload())
        assert repository.table is mirror.mirror.upstreams
        assert repository.table is not before


def test_what_is_here_is_served_though_its_use_cannot_be_noted(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: ""})
        with running_mirror(tmp_path, table) as mirror:
            pull(mirror, upstream, 0)
        with running_mirror(tmp_path, table) as mirror:
            full = sqlite3.connect(tmp_path / "mirror.db")
            full.execute(
                "CREATE TRIGGER full BEFORE UPDATE ON mirror_document BEGIN SELECT raise(FAIL, 'no space'); END"
            )
            full.close()
            assert pull(mirror, upstream, 0) == 200


def test_what_another_upstream_brought_counts_too(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream, RegistryServer(IMAGES) as small:
        table = mirror_table({upstream.address: "", small.address: 'quota = "512Ki"'})
        with running_mirror(tmp_path, table) as mirror:
            assert pull(mirror, upstream, 0) == 200
            assert pull(mirror, small, 0) == 404
            used, quota = mirror.mirror.usage()[small.address]
            assert quota is not None
            assert used <= quota
            # What has room still comes.
            config = image_of(1).manifests[0].config
            assert mirror.get(f"/v2/app/blobs/{config.digest}?ns={small.address}").status_code == 200


def test_two_fetches_of_one_blob_reserve_it_once(tmp_path: Path) -> None:
    with (
        RegistryServer(IMAGES) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: 'quota = "1536Ki"'})) as mirror,
        mirror.workers.lend() as store,
    ):
        catalogue = Catalogue(SqliteCatalogueDatabase(tmp_path / "other.db"))
        retention = Retention(catalogue, MirrorCounters())
        settings = mirror.mirror.upstreams.settings.upstreams[upstream.address]
        blob, other = (image_of(number).manifests[0].layers[0] for number in (0, 1))
        first, second = (retention.reserve(store, settings, blob) for _ in range(2))
        retention.end_reservation(first)
        # The second one is still being fetched.
        with pytest.raises(StoreFullError):
            retention.reserve(store, settings, other)
        retention.end_reservation(second)
        retention.reserve(store, settings, other)
        catalogue.close()


def test_a_replica_that_starts_again_has_reserved_nothing(tmp_path: Path) -> None:
    clock = [0.0]
    upstream = Upstream("r.example", quota_bytes=LAYER_BYTES * 3 // 2)
    blob, other = (image_of(number).manifests[0].layers[0] for number in (0, 1))
    with (
        ImageStore(tmp_path) as store,
        contextlib.closing(Catalogue(SqliteCatalogueDatabase(tmp_path / "mirror.db"))) as catalogue,
    ):

        def replica(name: str) -> Retention:
            made = Retention(catalogue, MirrorCounters(), owner=name, clock=lambda: clock[0])
            made.start(store, is_alone=False)
            return made

        one, two = replica("a"), replica("b")
        one.reserve(store, upstream, blob)
        for clock[0] in (0.0, RESERVED_SECONDS - 1, RESERVED_SECONDS + 1):
            with pytest.raises(StoreFullError):
                two.reserve(store, upstream, other)
            one.renew_reservations()
        replica("a")
        two.end_reservation(two.reserve(store, upstream, other))
        one.reserve(store, upstream, blob)
