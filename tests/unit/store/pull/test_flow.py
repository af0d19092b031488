"""A flow brings everything once, in two steps at a time, and ends all of them before it tells of a failure."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore import CancelToken
from imagestore.errors import OperationCancelledError
from imagestore.store.pull.fetch_flow import Flow
from tests.support.collector import without_collector
from tests.support.patience import until
from tests.unit.store.pull.flows import Gauge, flow_of


@settings(max_examples=20, deadline=None)
@given(count=st.integers(0, 20), parallel=st.integers(1, 6), given_before=st.integers(0, 5))
def test_each_thing_is_received_and_settled_once(count: int, parallel: int, given_before: int) -> None:
    receive, settle = Gauge(), Gauge()
    before = range(100, 100 + given_before)
    with flow_of(receive, settle, parallel=parallel) as flow:
        for thing in before:
            flow.settle(thing)
        flow.bring(range(count))
    assert receive.seen == Counter(range(count))
    assert settle.seen == Counter([*range(count), *before])
    assert receive.most <= parallel
    assert settle.most <= 2


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_as_many_as_were_asked_for_are_received_at_a_time(parallel: int) -> None:
    all_here, gauge = threading.Barrier(parallel), Gauge()

    def receive(thing: int) -> None:
        all_here.wait(60)
        gauge(thing)

    with flow_of(receive, lambda _: 0, parallel=parallel) as flow:
        flow.bring(range(12))
    assert gauge.seen == Counter(range(12))
    assert gauge.most <= parallel


def test_a_failure_in_the_block_ends_what_is_under_way() -> None:
    flow = flow_of(lambda thing: thing, lambda _: 0)
    with pytest.raises(KeyError), flow:
        raise KeyError
    assert flow.cancel.is_cancelled


def test_things_are_begun_in_their_order() -> None:
    begun: list[int] = []
    with flow_of(lambda thing: begun.append(thing), lambda _: 0, parallel=1) as flow:
        flow.bring(range(20))
    assert begun == list(range(20))


def test_what_is_here_already_is_not_settled() -> None:
    settle = Gauge()
    with flow_of(lambda thing: thing if thing % 2 else None, settle) as flow:
        flow.bring(range(10))
    assert settle.seen == Counter([1, 3, 5, 7, 9])


def test_receiving_goes_on_while_something_is_settled_but_not_for_ever() -> None:
    allowed, received, settled = threading.Event(), Gauge(), Gauge()

    def settle(thing: int) -> int:
        assert allowed.wait(60)
        return settled(thing)

    with flow_of(received, settle, parallel=2) as flow:
        thread = threading.Thread(target=flow.bring, args=(range(20),))
        thread.start()
        # Three are settled or wait for it, and each receiver has one in hand.
        until(lambda: sum(received.seen.values()) >= 5, "as many as may come have come")
        time.sleep(0.05)
        assert sum(received.seen.values()) == 5
        allowed.set()
        thread.join(60)
    assert settled.seen == Counter(range(20))


@pytest.mark.parametrize("step", ["receive", "settle"])
def test_the_first_failure_stops_the_others_and_is_told(step: str) -> None:
    settled: list[int] = []
    flow: Flow[int, int]

    def act(thing: int, name: str) -> int:
        flow.cancel.check()
        if thing == 3 and name == step:
            raise KeyError("the third")
        return thing

    def settle(thing: int) -> int:
        # What was received is kept, whatever failed elsewhere.
        settled.append(thing)
        return act(thing, "settle") if step == "settle" else thing

    flow = flow_of(lambda thing: act(thing, "receive"), settle)
    with pytest.raises(KeyError, match="the third"), flow:
        flow.bring(range(1000))
    assert flow.cancel.is_cancelled
    assert len(settled) < 1000
    assert not [each for each in threading.enumerate() if each.name.startswith("imagestore-")]


def test_a_failure_beside_ends_the_block_in_its_own_words() -> None:
    def settle(_: int) -> int:
        raise KeyError("beside")

    def run() -> None:
        with flow_of(lambda thing: thing, settle) as flow:
            flow.settle(1)
            flow.cancel.wait(60)
            raise AssertionError("not reached")

    with pytest.raises(KeyError, match="beside"):
        run()


def test_a_block_that_fails_settles_what_was_received() -> None:
    settle = Gauge()

    def run() -> None:
        with flow_of(lambda thing: thing, settle) as flow:
            flow.settle(1)
            flow.settle(2)
            raise OperationCancelledError("enough")

    with pytest.raises(OperationCancelledError, match="enough"):
        run()
    assert settle.seen == Counter([1, 2])


@pytest.mark.parametrize("name", ["settle", "fetch", ""])
@pytest.mark.parametrize("count", [1, 8])
def test_threads_that_cannot_be_started_lose_nothing(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real_start = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(f"imagestore-{name}"):
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    settle = Gauge()
    with flow_of(lambda thing: thing, settle) as flow:
        flow.settle(100)
        flow.bring(range(count))
    assert settle.seen == Counter([100, *range(count)])


def test_receivers_go_on_when_no_more_of_them_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    real_start = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        is_receiver = thread.name.startswith("imagestore-fetch")
        if is_receiver and started:
            raise RuntimeError("can't start new thread")
        if is_receiver:
            started.append(thread)
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    settle = Gauge()
    with flow_of(lambda thing: thing, settle) as flow:
        flow.bring(range(10))
    assert settle.seen == Counter(range(10))
    assert not started[0].is_alive()


def test_a_failure_that_was_told_keeps_nothing_alive() -> None:
    class Held:
        pass

    held = Held()
    watched = weakref.ref(held)

    def settle(_: Held) -> int:
        raise KeyError("beside")

    def run(things: list[Held]) -> None:
        with Flow(receive=lambda thing: thing, settle=settle, parallel=1, cancel=CancelToken()) as flow:
            flow.settle(things.pop())

    things = [held]
    del held
    with without_collector():
        with contextlib.suppress(KeyError):
            run(things)
        assert watched() is None
