"""The token bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import InvalidInputError
from imagestore.util.token_bucket import TokenBucket


class Clock:
    """Seconds that only a test moves on."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


def test_the_bucket_starts_full_and_refills() -> None:
    clock = Clock()
    bucket = TokenBucket(5, 10, clock=clock)
    assert [bucket.try_take() for _ in range(11)] == [True] * 10 + [False]
    clock.now += 0.199
    assert not bucket.try_take()
    clock.now += 0.001
    assert bucket.try_take()
    assert not bucket.try_take()
    clock.now += 3600
    assert [bucket.try_take() for _ in range(11)] == [True] * 10 + [False]


def test_no_rate_is_no_bucket_and_no_burst_lets_nothing_through() -> None:
    assert all(TokenBucket(0, 0).try_take() for _ in range(100))
    assert not TokenBucket(5, 0).try_take()
    for qps, burst in ((-1, 1), (1, -1), (float("nan"), 1)):
        with pytest.raises(InvalidInputError, match="negative"):
            TokenBucket(qps, burst)


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.floats(0, 3), max_size=30))
def test_no_more_than_burst_and_rate_come_through(qps: int, burst: int, pauses: list[float]) -> None:
    clock = Clock()
    bucket = TokenBucket(qps, burst, clock=clock)
    began, taken = clock.now, 0
    for pause in pauses:
        clock.now += pause
        taken += bucket.try_take()
        assert taken <= burst + qps * (clock.now - began) + 1e-5


def test_tokens_are_taken_in_advance_and_waited_for() -> None:
    clock = Clock()
    bucket = TokenBucket(100, 100, clock=clock)
    assert [round(bucket.take(amount), 6) for amount in (60, 60, 100)] == [0, 0.2, 1.2]
    assert not bucket.try_take()
    clock.now += 1.7
    assert round(bucket.take(100), 6) == 0.5
    assert TokenBucket(0).take(1e9) == 0
