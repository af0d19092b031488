"""The sum of ImageFsInfo is kept for some seconds, and renewed after a change."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagestore import Digest, ImageStore
from imagestore.cri.client import CriImageService
from imagestore.cri.response_cache import KEPT_SECONDS, FilesystemUse
from imagestore.errors import StoreError
from imagestore.store import StoreWorkers
from imagestore.testing import Image, build_image
from tests.support.node import PROCESS, Node, node
from tests.unit.cri.image_calls import HOST, spec


@dataclass
class Bench:
    """A store, a sum of it, and the time."""

    here: Node
    use: FilesystemUse
    workers: StoreWorkers
    seconds: float = 0.0

    def put(self, raw: bytes) -> None:
        """A blob comes by another way."""
        self.blobs.mkdir(parents=True, exist_ok=True)
        (self.blobs / Digest.of(raw).encoded).write_bytes(raw)

    @property
    def blobs(self) -> Path:
        return (self.here.store.root / "content") / "blobs" / "sha256"

    async def sum(self) -> tuple[int, int]:
        found = await self.use.usage()
        return found.used_bytes.value, found.inodes_used.value


def play(root: Path, scene: Callable[[Bench], Awaitable[None]], images: Mapping[str, Image] | None = None) -> None:
    async def run() -> None:
        bench = Bench(here, FilesystemUse(workers, lambda: bench.seconds), workers)
        await scene(bench)

    with node(root, images or {}) as here:
        workers = StoreWorkers(here.store)
        try:
            asyncio.run(run())
        finally:
            workers.close()


def test_a_sum_is_kept_for_some_seconds_and_says_when_it_was_made(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.put(b"one")
        first = await bench.use.usage()
        bench.put(b"three")
        bench.seconds = KEPT_SECONDS - 0.1
        assert await bench.use.usage() == first
        bench.seconds = KEPT_SECONDS
        assert await bench.sum() == (8, 2)
        assert (await bench.use.usage()).timestamp > first.timestamp
        bench.put(b"four")
        assert await bench.sum() == (8, 2)
        bench.use.forget()
        assert await bench.sum() == (12, 3)

    play(tmp_path, scene)


def test_concurrent_callers_share_one_sum_and_one_that_leaves_does_not_end_it(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        callers = [asyncio.create_task(bench.use.usage()) for _ in range(10)]
        await asyncio.sleep(0)
        callers[0].cancel()
        _, *others = await asyncio.gather(*callers, return_exceptions=True)
        assert len({each.timestamp for each in others if not isinstance(each, BaseException)}) == 1
        assert not any(isinstance(each, BaseException) for each in others)

    play(tmp_path, scene)


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        shutil.rmtree(bench.blobs.parent)
        bench.blobs.parent.write_bytes(b"no folder")
        for _ in range(2):
            with pytest.raises(StoreError):
                await bench.use.usage()
        bench.blobs.parent.unlink()
        assert await bench.sum() == (0, 0)

    play(tmp_path, scene)


def test_pulls_and_removals_are_seen_at_once(client: CriImageService) -> None:
    def used() -> int:
        (system,) = client.filesystems().image_filesystems
        return system.used_bytes

    assert used() == 0
    client.pull(spec(f"{HOST}/team/tags:1", PROCESS))
    assert used() > 0
    client.remove(spec(f"{HOST}/team/tags:1", PROCESS))
    assert used() == 0


def test_a_sum_is_made_anew_after_a_collection_of_this_process(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        bench.put(b"one")
        assert await bench.sum() == (3, 1)
        (blob,) = bench.blobs.iterdir()
        blob.unlink()
        bench.workers.collections += 1
        assert await bench.sum() == (0, 0)

    play(tmp_path, scene)


def test_a_sum_is_made_anew_once_records_change(tmp_path: Path) -> None:
    """As by another process on the same store, or by a client of containerd's services."""
    name = f"{HOST}/a:1"

    async def scene(bench: Bench) -> None:
        serving = bench.here.store
        await asyncio.to_thread(serving.pull, name)
        _, before = await bench.sum()
        with ImageStore(serving.root, config=serving.config, host=serving.host) as other:
            other.remove(name, collect=True)
            other.collect_garbage()
        assert before > 0
        assert await bench.sum() == (0, 0)

    play(tmp_path, scene, {name: build_image("windows(10.0.20348.1)/amd64")})
