"""Garbage collection by a schedule, on a store connection of its own, so that calls never wait for it.

The pause and the mutation threshold are containerd's (``plugins/gc/scheduler.go``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, cast

from imagestore.errors import ImageStoreError, UndeletableError

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
        removals: how many calls ended after which content may be free to collect.
        collected: called with the seconds that a collection took, and its report (None if it failed).
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
            serving.reopened() as store,
        ):
            try:
                report = store.collect_garbage()
            except UndeletableError as error:
                log.warning("not everything can be deleted", extra={"error": str(error), "hint": error.hint})
                report = cast("GarbageReport", error.report)
        if report.bytes_freed or report.digests:
            log.info("collected", extra={"blobs": len(report.digests), "bytes_freed": report.bytes_freed})
        return report


PAUSE_THRESHOLD: Final = 0.02
MUTATION_THRESHOLD: Final = 100
STARTUP_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 1.0


class GcSchedule:
    """Decides when to collect; ``now`` is in seconds of a steady clock."""

    def __init__(self, longest_seconds: float, now: float) -> None:
        self._longest = longest_seconds
        self._runs = 0
        self._spent = 0.0
        self._last_at = now
        self._removals = 0
        self._generation: int | None = None

    def pause_seconds(self) -> float:
        """How long to wait before is_due() is asked again."""
        if not self._runs:
            return min(STARTUP_SECONDS, self._longest)
        average = self._spent / self._runs
        return min(self._longest, max(_LEAST_SECONDS, average / PAUSE_THRESHOLD - average))

    def is_due(self, now: float, removals: int, generation: int | None) -> bool:
        """Whether to collect now: so many removals since the start, and the last change of records, if known."""
        if not self._runs or removals != self._removals or now - self._last_at >= self._longest:
            return True
        if generation is None or self._generation is None:
            return False
        return generation - self._generation >= MUTATION_THRESHOLD

    def ran(self, now: float, seconds: float, removals: int, generation: int | None) -> None:
        """A collection ended, well or not; ``removals`` and ``generation`` are those at its start."""
        self._runs += 1
        self._spent += seconds
        self._last_at, self._removals, self._generation = now, removals, generation
