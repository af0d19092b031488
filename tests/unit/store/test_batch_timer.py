"""How long one batch of the sweep holds those who want to write (docs/decisions/0007)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from imagestore.store import garbage
from imagestore.store.garbage import BatchTimer

if TYPE_CHECKING:
    from imagestore.metadata import MetadataStore


@dataclass
class Waiting:
    """Others who may wait, and a clock in milliseconds."""

    since: float = float("inf")
    now: float = 0.0
    looks: int = 0

    def is_awaited(self) -> bool:
        self.looks += 1
        return self.now >= self.since

    def batch(self, timer: BatchTimer) -> float:
        """How long a batch lasts that asks ten times a millisecond whether to end."""
        begun = self.now
        timer.begin()
        while not timer.is_over():
            self.now += 0.1
        return round(self.now - begun, 1)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    others = Waiting()
    # The clock is read in steps of a tenth of a millisecond, and a rounded sum must not miss one.
    monkeypatch.setattr(garbage, "time", SimpleNamespace(monotonic=lambda: round(others.now, 1) / 1000 + 1e-9))
    return others


@pytest.fixture
def timer(others: Waiting) -> BatchTimer:
    return BatchTimer(cast("MetadataStore", others))


def test_batches_grow_to_twenty_milliseconds_without_waiting_writers(others: Waiting, timer: BatchTimer) -> None:
    assert [others.batch(timer) for _ in range(5)] == pytest.approx([4, 8, 16, 20, 20], abs=0.2)


def test_a_writer_that_waits_from_the_start_waits_four_milliseconds(others: Waiting, timer: BatchTimer) -> None:
    for _ in range(4):
        others.batch(timer)
    others.since = others.now
    assert [others.batch(timer) for _ in range(2)] == pytest.approx([4, 4], abs=0.2)


def test_a_writer_that_comes_during_a_long_batch_waits_a_millisecond(others: Waiting, timer: BatchTimer) -> None:
    for _ in range(4):
        others.batch(timer)
    others.since = others.now + 10
    assert 10 <= others.batch(timer) <= 11.2


def test_batches_are_short_after_a_writer_waited_and_grow_again(others: Waiting, timer: BatchTimer) -> None:
    for _ in range(4):
        others.batch(timer)
    others.since = others.now
    others.batch(timer)
    others.since = float("inf")
    assert [others.batch(timer) for _ in range(3)] == pytest.approx([4, 8, 16], abs=0.2)


def test_the_timer_looks_for_writers_once_a_millisecond(others: Waiting, timer: BatchTimer) -> None:
    for _ in range(4):
        others.batch(timer)
    others.looks = 0
    others.batch(timer)
    assert 10 <= others.looks <= 17
