"""Garbage collection for clients: soon after a removal, or at once for a request that waits for it.

As in containerd's scheduler, removals in quick succession share one collection, and collecting takes at most a fiftieth
of the time. A waiting request gets the next run that starts after it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, UndeletableError

if TYPE_CHECKING:
    from imagestore.store.workers import StoreWorkers

_log: Final = logging.getLogger(__name__)

_DELAY_SECONDS: Final = 0.25
_PAUSES_PER_RUN: Final = 49


class Collector:
    """Runs collections; for one event loop.

    ``follows_removals``: collect soon after each removal; false if another process does.
    """

    def __init__(self, workers: StoreWorkers, *, follows_removals: bool = True) -> None:
        self._workers = workers
        self._follows_removals = follows_removals
        self._timer: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._wanted = 0
        self._done = 0
        self._took_seconds = 0.0

    def note_removal(self) -> None:
        """Collect soon."""
        if not self._follows_removals:
            return
        self._wanted += 1
        if self._timer is None:
            delay = max(_DELAY_SECONDS, self._took_seconds * _PAUSES_PER_RUN)
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    async def run(self) -> None:
        """Collect what is garbage now; return when it is deleted; StoreError if the store can't be read or written."""
        self._wanted += 1
        await self._reach(self._wanted)

    def _due(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self._quietly())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _quietly(self) -> None:
        try:
            await self._reach(self._wanted)
        except ImageStoreError as error:
            _log.warning("a collection failed", extra={"reason": str(error)})

    async def _reach(self, number: int) -> None:
        async with self._lock:
            if self._done >= number:
                return
            covers = self._wanted
            began = time.monotonic()
            try:
                await self._workers.transfer(lambda store, _: store.collect_garbage())
            except UndeletableError as error:
                # As in containerd, only logged: the file may be of another program, and every run would fail like this.
                _log.warning("not everything can be deleted", extra={"error": str(error), "hint": error.hint})
            finally:
                # So a run that always fails is delayed like any other.
                self._took_seconds = time.monotonic() - began
                self._workers.collections += 1
            self._done = covers
