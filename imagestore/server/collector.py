"""Collects garbage by a schedule, on a connection of its own, so that calls never wait for it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, cast

from imagestore.errors import ImageStoreError, UndeletableError
from imagestore.server.schedule import GcSchedule
from imagestore.store.image_store import ImageStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.store.garbage import GarbageReport
    from imagestore.store.workers import StoreWorkers

log = logging.getLogger(__name__)


class Collector:
    """The task that collects.

    Args:
        workers: lends the store.
        longest_seconds: between two collections.
        removals: how many calls ended that may have set content free.
        collected: hears of each collection: how long it took in seconds, and its report (None when it failed).
    """

    def __init__(
        self,
        workers: StoreWorkers,
        longest_seconds: float,
        removals: Callable[[], int],
        collected: Callable[[float, GarbageReport | None], None],
    ) -> None:
        self._workers = workers
        self._schedule = GcSchedule(longest_seconds, time.monotonic())
        self._removals = removals
        self._collected = collected

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            await asyncio.sleep(self._schedule.pause_seconds())
            state = self._workers.state()
            generation = state[1] if state is not None else None
            removals, began_at = self._removals(), time.monotonic()
            if not self._schedule.is_due(began_at, removals, generation):
                continue
            report: GarbageReport | None = None
            try:
                report = await asyncio.to_thread(self._collect)
            except ImageStoreError as error:
                log.warning("collection failed", extra={"error": str(error)})
            ended_at = time.monotonic()
            self._workers.collections += 1
            self._schedule.ran(ended_at, ended_at - began_at, removals, generation)
            self._collected(ended_at - began_at, report)

    def _collect(self) -> GarbageReport:
        with (
            self._workers.lend() as serving,
            ImageStore(serving.root, config=serving.config, host=serving.host) as store,
        ):
            try:
                report = store.collect_garbage()
            except UndeletableError as error:
                log.warning("not everything can be deleted", extra={"error": str(error), "hint": error.hint})
                report = cast("GarbageReport", error.report)
        if report.bytes_freed or report.digests:
            log.info("collected", extra={"blobs": len(report.digests), "bytes_freed": report.bytes_freed})
        return report
