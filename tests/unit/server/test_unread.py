"""What callers don't read is bounded: those who wait longest give way, and a reader is never among them."""

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

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.unread = Unread(100, 200, lambda: self.now)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def begin(self, size: int) -> Task:
        task: Any = Task()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", self._sleep)
            try:
                self.unread.begin(task, size).send(None)
            except StopIteration:
                return task  # type: ignore[no-any-return]
        raise AssertionError("it waited for something else than time")


def test_answers_that_are_taken_never_disturb() -> None:
    scene = Scene()
    for _ in range(1000):
        task: Any = scene.begin(90)
        scene.now += PATIENCE_SECONDS * 2
        scene.unread.end(task)
        assert not task.is_cancelled
    assert scene.unread.total == 0


def test_longest_waiting_give_way_as_far_as_needed() -> None:
    scene = Scene()
    deaf = [scene.begin(30) for _ in range(3)]
    scene.now += PATIENCE_SECONDS
    scene.begin(40)
    assert [each.is_cancelled for each in deaf] == [True, False, False]
    assert scene.unread.total == 100


def test_above_the_hard_limit_patience_is_short() -> None:
    scene = Scene()
    young = [scene.begin(50) for _ in range(4)]
    scene.begin(1)
    assert SHORT_PATIENCE_SECONDS <= scene.now < PATIENCE_SECONDS
    assert [each.is_cancelled for each in young] == [True, False, False, False]


def test_who_finds_no_room_in_time_is_refused() -> None:
    scene = Scene()
    scene.begin(150)
    patient: Any = Task()
    # Nothing to withdraw: it is renewed again and again, as by readers who take theirs.
    with pytest.MonkeyPatch.context() as patch:

        async def renew(seconds: float) -> None:
            scene.now += seconds
            scene.unread._waiting = {task: (scene.now, size) for task, (_, size) in scene.unread._waiting.items()}

        patch.setattr(asyncio, "sleep", renew)
        with pytest.raises(StoreBusyError, match="150 bytes wait"):
            scene.unread.begin(patient, 100).send(None)


def test_one_answer_larger_than_every_limit_still_goes_out() -> None:
    scene = Scene()
    assert not scene.begin(1000).is_cancelled


def test_end_of_a_withdrawn_answer_counts_once() -> None:
    async def run() -> None:
        unread = Unread(10, 20)
        task = asyncio.create_task(asyncio.sleep(0))
        await unread.begin(task, 10)
        unread.end(task)
        unread.end(task)
        assert unread.total == 0
        await task

    asyncio.run(run())


@given(st.lists(st.tuples(st.integers(1, 150), st.floats(0, 3), st.booleans()), max_size=50))
def test_what_waits_never_exceeds_the_hard_limit_by_more_than_one_answer(steps: list[tuple[int, float, bool]]) -> None:
    scene, open_tasks = Scene(), list[Any]()
    for size, seconds, ends in steps:
        scene.now += seconds
        open_tasks.append(scene.begin(size))
        if ends and open_tasks:
            scene.unread.end(open_tasks.pop(0))
        assert 0 <= scene.unread.total <= 200
