"""Replicas on one store and one catalogue, which send copies of their own: what a shared store's replicas do."""

from __future__ import annotations

import contextlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import httpx

from imagestore import Digest
from imagestore.mirror.backing import Backing
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.catalogue_database import SqliteCatalogueDatabase
from imagestore.mirror.local_copies import LocalCopies
from imagestore.mirror.retention import lease_of
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from tests.support.mirror import RunningMirror, mirror_table, running_mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imagestore.content import ContentStore
    from imagestore.testing import Image

LAYER_BYTES: Final = 1 << 20
IMAGES: Final = {
    f"registry.example/app:{number}": build_image("linux/amd64", layers=[synthetic_layer(f"s{number}", LAYER_BYTES)])
    for number in range(5)
}


def image_of(number: int) -> Image:
    return IMAGES[f"registry.example/app:{number}"]


def opener(folder: Path, name: str) -> Callable[..., Backing]:
    """As a replica on a shared store does it: rows that others have open, and copies on its own disk."""

    def opened(store: Any, workers: Any, _: Any, loop: Any) -> Backing:
        @contextlib.contextmanager
        def lend() -> Iterator[ContentStore]:
            with workers.lend() as lent:
                yield lent.content

        catalogue = Catalogue(SqliteCatalogueDatabase(folder / "shared.db"))
        copies = LocalCopies(folder / f"copies-{name}", 64 * LAYER_BYTES, lend, loop)

        def close() -> None:
            copies.close()
            catalogue.close()

        return Backing(catalogue, copies, None, is_alone=False, close=close)

    return opened


@contextlib.contextmanager
def replicas(folder: Path, table: str, *names: str) -> Iterator[list[RunningMirror]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(running_mirror(folder / "root", table, opener=opener(folder, name))) for name in names
        ]


def pull(mirror: RunningMirror, upstream: RegistryServer, number: int) -> int:
    image = image_of(number)
    answer = mirror.get(f"/v2/app/manifests/{number}?ns={upstream.address}")
    for blob in (image.manifests[0].config, *image.manifests[0].layers):
        answer = mirror.get(f"/v2/app/blobs/{blob.digest}?ns={upstream.address}")
        if answer.status_code != 200:
            break
        assert Digest.of(answer.content) == blob.digest
    return answer.status_code


def test_what_one_replica_fetched_all_of_them_have(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: 'tag_freshness = "1h"'}, answer_timeout='"60s"')
        with replicas(tmp_path, table, "one", "two") as (one, two):
            assert pull(one, upstream, 0) == 200
            asked = len(upstream.ledger.entries)
            assert [pull(mirror, upstream, 0) for mirror in (two, one, two)] == [200] * 3
            assert len(upstream.ledger.entries) == asked
            layer = image_of(0).manifests[0].layers[0]
            part = two.get(f"/v2/app/blobs/{layer.digest}?ns={upstream.address}", Range="bytes=10-19")
            assert (part.status_code, len(part.content)) == (206, 10)
            assert one.mirror.usage() == two.mirror.usage()
        # A replica loses nothing with its disk, and nor do others when it starts.
        shutil.rmtree(tmp_path / "copies-one")
        with replicas(tmp_path, table, "one", "two") as (one, two):
            assert [pull(mirror, upstream, 0) for mirror in (one, two)] == [200, 200]
            assert len(upstream.ledger.entries) == asked


def test_a_quota_counts_for_all_replicas(tmp_path: Path) -> None:
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: 'quota = "2200Ki"'}, answer_timeout='"60s"')
        with replicas(tmp_path, table, "one", "two") as (one, two):
            # All were served a moment ago.
            assert [pull(one, upstream, 0), pull(two, upstream, 1)] == [200, 200]
            assert [pull(one, upstream, 2), pull(two, upstream, 3)] == [404, 404]
            used, quota = one.mirror.usage()[upstream.address]
            assert quota is not None
            assert used <= quota


def test_what_one_replica_evicts_is_nowhere_any_more(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("imagestore.mirror.retention.SPARED_SECONDS", -1.0)
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: 'quota = "2200Ki"\ntag_freshness = "1h"'}, answer_timeout='"60s"')
        with replicas(tmp_path, table, "one", "two") as pair:
            with ThreadPoolExecutor(8) as clients:
                wanted = [(mirror, number) for number in (0, 1, 2, 3) for mirror in pair]
                answers = list(clients.map(lambda each: pull(each[0], upstream, each[1]), wanted))
            assert set(answers) <= {200, 404}
            assert 200 in answers
            assert [pull(mirror, upstream, 3) for mirror in pair] == [200, 200]
            # Replicas that fetch at the same moment may go over the quota; the next fetch makes room.
            assert pull(pair[0], upstream, 4) == 200
            used, quota = pair[0].mirror.usage()[upstream.address]
            assert quota is not None
            assert used <= quota
            with pair[0].workers.lend() as store:
                held = set(store.metadata.leases.content(lease_of(upstream.address)))
                with contextlib.closing(Catalogue(SqliteCatalogueDatabase(tmp_path / "shared.db"))) as rows:
                    # The lease holds what the catalogue names, and nothing that was evicted.
                    assert held == rows.contents(upstream.address)
                    assert rows.evicted(upstream.address) == ()
                assert {info.digest for info in store.content.walk()} <= held


def test_damage_in_the_store_is_fetched_again(tmp_path: Path) -> None:
    layer = image_of(0).manifests[0].layers[0]
    with RegistryServer(IMAGES) as upstream:
        table = mirror_table({upstream.address: 'tag_freshness = "1h"'}, answer_timeout='"60s"')
        with replicas(tmp_path, table, "one") as (one,):
            assert pull(one, upstream, 0) == 200
            with one.workers.lend() as store:
                path = store.content.path(layer.digest)
            # Another file: of the one that was fetched, the copy may still be under way.
            path.unlink()
            path.write_bytes(b"?" * LAYER_BYTES)
            # The copy here is whole.
            assert pull(one, upstream, 0) == 200
            assert upstream.ledger.count(method="GET", digest=layer.digest) == 1
        with replicas(tmp_path, table, "two") as (two,):
            # It reads along, is cut off, and asks again.
            statuses = [0]
            while statuses[-1] != 200:
                assert len(statuses) < 10
                try:
                    statuses.append(pull(two, upstream, 0))
                except httpx.RemoteProtocolError:
                    statuses.append(0)
            assert upstream.ledger.count(method="GET", digest=layer.digest) == 2
