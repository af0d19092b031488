"""The store behind a server: replaced under work that goes on, and threads for all who need one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from examples.adapters import Records
from imagestore import CancelToken, ImageStore
from imagestore.store import StoreWorkers


class Store:
    """Stands for a store: open until closed."""

    def __init__(self) -> None:
        self.closed = 0
        self.metadata = Records()

    def close(self) -> None:
        self.closed += 1


def made() -> tuple[Store, ImageStore]:
    store = Store()
    return store, cast("ImageStore", store)


def test_held_store_serves_its_holder_after_it_was_replaced_and_is_closed_at_the_end() -> None:
    async def run() -> None:
        (first, first_store), (second, second_store) = made(), made()
        workers = StoreWorkers(first_store)
        with workers.hold() as held:
            workers.replace(second_store)
            assert await workers.transfer(lambda store, _: store, held=held) is first_store
            assert await workers.transfer(lambda store, _: store) is second_store
            assert first.closed == 0
        assert first.closed == 1
        workers.close()
        assert (first.closed, second.closed) == (1, 1)

    asyncio.run(run())


def test_store_stays_open_for_a_thread_whose_caller_has_left() -> None:
    async def run() -> None:
        (first, first_store), (_, second_store) = made(), made()
        workers, begun, go, seen = StoreWorkers(first_store), threading.Event(), threading.Event(), list[Any]()

        def work(store: ImageStore, token: CancelToken) -> None:
            begun.set()
            go.wait(60)
            seen.append((cast("Any", store).closed, token.is_cancelled))

        caller = asyncio.create_task(workers.transfer(work))
        await asyncio.to_thread(begun.wait)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        workers.replace(second_store)
        go.set()
        await asyncio.to_thread(workers.close)
        assert seen == [(0, True)]
        assert first.closed == 1

    asyncio.run(run())


def test_as_many_pulls_as_are_allowed_leave_threads_for_other_transfers() -> None:
    async def run() -> None:
        workers, go = StoreWorkers(made()[1], pull_threads=64), threading.Event()
        pulls = [asyncio.create_task(workers.transfer(lambda *_: go.wait(60))) for _ in range(64)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(workers.transfer(lambda *_: "read"), 60) == "read"
        go.set()
        await asyncio.gather(*pulls)
        await asyncio.to_thread(workers.close)

    asyncio.run(run())
