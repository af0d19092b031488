"""Collections on behalf of clients take a small part of the time, whatever becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from imagestore.containerd.collector import Collector
from imagestore.errors import UndeletableError
from imagestore.rpc.workers import StoreWorkers


class Failing:
    """A store in which something can never be deleted."""

    def __init__(self) -> None:
        self.runs = 0

    async def transfer(self, _work: Callable[..., object]) -> None:
        self.runs += 1
        await asyncio.sleep(0.03)
        raise UndeletableError({"sha256:0": "can't delete"})


def test_one_that_fails_each_time_is_not_run_more_often_than_one_that_ends_well() -> None:
    async def remove_twice() -> int:
        workers = Failing()
        collector = Collector(cast("StoreWorkers", workers))
        for _ in range(2):
            collector.note_removal()
            await asyncio.sleep(0.4)
        return workers.runs

    assert asyncio.run(remove_twice()) == 1, "the second is due a second and a half after the first"
