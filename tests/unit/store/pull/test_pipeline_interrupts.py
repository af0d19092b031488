"""A pipeline that is interrupted loses nothing that was received, and leaves no thread behind."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from imagestore import CancelToken
from imagestore.errors import OperationCancelledError
from imagestore.store.pull.fetch_pipeline import FetchPipeline
from tests.unit.store.pull.pipelines import Gauge, pipeline_of


def one_is_committed_and_the_interrupt_raised() -> None:
    commit = Gauge()

    def run() -> None:
        with pipeline_of(lambda thing: thing, commit) as pipeline:
            pipeline.commit(1)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert commit.seen == Counter([1])


def test_an_interrupt_while_waiting_for_room_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Semaphore):
        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr("imagestore.store.pull.fetch_pipeline.threading.Semaphore", Interrupted)
    one_is_committed_and_the_interrupt_raised()


def test_an_interrupt_is_raised_before_an_earlier_failure() -> None:
    def commit(_: int) -> int:
        raise KeyError("beside")

    def run() -> None:
        with pipeline_of(lambda thing: thing, commit) as pipeline:
            pipeline.commit(1)
            with contextlib.suppress(OperationCancelledError):
                pipeline.cancel.wait(60)
            assert pipeline.cancel.is_cancelled
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()


@pytest.fixture
def interrupted_after() -> Iterator[Callable[..., None]]:
    """Interrupt the main thread as Ctrl-C does, after some seconds, and then again and again; 0: no more."""
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)

    def interrupt(after: float, again: float = 0.0) -> None:
        signal.setitimer(signal.ITIMER_REAL, after, again)

    yield interrupt
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("again", [0.0, 0.05])
def test_an_interrupt_while_it_is_waited_for_threads_ends_none_of_the_waiting(
    interrupted_after: Callable[..., None], again: float
) -> None:
    received, commit, begun = Gauge(), Gauge(), list[int]()

    def receive(thing: int) -> int:
        begun.append(thing)
        if len(begun) == 3:
            interrupted_after(0.1, again)
        with contextlib.suppress(OperationCancelledError):
            pipeline.cancel.wait(60)
        until = time.monotonic() + 0.3  # a slow disk
        while time.monotonic() < until:
            time.sleep(0.01)
        interrupted_after(0.0)
        return received(thing)

    pipeline = pipeline_of(receive, commit)
    with pytest.raises(KeyboardInterrupt), pipeline:
        pipeline.receive(range(50))
    assert len(received.seen) == 3
    assert commit.seen == received.seen
    assert not [each for each in threading.enumerate() if each.name.startswith("imagestore-")]


def test_a_thread_whose_start_was_interrupted_has_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started, running = threading.Thread.start, list[threading.Thread](), set[int]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        if len(started) == 2:
            raise KeyboardInterrupt  # as a signal that comes while this waits for the thread to run

    def receive(thing: int) -> None:
        running.add(thing)
        time.sleep(0.2 * thing)  # in a step that no cancellation ends
        running.discard(thing)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        FetchPipeline(receive=receive, commit=print, parallel=4, cancel=CancelToken()) as pipeline,
    ):
        pipeline.receive([1, 2, 3, 4])
    assert len(started) == 2
    assert not running
