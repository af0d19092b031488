"""Our own store against every invalid image and every fault tape of the kit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imagestore import ImageStore
from imagestore.errors import ImageStoreError
from imagestore.testing import (
    InvalidImage,
    Ledger,
    RegistryServer,
    WriteRules,
    build_image,
    build_index,
    invalid_images,
    replay,
    synthetic_layer,
)
from imagestore.testing.faults import chaos

if TYPE_CHECKING:
    from imagestore import Image

pytestmark = pytest.mark.integration

TAPES = Path(__file__).parents[2] / "fixtures" / "tapes"
FAULTS = sorted(path.name.removesuffix(".tape.toml").removeprefix("fault-") for path in TAPES.glob("fault-*.tape.toml"))
#: A careful client ends with an error; every other fault it outlasts.
FINAL = {
    "403",
    "404",
    "deep-json",
    "duplicate-keys",
    "extra-bytes",
    "foreign-realm",
    "huge-manifest",
    "redirect-loop",
    "wrong-length",
    "wrong-type",
}
#: Good clients differ: some ask another time, some give up.
EITHER = {"flip", "wrong-digest"}


def pull(folder: Path, address: str) -> Image:
    with ImageStore(folder) as store:
        return store.pull(address, platform="linux/amd64")


@pytest.mark.parametrize("invalid", list(invalid_images()), ids=lambda one: one.name)
def test_an_invalid_image_gives_its_error(tmp_path: Path, invalid: InvalidImage) -> None:
    with (
        RegistryServer({"registry.example/bad/image:1": invalid.image}) as server,
        pytest.raises(invalid.error),
    ):
        pull(tmp_path / "store", f"{server.address}/bad/image:1")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_outlasted_or_a_typed_error(tmp_path: Path, name: str) -> None:
    with replay(TAPES / f"fault-{name}") as playing:
        with playing.serve() as server:
            try:
                pull(tmp_path / "store", server.reference("registry.example/app/small:1"))
            except ImageStoreError:
                assert name in FINAL | EITHER
            else:
                assert name not in FINAL
                check_thrift(playing.ledger, name)
        playing.ledger.assert_nothing_unexpected()
        playing.ledger.assert_no_credential_at("storage.example", "collector.example")


def check_thrift(ledger: Ledger, name: str) -> None:
    """No blob more often than the fault makes necessary."""
    sizes = {entry.digest: entry.sent_bytes for entry in ledger.entries if entry.digest and entry.status == 200}
    wasteful = {"flip", "ignore-range", "refuse-range", "wrong-range", "wrong-range-total", "short-range"}
    if name not in wasteful and not name.startswith("truncate"):
        for digest in sizes:
            size = max(entry.sent_bytes for entry in ledger.select(digest=digest))
            total = ledger.bytes_sent(digest)
            # Where every announced digest is wrong, a tag's document comes twice before it is fetched by its own.
            most = 3.05 if name == "wrong-digest" else 2.05
            assert total <= most * size, f"{digest}: {total} bytes for {size}"
    if name in ("429-seconds", "503-seconds"):
        ledger.assert_waited_at_least(1.0)


@pytest.mark.parametrize("seed", range(6))
def test_chaos_is_outlasted(tmp_path: Path, seed: int) -> None:
    image = build_index(["linux/amd64"], seed=f"chaos-{seed}")
    with RegistryServer({"registry.example/app:1": image}, faults=[chaos(seed, rate=0.5)]) as server:
        pulled = pull(tmp_path / "store", f"{server.address}/app:1")
        assert pulled.target.digest == image.target.digest
        server.ledger.assert_nothing_unexpected()


def test_what_is_too_large_for_one_request_comes_in_parts(tmp_path: Path) -> None:
    large = synthetic_layer("large", 70 << 20)
    images = {"registry.example/base:1": build_image(layers=[large])}
    with RegistryServer(images, writable=WriteRules(mounts=False)) as server, ImageStore(tmp_path) as store:
        store.copy(f"{server.address}/base:1", f"{server.address}/copied:1")
    parts = [entry.received_bytes for entry in server.ledger.select(method="PATCH")]
    assert (sum(parts), len(parts)) == (70 << 20, 3)
    assert large.digest in {one.digest for one in server.ledger.pushes("copied")}
    server.ledger.assert_nothing_unexpected()
