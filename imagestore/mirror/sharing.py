"""Single flight: work that several clients want is done once, in threads of its upstream, and waited for in time.

Each upstream has threads of its own, so that one that hangs delays no other one, nor answers from the store.
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

    from imagestore.mirror.settings import Upstream
    from imagestore.store import ImageStore, StoreWorkers

T = TypeVar("T")

#: Requests at one upstream at a time; transfers of blobs are counted apart.
_ASK_THREADS: Final = 8
#: Work is cancelled after so long, its time in the queue included; clients were refused long before.
_ASK_SECONDS: Final = 60.0
#: How long closing waits for the work.
_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class UpstreamThreads:
    """The threads that work for one upstream."""

    askers: ThreadPoolExecutor
    fetchers: ThreadPoolExecutor
    # Work that waits for another replica has its own threads, so that two replicas that ask each other don't deadlock.
    replica_askers: ThreadPoolExecutor
    replica_fetchers: ThreadPoolExecutor

    def close(self) -> None:
        """Wait for the work under way."""
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
        self._threads: dict[str, UpstreamThreads] = {}
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
        """Run blocking work in a thread; callers with the same key share it until it ends.

        Args:
            key: names the work.
            upstream: whose threads run it.
            ask: the work.
            owner: the replica that is asked first; empty for none.
            share: of the time in which a client has to be answered.

        Raises:
            ImageStoreError: the work's, or RegistryUnavailableError if it takes too long; the work goes on then.
        """
        task: asyncio.Task[T] | None = self._asked.get(key)
        if task is None:
            task = self._asked[key] = self._loop.create_task(self._run(upstream, ask, owner))
            task.add_done_callback(functools.partial(self._answered, key))
        return await self.in_time(asyncio.shield(task), key[1], share=share)

    def _answered(self, key: tuple[str, ...], task: asyncio.Task[Any]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: no client may be waiting any more

    async def _run(self, upstream: Upstream, ask: Callable[[ImageStore, CancelToken], T], owner: str) -> T:
        until = time.monotonic() + _ASK_SECONDS

        def _run() -> T:
            in_queue = CancelToken(max(0.0, until - time.monotonic()))
            with self._workers.lend() as store, self.operations.joined(in_queue) as token:
                token.check()
                return ask(store, token)

        threads = self.threads(upstream)
        return await self._loop.run_in_executor(threads.replica_askers if owner else threads.askers, _run)

    def threads(self, upstream: Upstream) -> UpstreamThreads:
        """The threads of an upstream, made when they are first needed."""
        threads = self._threads.get(upstream.name)
        if threads is None:
            threads = self._threads[upstream.name] = UpstreamThreads(
                ThreadPoolExecutor(_ASK_THREADS, f"ask-{upstream.name}"),
                ThreadPoolExecutor(upstream.max_connections, f"fetch-{upstream.name}"),
                ThreadPoolExecutor(_ASK_THREADS, f"ask-replicas-{upstream.name}"),
                ThreadPoolExecutor(upstream.max_connections, f"fetch-replicas-{upstream.name}"),
            )
        return threads

    async def in_time(self, wanted: Coroutine[Any, Any, T] | asyncio.Future[T], what: str, *, share: float = 1.0) -> T:
        """Wait as long as a client may be left without an answer, or a share of that time.

        Raises:
            RegistryUnavailableError: it takes longer. It goes on.
        """
        seconds = self.answer_seconds() * share
        try:
            async with asyncio.timeout(seconds):
                return await wanted
        except TimeoutError:
            raise RegistryUnavailableError(f"{what}: no answer within {seconds:g} s") from None

    async def quick(self, work: Callable[[ImageStore], T], what: str) -> T:
        """Run a short look at the store or the catalogue, no longer than a client may wait: a database may hang.

        Raises:
            RegistryUnavailableError: it takes longer. It goes on.
        """
        return await self.in_time(self._workers.quick(work), what)

    async def close(self) -> None:
        """Cancel all work, and wait until it ended."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(self.operations.end, "the mirror stops", patience_seconds=_PATIENCE_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)
        for threads in self._threads.values():
            await asyncio.to_thread(threads.close)
