"""Garbage collection for requests that wait for it: each gets the next run that starts after it.

Other removals are noticed by the server's own collector, as containerd's are by its scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from imagestore.errors import UndeletableError

if TYPE_CHECKING:
    from imagestore.store.workers import StoreWorkers

_log: Final = logging.getLogger(__name__)


class Collector:
    """Runs collections; for one event loop."""

    def __init__(self, workers: StoreWorkers) -> None:
        self._workers = workers
        self._lock = asyncio.Lock()
        self._wanted = 0
        self._done = 0

    async def run(self) -> None:
        """Collect what is garbage now; return when it is deleted; StoreError if the store can't be read or written."""
        self._wanted += 1
        number = self._wanted
        async with self._lock:
            if self._done >= number:
                return
            covers = self._wanted
            try:
                await self._workers.transfer(lambda store, _: store.collect_garbage())
            except UndeletableError as error:
                # As in containerd, only logged: the file may be of another program, and every run would fail like this.
                _log.warning("not everything can be deleted", extra={"error": str(error), "hint": error.hint})
            finally:
                self._workers.collections += 1
            self._done = covers
