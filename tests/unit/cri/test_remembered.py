"""Answers that are remembered, and those that must not be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from imagestore.cri._proto import api_pb2 as cri
from imagestore.cri.images import ImageServicer
from imagestore.cri.pulls import PullQueue
from imagestore.digest import Digest
from imagestore.rpc.answers import AnswerCache
from imagestore.rpc.workers import StoreWorkers
from imagestore.server.memory import AnswerMemory
from imagestore.testing import build_image
from tests.support.node import PROCESS, node

APP = "registry.example/app:1"
# The context of a call that asks it for nothing.
NOBODY: Any = None


async def listed(servicer: ImageServicer) -> tuple[bytes, ...]:
    answer = await servicer.ListImages(cri.ListImagesRequest(), NOBODY)
    return (answer.SerializeToString(),)


async def streamed(servicer: ImageServicer) -> tuple[bytes, ...]:
    parts = servicer.StreamImages(cri.StreamImagesRequest(), NOBODY)
    return tuple([part.SerializeToString() async for part in parts])


def told(*, is_verbose: bool) -> Callable[[ImageServicer], Awaitable[tuple[bytes, ...]]]:
    spec = cri.ImageSpec(image=APP, runtime_handler=PROCESS)

    async def status(servicer: ImageServicer) -> tuple[bytes, ...]:
        answer = await servicer.ImageStatus(cri.ImageStatusRequest(image=spec, verbose=is_verbose), NOBODY)
        return (answer.SerializeToString(),)

    return status


@pytest.mark.parametrize("ask", [listed, streamed, told(is_verbose=False), told(is_verbose=True)])
def test_damage_is_not_remembered_since_a_repair_changes_no_record(
    tmp_path: Path, ask: Callable[[ImageServicer], Awaitable[tuple[bytes, ...]]]
) -> None:
    image = build_image("windows(10.0.20348.1)/amd64", seed="app")
    with node(tmp_path, {APP: image}) as here:
        found = here.store.pull(APP, runtime_handler=PROCESS)
        config = here.store.content.path(Digest.parse(str(found.id)))

        async def run(workers: StoreWorkers) -> None:
            servicer = ImageServicer(workers, PullQueue())
            memory = AnswerMemory(AnswerCache(), lambda: 1, ["m"])
            aside = config.with_name("aside")
            config.rename(aside)
            await memory.answer("m", b"", lambda: ask(servicer))
            assert memory.known("m", b"") is None
            aside.rename(config)
            whole = await memory.answer("m", b"", lambda: ask(servicer))
            assert memory.known("m", b"") == whole

        workers = StoreWorkers(here.store)
        asyncio.run(run(workers))
        workers.close()
