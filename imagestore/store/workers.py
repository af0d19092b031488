"""The store behind a server: blocking work runs in threads, with separate pools for quick calls and transfers.

gRPC runs on one event loop, on which nothing may block. A call passes its work to ``quick`` or ``transfer``. If the
caller leaves or its deadline passes, the token of a transfer is cancelled, which closes its sockets. If the store is
replaced (a new configuration, a rebuilt database), running calls finish with the store that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.store.image_store import ImageStore

T = TypeVar("T")

QUICK_THREADS: Final = 8
#: Threads in addition to those for pulls: for reading, writing and listing content, and for collections.
TRANSFER_THREADS: Final = 48
PULL_THREADS: Final = 16 + 128
#: Between two looks whether a copy of the records is due.
_COPY_SECONDS: Final = 300.0


class LentStore:
    """A store and the number of calls that use it; it stays open while there is one."""

    def __init__(self, store: ImageStore, number: int) -> None:
        self.store = store
        self.number = number
        self.users = 0
        self.is_retired = False


class StoreWorkers:
    """Runs work on the current store.

    Args:
        store: the first store; closed after it was replaced and its last call has ended.
        pull_threads: number of pulls that run at the same time; other transfers have further threads.
    """

    def __init__(self, store: ImageStore, *, pull_threads: int = PULL_THREADS) -> None:
        self._lock = threading.Lock()
        self._current = LentStore(store, 0)
        self._quick = ThreadPoolExecutor(QUICK_THREADS, thread_name_prefix="quick")
        #: Number of collections of this process that have ended.
        self.collections = 0
        self._transfer = ThreadPoolExecutor(TRANSFER_THREADS + pull_threads, thread_name_prefix="transfer")

    @contextlib.contextmanager
    def lend(self) -> Iterator[ImageStore]:
        """The current store, open at least until the end of the block."""
        with self.hold() as lent:
            yield lent.store

    @contextlib.contextmanager
    def hold(self) -> Iterator[LentStore]:
        """As lend(), for work that may wait before it is passed to ``transfer`` and must then use this same store."""
        lent = self._take(None)
        try:
            yield lent
        finally:
            self._give_back(lent)

    def _take(self, held: LentStore | None) -> LentStore:
        with self._lock:
            lent = held or self._current
            lent.users += 1
        return lent

    def _give_back(self, lent: LentStore) -> None:
        with self._lock:
            lent.users -= 1
            is_last = lent.is_retired and not lent.users
        if is_last:
            lent.store.close()

    def replace(self, store: ImageStore) -> None:
        """Serve another store object from now on; the one before is closed after its last call."""
        with self._lock:
            before = self._current
            self._current = LentStore(store, before.number + 1)
            before.is_retired = True
            is_idle = not before.users
        if is_idle:
            before.store.close()

    async def quick(self, work: Callable[[ImageStore], T]) -> T:
        """Run work that takes milliseconds; raises what it raises."""
        # The context passes the request's id to the thread, for its log lines.
        bound = functools.partial(contextvars.copy_context().run, self._with_store, work)
        return await asyncio.get_running_loop().run_in_executor(self._quick, bound)

    async def transfer(
        self,
        work: Callable[[ImageStore, CancelToken], T],
        token: CancelToken | None = None,
        held: LentStore | None = None,
    ) -> T:
        """Run work that transfers bytes, on the store that the caller holds or on the current one.

        If the calling task is cancelled, so is the token, which may be the caller's. Raises what the work raises.
        """
        token = token or CancelToken()
        lent = self._take(held)

        def _run() -> T:
            try:
                return work(lent.store, token)
            finally:
                self._give_back(lent)

        bound = functools.partial(contextvars.copy_context().run, _run)
        try:
            future = asyncio.get_running_loop().run_in_executor(self._transfer, bound)
        except RuntimeError:  # shut down
            self._give_back(lent)
            raise
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            token.cancel("the caller went away")
            # The thread ends later; retrieve its outcome, which no caller reads any more.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        finally:
            # The future keeps the work's error, which keeps this frame; break this reference cycle.
            del future

    def state(self) -> tuple[int, int] | None:
        """A key for cached answers: numbers of the store object and of its last change, or None if that can't be read.

        Never blocks for long.
        """
        lent = self._current
        # None also if the store was closed in the meantime.
        generation = lent.store.metadata.generation()
        return None if generation is None else (lent.number, generation)

    def is_outdated(self) -> bool:
        """Whether the database on disk was replaced since the store opened it; quick enough for the event loop."""
        return self._current.store.metadata.is_outdated()

    def _with_store(self, work: Callable[[ImageStore], T]) -> T:
        with self.lend() as store:
            return work(store)

    async def keep_copies(self) -> None:
        """Make a copy of the records whenever one is due, until cancelled."""
        while True:
            await asyncio.sleep(_COPY_SECONDS)
            await asyncio.to_thread(self._with_store, lambda store: store.metadata.keep_copy())

    def close(self) -> None:
        """Wait for the threads, make a copy of the records and close the store."""
        self._quick.shutdown()
        self._transfer.shutdown()
        with self._lock:
            lent = self._current
        lent.store.metadata.keep_copy(at_once=True)
        lent.store.close()
