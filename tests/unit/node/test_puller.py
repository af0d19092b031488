"""Back-off, token bucket and turns."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import InvalidInputError, OperationCancelledError
from imagestore.node.pull_backoff import BackOff
from imagestore.node.puller import TokenBucket, Turns
from imagestore.util.cancel import CancelToken
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


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (None, 5), (0, 5), (-1, 5)])
def test_no_more_than_the_limit_run_at_once(limit: int | None, most: int) -> None:
    turns, running, seen = Turns(limit), 0, [0]
    lock, full = threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running
        with turns.turn():
            with lock:
                running += 1
                seen.append(running)
                if running == most:
                    full.set()
            full.wait(10)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert max(seen) == most


def test_turns_come_in_the_order_of_arrival() -> None:
    turns, order = Turns.serial(), []
    threads = []

    def work(number: int) -> None:
        with turns.turn():
            order.append(number)

    with turns.turn():
        for number in range(5):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            while turns.waiting <= number:
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3, 4]


def test_who_stops_waiting_takes_no_turn() -> None:
    turns, token, ended = Turns.serial(), CancelToken(), []

    def work() -> None:
        with pytest.raises(OperationCancelledError), turns.turn(token):
            raise AssertionError("never")
        ended.append(True)

    with turns.turn():
        thread = threading.Thread(target=work)
        thread.start()
        while not turns.waiting:
            threading.Event().wait(0.001)
        token.cancel("enough")
        thread.join(10)
    assert ended == [True]
    with turns.turn(CancelToken()):
        assert turns.waiting == 0


_INTERRUPTED = """
import signal, threading
from imagestore.node.puller import Turns

turns, is_held, is_over = Turns.serial(), threading.Event(), threading.Event()

def work():
    with turns.turn():
        is_held.set()
        while not turns.waiting:
            is_over.wait(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        is_over.wait(10)

worker = threading.Thread(target=work)
worker.start()
is_held.wait(10)
try:
    with turns.turn():
        print("never")
except KeyboardInterrupt:
    print("interrupted,", turns.waiting, "wait")
is_over.set()
worker.join()
with turns.turn():
    print("the next has its turn")
"""


def test_an_interrupt_while_waiting_takes_no_turn() -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "interrupted, 0 wait\nthe next has its turn\n"
