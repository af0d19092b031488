"""Back-off, token bucket and slots."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import CancelToken
from imagestore.errors import InvalidInputError, OperationCancelledError
from imagestore.node.puller import PullSlots, TokenBucket
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


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (None, 5), (0, 5), (-1, 5)])
def test_no_more_than_the_limit_run_at_once(limit: int | None, most: int) -> None:
    slots, running, seen = PullSlots(limit), 0, [0]
    lock, full = threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running
        with slots.slot():
            with lock:
                running += 1
                seen.append(running)
                if running == most:
                    full.set()
            full.wait(60)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(seen) == most


def test_slots_are_granted_in_the_order_of_arrival() -> None:
    slots, order = PullSlots.serial(), []
    threads = []

    def work(number: int) -> None:
        with slots.slot():
            order.append(number)

    with slots.slot():
        for number in range(5):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            while slots.waiting <= number:
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3, 4]


def test_a_cancelled_wait_takes_no_slot() -> None:
    slots, token, ended = PullSlots.serial(), CancelToken(), []

    def work() -> None:
        with pytest.raises(OperationCancelledError), slots.slot(token):
            raise AssertionError("never")
        ended.append(True)

    with slots.slot():
        thread = threading.Thread(target=work)
        thread.start()
        while not slots.waiting:
            threading.Event().wait(0.001)
        token.cancel("enough")
        thread.join(60)
    assert ended == [True]
    with slots.slot(CancelToken()):
        assert slots.waiting == 0


_INTERRUPTED = """
import signal, threading
from imagestore.node.puller import PullSlots

slots, is_held, is_over = PullSlots.serial(), threading.Event(), threading.Event()

def work():
    with slots.slot():
        is_held.set()
        while not slots.waiting:
            is_over.wait(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        is_over.wait(60)

worker = threading.Thread(target=work)
worker.start()
is_held.wait(60)
try:
    with slots.slot():
        print("never")
except KeyboardInterrupt:
    print("interrupted,", slots.waiting, "wait")
is_over.set()
worker.join()
with slots.slot():
    print("the next has its slot")
"""


def test_an_interrupt_while_waiting_takes_no_slot() -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "interrupted, 0 wait\nthe next has its slot\n"
