"""Slots are granted in the order of requests, and no more of them than there are."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from imagestore import CancelToken
from imagestore.errors import DeadlineExceededError, InvalidInputError, OperationCancelledError
from imagestore.util.slots import SlotQueue


@pytest.mark.parametrize("most", [0, -1])
def test_a_queue_has_at_least_one_slot(most: int) -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        SlotQueue(most)


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (None, 5)])
def test_no_more_than_the_limit_run_at_once(limit: int | None, most: int) -> None:
    slots, running, seen = SlotQueue(limit), 0, [0]
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
    slots, order = SlotQueue(1), []
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
    slots, token, ended = SlotQueue(1), CancelToken(), []

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
    with slots.slot(CancelToken(60)):
        assert slots.waiting == 0


_INTERRUPTED = """
import signal, threading
from imagestore.util.slots import SlotQueue

slots, is_held, is_over = SlotQueue(1), threading.Event(), threading.Event()

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


def test_a_new_thread_waits_behind_those_that_wait() -> None:
    slots, order = SlotQueue(1), list[str]()

    def wait() -> None:
        with slots.slot():
            order.append("waited")

    with slots.slot():
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not slots.waiting:
            threading.Event().wait(0.001)
    with slots.slot():
        order.append("came later")
    waiting.join()
    assert order == ["waited", "came later"]


def test_an_operation_that_is_cancelled_does_not_begin_to_wait() -> None:
    slots, token = SlotQueue(1), CancelToken()
    token.cancel()
    with slots.slot(), pytest.raises(OperationCancelledError):
        slots.take(token)


def test_a_wait_past_its_deadline_delays_no_other() -> None:
    slots = SlotQueue(1)
    with slots.slot(), pytest.raises(DeadlineExceededError):
        slots.take(CancelToken(0.01))
    slots.take(CancelToken(60))
