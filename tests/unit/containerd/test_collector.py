"""Collections on behalf of clients take a small part of the time, whatever becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from imagestore.containerd.collector import Collector
from imagestore.errors import StoreError, StoreFullError, UndeletableError
from imagestore.store import StoreWorkers
from tests.support.patience import until_in_loop

UNDELETABLE = UndeletableError({"sha256:0": "content sha256:0: can't delete"})
FULL = StoreFullError("metadata.db: no space")


class Failing:
    """A store whose collections fail."""

    def __init__(self, failure: StoreError) -> None:
        self.runs = 0
        self.began: list[float] = []
        self.collections = 0
        self.failure = failure

    async def transfer(self, _work: Callable[..., object]) -> None:
        self.runs += 1
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        raise self.failure


@pytest.mark.parametrize("failure", [UNDELETABLE, FULL])
def test_one_that_fails_each_time_is_not_run_more_often_than_one_that_ends_well(failure: StoreError) -> None:
    async def remove_twice() -> list[float]:
        workers = Failing(failure)
        collector = Collector(cast("StoreWorkers", workers))
        collector.note_removal()
        await until_in_loop(lambda: workers.collections == 1, "a collection")
        collector.note_removal()
        await until_in_loop(lambda: workers.collections == 2, "another one")
        return workers.began

    first, second = asyncio.run(remove_twice())
    assert second - first > 0.45, "the pause is as long as many runs"


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
