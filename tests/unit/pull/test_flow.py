"""A flow brings everything once, in two steps at a time, and ends all of them before it tells of a failure."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore.cancel import CancelToken
from imagestore.errors import OperationCancelledError
from imagestore.pull.flow import Flow
from tests.support.collector import without_collector
from tests.unit.pull.flows import Gauge, always, flow_of


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


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process seems to wait all the time, and looks often."""
    monkeypatch.setattr("imagestore.pull.flow.time.process_time", lambda: 1000.0)
    monkeypatch.setattr("imagestore.pull.flow._LOOK_SECONDS", 0.001)


@pytest.mark.usefixtures("idle")
def test_more_are_received_at_a_time_while_this_process_waits() -> None:
    all_here, gauge = threading.Barrier(5), Gauge()

    def receive(thing: int) -> None:
        gauge(thing)
        all_here.wait(60)

    with flow_of(receive, lambda _: 0, may_grow=always) as flow:
        for _ in range(2):
            gauge.threads.clear()
            flow.bring(range(50))
            assert len(gauge.threads) == 5
    assert gauge.seen == Counter([*range(50), *range(50)])


@pytest.mark.parametrize(("share", "grows"), [(0.4, True), (0.6, False)])
def test_half_a_processor_is_busy(monkeypatch: pytest.MonkeyPatch, share: float, grows: bool) -> None:
    asked, done = itertools.count(), threading.Event()

    def may_grow() -> bool:
        if next(asked) > 3:
            done.set()
        return False

    def waits(event: threading.Event) -> None:
        event.wait(0.05)

    monkeypatch.setattr("imagestore.pull.flow._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("imagestore.pull.flow.time.process_time", lambda: 1000 + share * time.monotonic())
    with flow_of(lambda _: waits(done), lambda _: 0, may_grow=may_grow) as flow:
        flow.bring(range(12))
    assert bool(next(asked)) == grows


def test_one_idle_moment_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    moments, has_looked, gauge = itertools.count(), threading.Event(), Gauge()

    def process_time() -> float:
        # Each look asks twice: in every second one nothing was spent.
        moment = next(moments)
        if moment > 40:
            has_looked.set()
        return time.monotonic() * 1000 if moment % 4 < 2 else 0.0

    def receive(thing: int) -> None:
        gauge(thing)
        assert has_looked.wait(60)

    monkeypatch.setattr("imagestore.pull.flow._LOOK_SECONDS", 0.001)
    monkeypatch.setattr("imagestore.pull.flow.time.process_time", process_time)
    with flow_of(receive, lambda _: 0, may_grow=always) as flow:
        flow.bring(range(9))
    assert len(gauge.threads) == 3


@pytest.mark.usefixtures("idle")
def test_no_more_are_received_at_a_time_than_may_be() -> None:
    asked, has_asked, gauge = itertools.count(), threading.Event(), Gauge()

    def may_grow() -> bool:
        if next(asked) > 20:
            has_asked.set()
        return False

    def receive(thing: int) -> None:
        gauge(thing)
        assert has_asked.wait(60)

    with flow_of(receive, lambda _: 0, may_grow=may_grow) as flow:
        flow.bring(range(9))
    assert len(gauge.threads) == 3


@pytest.mark.usefixtures("idle")
def test_as_many_as_were_asked_for_are_received_at_a_time() -> None:
    gauge = Gauge()
    with flow_of(gauge, lambda _: 0, parallel=2) as flow:
        flow.bring(range(100))
    assert len(gauge.threads) <= 2


def test_the_end_of_the_last_transfer_ends_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    is_looking = threading.Event()

    def process_time() -> float:
        is_looking.set()
        return 1000.0

    def receive(_: int) -> None:
        assert is_looking.wait(60)

    monkeypatch.setattr("imagestore.pull.flow._LOOK_SECONDS", 30.0)
    monkeypatch.setattr("imagestore.pull.flow.time.process_time", process_time)
    started = time.monotonic()
    with flow_of(receive, lambda _: 0, may_grow=always) as flow:
        flow.bring(range(50))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("failing", [False, True])
def test_nobody_waits_for_the_next_look_when_all_is_received(monkeypatch: pytest.MonkeyPatch, failing: bool) -> None:
    monkeypatch.setattr("imagestore.pull.flow._LOOK_SECONDS", 3600.0)

    def receive(_: int) -> None:
        if failing:
            raise KeyError

    with contextlib.suppress(KeyError), flow_of(receive, lambda _: 0, may_grow=always) as flow:
        flow.bring(range(50))
        flow.bring(range(50))


@pytest.mark.usefixtures("idle")
def test_those_there_are_go_on_where_no_more_threads_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    started, real = [0], threading.Thread.start

    def start(thread: threading.Thread) -> None:
        started[0] += thread.name == "imagestore-fetch"
        if started[0] > 4:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    gauge = Gauge()
    with flow_of(gauge, lambda _: 0, may_grow=always) as flow:
        flow.bring(range(300))
    assert gauge.seen == Counter(range(300))
    assert started[0] == 5
    assert len(gauge.threads) <= 4


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
        assert allowed.wait(5)
        return settled(thing)

    with flow_of(received, settle, parallel=2) as flow:
        thread = threading.Thread(target=flow.bring, args=(range(20),))
        thread.start()
        deadline = time.monotonic() + 5
        # Three are settled or wait for it, and each receiver has one in hand.
        while sum(received.seen.values()) < 5 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        assert sum(received.seen.values()) == 5
        allowed.set()
        thread.join(5)
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
            flow.cancel.wait(5)
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
        if thread.name == "imagestore-fetch" and started:
            raise RuntimeError("can't start new thread")
        if thread.name == "imagestore-fetch":
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
