"""Threads are for those who wait, so what is work must not count as waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from imagestore.content.waits import Waits


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """What the next piece of work takes, by clock and of the processor."""
    costs = {"taken": 0.0, "spent": 0.0}
    ends = {"monotonic": 10.0, "thread_time": 5.0}
    asked = dict.fromkeys(ends, 0)

    def clock(name: str, cost: str) -> float:
        asked[name] += 1
        ends[name] += costs[cost] if asked[name] % 2 == 0 else 0
        return ends[name]

    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: clock("monotonic", "taken"))
        patch.setattr(time, "thread_time", lambda: clock("thread_time", "spent"))
        yield costs


def measure(waits: Waits) -> None:
    with waits.measured():
        pass


@pytest.mark.parametrize(
    ("taken", "spent", "is_long"),
    [(0.004, 0.0039, False), (0.004, 0.0021, False), (0.004, 0.0019, True), (0.004, 0.0, True), (0.0004, 0.0, False)],
)
def test_more_than_half_of_the_time_must_be_waiting(
    clocks: dict[str, float], *, taken: float, spent: float, is_long: bool
) -> None:
    waits = Waits()
    clocks |= {"taken": taken, "spent": spent}
    for _ in range(3):
        assert not waits.is_long
        measure(waits)
    assert waits.is_long is is_long


def test_a_few_interruptions_are_no_disk(clocks: dict[str, float]) -> None:
    waits = Waits()
    for spent in (0.0, 0.0, 1.0, 0.0, 0.0, 1.0):
        clocks |= {"taken": 1.0, "spent": spent}
        measure(waits)
    assert not waits.is_long


def test_once_long_is_long_for_good(clocks: dict[str, float]) -> None:
    waits, other = Waits(), Waits()
    for spent in (0.0, 0.0, 0.0, 1.0):
        clocks |= {"taken": 1.0, "spent": spent}
        measure(waits)
    assert waits.is_long
    assert not other.is_long
