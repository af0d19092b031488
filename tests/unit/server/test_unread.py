"""What callers don't read is bounded: who doesn't read is disconnected, a reader never waits long for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import StoreBusyError
from imagestore.server.unread import PATIENCE_SECONDS, SHORT_PATIENCE_SECONDS, Unread


class Task:
    """Stands for a call's task."""


class Scene:
    """Limits of 100, 200 and 400 bytes, a clock, and connections that end when asked to and their time has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.patience: list[float] = []
        self.relieved = 0
        #: Tasks of callers who read nothing, since when.
        self.deaf: dict[Any, float] = {}
        self.unread = Unread(
            self._disconnect, self._relieve, soft_bytes=100, hard_bytes=200, most_bytes=400, clock=lambda: self.now
        )

    def _disconnect(self, patience: float) -> None:
        self.patience.append(patience)
        for task, since in list(self.deaf.items()):
            if self.now - since >= patience:
                del self.deaf[task]
                self.unread.end(task)

    def _relieve(self) -> None:
        self.relieved += 1

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def begin(self, size: int, *, deaf: bool = False) -> Task:
        task: Any = Task()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", self._sleep)
            try:
                self.unread.begin(task, size).send(None)
            except StopIteration:
                if deaf:
                    self.deaf[task] = self.now
                return task  # type: ignore[no-any-return]
        raise AssertionError("it waited for something else than time")


def test_answers_that_are_taken_disturb_nobody() -> None:
    scene = Scene()
    for _ in range(1000):
        task: Any = scene.begin(90)
        scene.now += PATIENCE_SECONDS * 2
        scene.unread.end(task)
    assert (scene.unread.total, scene.patience, scene.relieved) == (0, [], 0)


def test_above_the_soft_limit_the_deaf_are_looked_for_with_patience() -> None:
    scene = Scene()
    scene.begin(90, deaf=True)
    scene.now += PATIENCE_SECONDS
    scene.begin(20)
    assert scene.patience == [PATIENCE_SECONDS]
    assert scene.unread.total == 20


def test_above_the_hard_limit_answers_wait_until_the_deaf_are_gone() -> None:
    scene = Scene()
    scene.begin(150, deaf=True)
    scene.begin(90)
    assert SHORT_PATIENCE_SECONDS <= scene.now < PATIENCE_SECONDS
    assert set(scene.patience) == {PATIENCE_SECONDS, SHORT_PATIENCE_SECONDS}
    assert scene.unread.total == 90


def test_old_answers_keep_nobody_waiting_below_the_last_limit() -> None:
    scene = Scene()
    scene.begin(190)
    scene.begin(190)
    assert PATIENCE_SECONDS <= scene.now < PATIENCE_SECONDS + 0.5
    with pytest.raises(StoreBusyError, match="380 bytes wait"):
        scene.begin(30)


def test_what_was_needed_for_a_moment_is_given_back_at_its_end() -> None:
    scene = Scene()
    tasks: list[Any] = [scene.begin(90), scene.begin(60)]
    scene.unread.end(tasks[0])
    assert scene.relieved == 0
    scene.unread.end(tasks[1])
    assert scene.relieved == 1
    scene.unread.end(scene.begin(90))  # type: ignore[arg-type]
    assert scene.relieved == 1


def test_looks_are_not_more_frequent_than_they_need_be() -> None:
    scene = Scene()
    for _ in range(100):
        scene.begin(1)
        scene.now += 0.001
    scene.begin(10)
    scene.begin(10)
    assert len(scene.patience) == 1


def test_one_answer_larger_than_every_limit_still_goes_out() -> None:
    scene = Scene()
    scene.begin(1000)
    assert scene.unread.total == 1000


def test_end_of_an_answer_counts_once() -> None:
    scene = Scene()
    task: Any = scene.begin(10)
    scene.unread.end(task)
    scene.unread.end(task)
    assert scene.unread.total == 0


@given(st.lists(st.tuples(st.integers(1, 150), st.floats(0, 3), st.booleans(), st.booleans()), max_size=50))
def test_what_waits_never_exceeds_the_last_limit(steps: list[tuple[int, float, bool, bool]]) -> None:
    scene, open_tasks = Scene(), list[Any]()
    for size, seconds, ends, is_deaf in steps:
        scene.now += seconds
        try:
            open_tasks.append(scene.begin(size, deaf=is_deaf))
        except StoreBusyError:
            assert scene.unread.total + size > 200
        if ends and open_tasks:
            scene.unread.end(open_tasks.pop(0))
        assert 0 <= scene.unread.total <= 400
