"""What runtime handlers and platforms will want is fetched before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from imagestore.testing import RegistryServer, build_index, synthetic_layer
from tests.support.mirror import mirror_table, running_mirror
from tests.support.patience import until

if TYPE_CHECKING:
    from pathlib import Path

PLATFORMS: Final = ("linux/amd64", "linux/arm64", "linux/riscv64")
IMAGE: Final = build_index(list(PLATFORMS), seed="prefetch", shared=[synthetic_layer("p", 1 << 17)])


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ('handlers = ["arm"]', {"linux/arm64"}),
        ('handlers = ["runc", "arm"]', {"linux/amd64", "linux/arm64"}),
        ('platforms = ["linux/riscv64", "linux/s390x"]', {"linux/riscv64"}),
    ],
)
def test_the_manifests_that_are_chosen(tmp_path: Path, members: str, wanted: set[str]) -> None:
    with (
        RegistryServer({"registry.example/app:1": IMAGE}) as upstream,
        running_mirror(tmp_path, mirror_table({upstream.address: members})) as mirror,
    ):
        assert mirror.get(f"/v2/app/manifests/1?ns={upstream.address}").status_code == 200
        expected = {
            part.digest
            for platform, manifest in zip(PLATFORMS, IMAGE.manifests, strict=True)
            if platform in wanted
            for part in (manifest.descriptor, manifest.config, *manifest.layers)
        }

        def is_whole() -> bool:
            with mirror.workers.lend() as store:
                return all(store.content.exists(digest) for digest in expected)

        until(is_whole, "what is wanted is here")
        with mirror.workers.lend() as store:
            here = {info.digest for info in store.content.walk()}
        assert here == expected | {IMAGE.target.digest}
        # No client has asked for these.
        assert mirror.mirror.counters.requests() == {(upstream.address, "manifest", "fetched"): 1}
