"""When to collect: after removals soon, otherwise seldom, and never so often that it takes much of the time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from imagestore.server.gc_scheduler import MUTATION_THRESHOLD, PAUSE_THRESHOLD, STARTUP_SECONDS, GcSchedule


def ran_once(seconds: float = 0.01, longest: float = 3600.0) -> GcSchedule:
    schedule = GcSchedule(longest, now=0.0)
    schedule.ran(10.0, seconds, removals=3, generation=50)
    return schedule


def test_first_look_collects_what_a_crash_left() -> None:
    schedule = GcSchedule(3600.0, now=0.0)
    assert schedule.pause_seconds() == STARTUP_SECONDS
    assert schedule.is_due(5.0, 0, 0)


def test_nothing_happened_nothing_is_due() -> None:
    assert not ran_once().is_due(20.0, 3, 50)


def test_one_removal_makes_the_next_look_collect() -> None:
    assert ran_once().is_due(11.0, 4, 51)


def test_many_changes_are_as_good_as_a_removal() -> None:
    assert not ran_once().is_due(11.0, 3, 50 + MUTATION_THRESHOLD - 1)
    assert ran_once().is_due(11.0, 3, 50 + MUTATION_THRESHOLD)
    assert not ran_once().is_due(11.0, 3, None)


def test_longest_interval_collects_without_a_reason() -> None:
    assert not ran_once(longest=60.0).is_due(69.0, 3, 50)
    assert ran_once(longest=60.0).is_due(70.0, 3, 50)


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20))
def test_collecting_takes_a_small_part_of_the_time(durations: list[float]) -> None:
    schedule = GcSchedule(1e9, now=0.0)
    for seconds in durations:
        schedule.ran(0.0, seconds, 0, None)
    average = sum(durations) / len(durations)
    pause = schedule.pause_seconds()
    assert pause >= 1.0
    assert average <= PAUSE_THRESHOLD * (average + pause) * 1.000001
