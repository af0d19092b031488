"""A pipeline brings everything once, in two steps at a time, and ends all of them before it tells of a failure."""

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
from imagestore.store.pull.fetch_pipeline import FetchPipeline
from tests.support.collector import without_collector
from tests.support.patience import until
from tests.unit.store.pull.pipelines import Gauge, pipeline_of


@settings(max_examples=20, deadline=None)
@given(count=st.integers(0, 20), parallel=st.integers(1, 6), given_before=st.integers(0, 5))
def test_each_thing_is_received_and_committed_once(count: int, parallel: int, given_before: int) -> None:
    receive, commit = Gauge(), Gauge()
    before = range(100, 100 + given_before)
    with pipeline_of(receive, commit, parallel=parallel) as pipeline:
        for thing in before:
            pipeline.commit(thing)
        pipeline.receive(range(count))
    assert receive.seen == Counter(range(count))
    assert commit.seen == Counter([*range(count), *before])
    assert receive.most <= parallel
    assert commit.most <= 2


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_as_many_as_were_asked_for_are_received_at_a_time(parallel: int) -> None:
    all_here, gauge = threading.Barrier(parallel), Gauge()

    def receive(thing: int) -> None:
        all_here.wait(60)
        gauge(thing)

    with pipeline_of(receive, lambda _: 0, parallel=parallel) as pipeline:
        pipeline.receive(range(12))
    assert gauge.seen == Counter(range(12))
    assert gauge.most <= parallel


def test_a_failure_in_the_block_ends_what_is_under_way() -> None:
    pipeline = pipeline_of(lambda thing: thing, lambda _: 0)
    with pytest.raises(KeyError), pipeline:
        raise KeyError
    assert pipeline.cancel.is_cancelled


def test_things_are_begun_in_their_order() -> None:
    begun: list[int] = []
    with pipeline_of(lambda thing: begun.append(thing), lambda _: 0, parallel=1) as pipeline:
        pipeline.receive(range(20))
    assert begun == list(range(20))


def test_what_is_here_already_is_not_committed() -> None:
    commit = Gauge()
    with pipeline_of(lambda thing: thing if thing % 2 else None, commit) as pipeline:
        pipeline.receive(range(10))
    assert commit.seen == Counter([1, 3, 5, 7, 9])


def test_receiving_goes_on_while_something_is_committed_but_not_for_ever() -> None:
    allowed, received, committed = threading.Event(), Gauge(), Gauge()

    def commit(thing: int) -> int:
        assert allowed.wait(60)
        return committed(thing)

    with pipeline_of(received, commit, parallel=2) as pipeline:
        thread = threading.Thread(target=pipeline.receive, args=(range(20),))
        thread.start()
        # Three are committed or wait for it, and each receiver has one in hand.
        until(lambda: sum(received.seen.values()) >= 5, "as many as may come have come")
        time.sleep(0.05)
        assert sum(received.seen.values()) == 5
        allowed.set()
        thread.join(60)
    assert committed.seen == Counter(range(20))


@pytest.mark.parametrize("step", ["receive", "commit"])
def test_the_first_failure_stops_the_others_and_is_raised(step: str) -> None:
    committed: list[int] = []
    pipeline: FetchPipeline[int, int]

    def act(thing: int, name: str) -> int:
        pipeline.cancel.check()
        if thing == 3 and name == step:
            raise KeyError("the third")
        return thing

    def commit(thing: int) -> int:
        # What was received is kept, whatever failed elsewhere.
        committed.append(thing)
        return act(thing, "commit") if step == "commit" else thing

    pipeline = pipeline_of(lambda thing: act(thing, "receive"), commit)
    with pytest.raises(KeyError, match="the third"), pipeline:
        pipeline.receive(range(1000))
    assert pipeline.cancel.is_cancelled
    assert len(committed) < 1000
    assert not [each for each in threading.enumerate() if each.name.startswith("imagestore-")]


def test_a_failed_commit_ends_the_block_with_its_error() -> None:
    def commit(_: int) -> int:
        raise KeyError("beside")

    def run() -> None:
        with pipeline_of(lambda thing: thing, commit) as pipeline:
            pipeline.commit(1)
            pipeline.cancel.wait(60)
            raise AssertionError("not reached")

    with pytest.raises(KeyError, match="beside"):
        run()


def test_a_block_that_fails_commits_what_was_received() -> None:
    commit = Gauge()

    def run() -> None:
        with pipeline_of(lambda thing: thing, commit) as pipeline:
            pipeline.commit(1)
            pipeline.commit(2)
            raise OperationCancelledError("enough")

    with pytest.raises(OperationCancelledError, match="enough"):
        run()
    assert commit.seen == Counter([1, 2])


@pytest.mark.parametrize("name", ["commit", "fetch", ""])
@pytest.mark.parametrize("count", [1, 8])
def test_threads_that_cannot_be_started_lose_nothing(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real_start = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(f"imagestore-{name}"):
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    commit = Gauge()
    with pipeline_of(lambda thing: thing, commit) as pipeline:
        pipeline.commit(100)
        pipeline.receive(range(count))
    assert commit.seen == Counter([100, *range(count)])


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
    commit = Gauge()
    with pipeline_of(lambda thing: thing, commit) as pipeline:
        pipeline.receive(range(10))
    assert commit.seen == Counter(range(10))
    assert not started[0].is_alive()


def test_an_error_that_was_raised_keeps_nothing_alive() -> None:
    class Held:
        pass

    held = Held()
    watched = weakref.ref(held)

    def commit(_: Held) -> int:
        raise KeyError("beside")

    def run(things: list[Held]) -> None:
        with FetchPipeline(receive=lambda thing: thing, commit=commit, parallel=1, cancel=CancelToken()) as pipeline:
            pipeline.commit(things.pop())

    things = [held]
    del held
    with without_collector():
        with contextlib.suppress(KeyError):
            run(things)
        assert watched() is None
