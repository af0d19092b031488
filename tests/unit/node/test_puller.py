"""The token bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import InvalidInputError
from imagestore.node.puller import TokenBucket
from imagestore.util.durations import NANOSECONDS
from tests.support.image_services import FakeClock


def test_the_bucket_starts_full_and_refills() -> None:
    clock = FakeClock()
    bucket = TokenBucket(5, 10, clock=clock)
    assert [bucket.take() for _ in range(11)] == [True] * 10 + [False]
    clock.pass_seconds(0.199)
    assert not bucket.take()
    clock.pass_seconds(0.001)
    assert bucket.take()
    assert not bucket.take()
    clock.pass_seconds(3600)
    assert [bucket.take() for _ in range(11)] == [True] * 10 + [False]


def test_no_rate_is_no_bucket_and_no_burst_lets_nothing_through() -> None:
    assert all(TokenBucket(0, 0).take() for _ in range(100))
    assert not TokenBucket(5, 0).take()
    for qps, burst in ((-1, 1), (1, -1), (float("nan"), 1)):
        with pytest.raises(InvalidInputError):
            TokenBucket(qps, burst)


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.floats(0, 3), max_size=30))
def test_no_more_than_burst_and_rate_come_through(qps: int, burst: int, pauses: list[float]) -> None:
    clock = FakeClock()
    bucket = TokenBucket(qps, burst, clock=clock)
    began, taken = clock.now, 0
    for pause in pauses:
        clock.pass_seconds(pause)
        taken += bucket.take()
        assert taken <= burst + qps * (clock.now - began) / NANOSECONDS + 1e-6
