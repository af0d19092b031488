"""Back-off after failed pulls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import InvalidInputError
from imagestore.node.pull_backoff import BackOff
from imagestore.util.durations import NANOSECONDS, Duration
from tests.support.image_services import FakeClock


def test_delays_double_up_to_five_minutes() -> None:
    clock = FakeClock()
    backoff = BackOff(clock=clock)
    seen = []
    for _ in range(8):
        delay = backoff.failed("key")
        seen.append(delay.seconds)
        clock.pass_seconds(delay.seconds)
    assert seen == [10, 20, 40, 80, 160, 300, 300, 300]


def test_an_attempt_is_let_through_as_soon_as_the_delay_has_passed() -> None:
    clock = FakeClock()
    backoff = BackOff(clock=clock)
    assert backoff.remaining("key") == Duration(0)
    backoff.failed("key")
    clock.now += 10 * NANOSECONDS - 1
    assert backoff.remaining("key") == Duration(1)
    clock.now += 1
    assert backoff.remaining("key") == Duration(0)


@pytest.mark.parametrize(("seconds", "delay"), [(599, 20), (600, 20), (600.000000001, 10), (3600, 10)])
def test_a_key_is_forgotten_after_twice_the_longest_delay(seconds: float, delay: int) -> None:
    clock = FakeClock()
    backoff = BackOff(clock=clock)
    backoff.failed("key")
    clock.pass_seconds(seconds)
    assert backoff.failed("key").seconds == delay


def test_sweeping_drops_what_is_forgotten_only() -> None:
    clock = FakeClock()
    backoff = BackOff(clock=clock)
    backoff.failed("old")
    clock.pass_seconds(400)
    backoff.failed("new")
    assert backoff.sweep() == {"old", "new"}
    clock.pass_seconds(201)
    assert backoff.sweep() == {"new"}


def test_a_forgotten_key_doesnt_wait() -> None:
    clock = FakeClock()
    backoff = BackOff(Duration(1000 * NANOSECONDS), Duration(1000 * NANOSECONDS), clock=clock)
    backoff.failed("key")
    clock.pass_seconds(999)
    assert backoff.remaining("key").seconds == 1
    with pytest.raises(InvalidInputError):
        BackOff(Duration(2), Duration(1))


@given(st.lists(st.integers(0, 1300), max_size=40))
def test_a_delay_is_twice_the_last_or_begins_anew(pauses: list[int]) -> None:
    clock = FakeClock()
    backoff = BackOff(clock=clock)
    last = backoff.failed("key").seconds
    assert last == 10
    for pause in pauses:
        clock.pass_seconds(pause)
        assert backoff.remaining("key").seconds == (0 if pause > 600 else max(0, last - pause))
        delay = backoff.failed("key").seconds
        assert delay == (10 if pause > 600 else min(2 * last, 300))
        assert backoff.remaining("other").seconds == 0
        last = delay
