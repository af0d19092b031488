"""Work that several clients want: done once, in threads of its upstream, and waited for in time.

Each upstream has threads of its own, so that one that hangs holds up no other, and what is here is served all the time.
"""

from __future__ import annotations

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import RegistryUnavailableError
from imagestore.util.cancel import CancelGroup, CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from imagestore.config.model import Upstream
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

T = TypeVar("T")

#: Questions under way at one upstream; more wait for these.
_ASK_THREADS: Final = 8
#: What takes longer is given up, the time in line included; clients were told no long before.
_ASK_SECONDS: Final = 60.0
#: For work to end when the mirror does.
_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Lane:
    """The threads that work for one upstream, so that one that hangs holds up no other."""

    askers: ThreadPoolExecutor
    fetchers: ThreadPoolExecutor
    # What waits for another replica is apart, so that two which ask each other never wait for each other's line.
    replica_askers: ThreadPoolExecutor
    replica_fetchers: ThreadPoolExecutor

    def close(self) -> None:
        """Wait for what is under way."""
        for threads in (self.askers, self.fetchers, self.replica_askers, self.replica_fetchers):
            threads.shutdown(cancel_futures=True)


class SharedWork:
    """Runs work for a mirror; its methods are the event loop's. Close it.

    Args:
        workers: lends the store.
        answer_seconds: how long a client may be left without an answer, as configured now.
    """

    def __init__(self, workers: StoreWorkers, answer_seconds: Callable[[], float]) -> None:
        self.operations = CancelGroup()
        self._workers = workers
        self.answer_seconds = answer_seconds
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, Lane] = {}
        self._asked: dict[tuple[str, ...], asyncio.Task[Any]] = {}

    def is_asked(self, key: tuple[str, ...]) -> bool:
        """Whether the same work is under way."""
        return key in self._asked

    async def once(
        self,
        key: tuple[str, ...],
        upstream: Upstream,
        ask: Callable[[ImageStore, CancelToken], T],
        *,
        owner: str = "",
        share: float = 1.0,
    ) -> T:
        """Run blocking work in a thread, shared by all who want the same until it ends.

        Args:
            key: names the work.
            upstream: whose threads do it.
            ask: the work.
            owner: the replica that is asked first; empty for none.
            share: of the time in which a client has to be answered.

        Raises:
            ImageStoreError: the work's; RegistryUnavailableError where it takes too long. It goes on then.
        """
        task: asyncio.Task[T] | None = self._asked.get(key)
        if task is None:
            task = self._asked[key] = self._loop.create_task(self._run(upstream, ask, owner))
            task.add_done_callback(functools.partial(self._answered, key))
        return await self.in_time(asyncio.shield(task), key[1], share=share)

    def _answered(self, key: tuple[str, ...], task: asyncio.Task[Any]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # who waited has it

    async def _run(self, upstream: Upstream, ask: Callable[[ImageStore, CancelToken], T], owner: str) -> T:
        until = time.monotonic() + _ASK_SECONDS

        def run() -> T:
            in_line = CancelToken(max(0.0, until - time.monotonic()))
            with self._workers.lend() as store, self.operations.joined(in_line) as token:
                token.check()
                return ask(store, token)

        lane = self.lane(upstream)
        return await self._loop.run_in_executor(lane.replica_askers if owner else lane.askers, run)

    def lane(self, upstream: Upstream) -> Lane:
        """The threads of an upstream, made when they are first needed."""
        lane = self._lanes.get(upstream.name)
        if lane is None:
            lane = self._lanes[upstream.name] = Lane(
                ThreadPoolExecutor(_ASK_THREADS, f"ask-{upstream.name}"),
                ThreadPoolExecutor(upstream.max_connections, f"fetch-{upstream.name}"),
                ThreadPoolExecutor(_ASK_THREADS, f"ask-replicas-{upstream.name}"),
                ThreadPoolExecutor(upstream.max_connections, f"fetch-replicas-{upstream.name}"),
            )
        return lane

    async def in_time(self, wanted: Coroutine[Any, Any, T] | asyncio.Future[T], what: str, *, share: float = 1.0) -> T:
        """Wait for something as long as a client may be left without an answer, or a share of it.

        Raises:
            RegistryUnavailableError: it takes longer; it goes on.
        """
        seconds = self.answer_seconds() * share
        try:
            async with asyncio.timeout(seconds):
                return await wanted
        except TimeoutError:
            raise RegistryUnavailableError(f"{what}: no answer within {seconds:g} s") from None

    async def close(self) -> None:
        """End all of it, and wait."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(self.operations.end, "the mirror stops", patience_seconds=_PATIENCE_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            await asyncio.to_thread(lane.close)
