"""Cancelled tasks of the asynchronous facade: none ends before its thread has, and no open store is left behind.

In asyncio's own ways too (``task.cancel()``, ``asyncio.timeout``, ``TaskGroup``), against which anyio's threads hold no
task.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import imagestore
from imagestore import aio, events
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from tests.support.patience import PATIENCE_SECONDS

NAME = "registry.example/app:1"
HERE = imagestore.platforms.host.detect()

Work = Callable[[], Awaitable[object]]


class Gate:
    """Holds the first thread that comes once it is shut, so that its task is cancelled in the middle of the work."""

    def __init__(self) -> None:
        self.is_shut = False
        self._came = threading.Event()
        self._opened = threading.Event()

    def __call__(self, *_: object) -> None:
        if self.is_shut and not self._came.is_set():
            self._came.set()
            assert self._opened.wait(PATIENCE_SECONDS)

    async def came(self) -> None:
        assert await anyio.to_thread.run_sync(self._came.wait, PATIENCE_SECONDS)

    def open(self) -> None:
        self._opened.set()

    def verify(self, *_: object, cancel: imagestore.CancelToken) -> None:
        """An image verifier."""
        self()

    def clock(self) -> float:
        """A store's clock."""
        self()
        return time.time()


@pytest.fixture
def gate() -> Iterator[Gate]:
    one = Gate()
    yield one
    one.open()


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer({NAME: build_image(HERE, layers=[synthetic_layer("a", 4096)])}) as one:
        yield one


async def holds(task: asyncio.Task[object], gate: Gate) -> None:
    """Let everything else run; the task waits for its thread."""
    for _ in range(20):
        await asyncio.sleep(0)
    if task.done():
        gate.open()
    assert not task.done()


async def begun(work: Work, gate: Gate) -> asyncio.Task[object]:
    gate.is_shut = True
    task: asyncio.Task[object] = asyncio.ensure_future(work())
    await gate.came()
    return task


async def by_cancel(work: Work, gate: Gate) -> None:
    task = await begun(work, gate)
    task.cancel()
    await holds(task, gate)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_cancel_again_and_again(work: Work, gate: Gate) -> None:
    task = await begun(work, gate)
    for _ in range(3):
        task.cancel()
        await holds(task, gate)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_a_timeout(work: Work, gate: Gate) -> None:
    limits: list[asyncio.Timeout] = []

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await work()

    task = await begun(limited, gate)
    limits[0].reschedule(asyncio.get_running_loop().time())
    await holds(task, gate)
    gate.open()
    with pytest.raises(TimeoutError):
        await task


async def by_a_task_group(work: Work, gate: Gate) -> None:
    async def fails() -> None:
        await gate.came()
        raise ZeroDivisionError

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await work()

    task = await begun(grouped, gate)
    await holds(task, gate)
    gate.open()
    with pytest.raises(ExceptionGroup, match="TaskGroup"):
        await task


async def by_a_scope(work: Work, gate: Gate) -> None:
    scope = anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await work()

    task = await begun(scoped, gate)
    scope.cancel()
    await holds(task, gate)
    gate.open()
    await task
    assert scope.cancelled_caught


async def by_a_scope_and_cancel(work: Work, gate: Gate) -> None:
    scope = anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await work()

    task = await begun(scoped, gate)
    scope.cancel()
    await holds(task, gate)
    task.cancel()
    await holds(task, gate)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task


WAYS = [by_cancel, by_cancel_again_and_again, by_a_timeout, by_a_task_group, by_a_scope, by_a_scope_and_cancel]
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
def test_a_cancelled_transfer_gives_back_what_it_brought_before_its_task_ends(
    tmp_path: Path, server: RegistryServer, gate: Gate, way: Callable[[Work, Gate], Awaitable[None]]
) -> None:
    def leases(store: aio.AsyncImageStore) -> list[str]:
        return [lease.id for lease in store.store.metadata.leases.find() if lease.id.startswith("pull")]

    async def main() -> None:
        async with aio.open(tmp_path / "store", host=HERE) as store:
            held: list[str] = []

            def observer(event: events.Event) -> None:
                if isinstance(event, events.BlobStarted):
                    gate()
                    held.extend(leases(store))

            await way(partial(store.pull, server.server.reference(NAME), observer=observer), gate)
            assert held
            assert leases(store) == []

    asyncio.run(main())


@every_way
def test_a_cancelled_block_of_events_waits_for_its_pull(
    tmp_path: Path, server: RegistryServer, gate: Gate, way: Callable[[Work, Gate], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "store", host=HERE, verifier=gate) as store:

            async def watched() -> None:
                async with store.pulling(server.server.reference(NAME)) as pull:
                    await pull.result()

            await way(watched, gate)

    asyncio.run(main())


@every_way
def test_a_cancelled_task_waits_for_work_that_cannot_be_cancelled(
    tmp_path: Path, gate: Gate, way: Callable[[Work, Gate], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "store", host=HERE, clock=gate.clock) as store:
            await way(store.collect_garbage, gate)

    asyncio.run(main())


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[imagestore.ImageStore]:
    """The stores that were closed."""
    stores: list[imagestore.ImageStore] = []
    close = imagestore.ImageStore.close

    def noted(store: imagestore.ImageStore) -> None:
        close(store)
        stores.append(store)

    monkeypatch.setattr(imagestore.ImageStore, "close", noted)
    return stores


@every_way
def test_a_store_that_opens_for_a_cancelled_task_is_closed(
    tmp_path: Path,
    gate: Gate,
    closed: list[imagestore.ImageStore],
    way: Callable[[Work, Gate], Awaitable[None]],
) -> None:
    class SlowPath:
        def __fspath__(self) -> str:
            gate()
            return str(tmp_path / "store")

    async def opened() -> None:
        async with aio.open(SlowPath(), host=HERE):
            await anyio.sleep(0)

    async def main() -> None:
        await way(opened, gate)

    asyncio.run(main())
    assert len(closed) == 1


@every_way
def test_a_store_is_closed_although_its_task_is_cancelled_meanwhile(
    tmp_path: Path,
    gate: Gate,
    closed: list[imagestore.ImageStore],
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Work, Gate], Awaitable[None]],
) -> None:
    close = imagestore.ImageStore.close

    def slow(store: imagestore.ImageStore) -> None:
        gate()
        close(store)

    monkeypatch.setattr(imagestore.ImageStore, "close", slow)

    async def opened() -> None:
        async with aio.open(tmp_path / "store", host=HERE):
            pass
        await anyio.sleep(0)  # closing is shielded from anyio's cancellation, which comes here

    async def main() -> None:
        await way(opened, gate)

    asyncio.run(main())
    assert len(closed) == 1


def test_tasks_that_a_program_leaves_behind_end_before_its_loop(
    tmp_path: Path, server: RegistryServer, gate: Gate, closed: list[imagestore.ImageStore]
) -> None:
    tasks: list[asyncio.Task[object]] = []

    async def left() -> None:
        async with (
            aio.open(tmp_path / "store", host=HERE, verifier=gate) as store,
            store.pulling(server.server.reference(NAME)) as pull,
        ):
            await pull.result()

    async def main() -> None:
        tasks.append(await begun(left, gate))
        asyncio.get_running_loop().call_later(0.05, gate.open)

    asyncio.run(main())
    assert tasks[0].cancelled()
    assert len(closed) == 1


def test_a_cancelled_task_that_waits_for_its_turn_begins_nothing(tmp_path: Path, gate: Gate) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "store", host=HERE, clock=gate.clock) as store:
            store.looks = anyio.CapacityLimiter(1)
            first = await begun(store.collect_garbage, gate)
            second = asyncio.create_task(store.touch("registry.example/app:1"))
            await holds(second, gate)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            gate.open()
            await first

    asyncio.run(main())


def test_a_token_of_the_caller_ends_a_transfer_and_is_not_cancelled_with_its_task(
    tmp_path: Path, server: RegistryServer, gate: Gate
) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "store", host=HERE, verifier=gate) as store:
            token = imagestore.CancelToken()
            pull = partial(store.pull, server.server.reference(NAME), cancel=token)
            await by_cancel(pull, gate)
            assert not token.is_cancelled
            token.cancel("the program ends")
            with pytest.raises(imagestore.errors.OperationCancelledError, match="the program ends"):
                await pull()

    asyncio.run(main())
