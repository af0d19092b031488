"""Requests that wait for a collection share it, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from imagestore.containerd.collector import Collector
from imagestore.errors import StoreError, StoreFullError, UndeletableError
from imagestore.store import StoreWorkers

UNDELETABLE = UndeletableError({"sha256:0": "content sha256:0: can't delete"})
FULL = StoreFullError("metadata.db: no space")


class Failing:
    """A store whose collections fail."""

    def __init__(self, failure: StoreError) -> None:
        self.runs = 0
        self.collections = 0
        self.failure = failure

    async def transfer(self, _work: Callable[..., object]) -> None:
        self.runs += 1
        await asyncio.sleep(0.01)
        raise self.failure


def wait_together(failure: StoreError) -> tuple[int, list[BaseException | None]]:
    """Nine clients wait for a collection at once: how many there were, and what each was told."""

    async def wait() -> tuple[int, list[BaseException | None]]:
        workers = Failing(failure)
        collector = Collector(cast("StoreWorkers", workers))
        told = await asyncio.gather(*(collector.run() for _ in range(9)), return_exceptions=True)
        return workers.runs, told

    return asyncio.run(wait())


def test_who_waits_for_a_collection_is_not_told_of_a_file_that_stays(caplog: pytest.LogCaptureFixture) -> None:
    """All that can go is gone, and the file may be anybody's: as in containerd, the log has it."""
    runs, told = wait_together(UNDELETABLE)
    assert told == [None] * 9
    assert runs <= 2, "everybody gets the next that starts"
    assert {vars(each)["error"] for each in caplog.records} == {"content sha256:0: can't delete"}


def test_who_waits_for_a_collection_is_told_that_there_was_none() -> None:
    assert wait_together(FULL)[1] == [FULL] * 9
