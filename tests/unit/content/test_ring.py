"""Buffers that go round: each step sees them in order, and none comes round before every step is done with it."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from imagestore.content.ring import Piece, Ring

COUNT, SIZE = 3, 8


def buffers() -> list[memoryview]:
    return [memoryview(bytearray(SIZE)) for _ in range(COUNT)]


@pytest.mark.parametrize("beside", [0, 1, 2])
def test_every_step_sees_every_piece_in_order(beside: int) -> None:
    seen: list[list[int]] = [[], []]

    def slow(piece: Piece) -> None:
        time.sleep(0.001)
        seen[0].append(piece.buffer[0])

    def quick(piece: Piece) -> None:
        seen[1].append(piece.buffer[0])

    steps = (slow, quick)
    # One buffer is enough where nothing goes on beside.
    with Ring(buffers() if beside else buffers()[:1], beside=steps[:beside], here=steps[beside:]) as ring:
        for number in range(50):
            buffer = ring.take()
            buffer[0] = number
            ring.give(Piece(buffer, 0, SIZE, number * SIZE))
    assert seen == [list(range(50))] * 2


def test_no_more_are_under_way_than_there_are_buffers() -> None:
    may_go_on, taken = threading.Event(), []

    def wait(piece: Piece) -> None:
        assert may_go_on.wait(10)

    def take_all(ring: Ring) -> None:
        for _ in range(COUNT + 1):
            buffer = ring.take()
            taken.append(buffer)
            ring.give(Piece(buffer, 0, SIZE, 0))

    with Ring(buffers(), beside=(wait,)) as ring:
        thread = threading.Thread(target=take_all, args=(ring,))
        thread.start()
        time.sleep(0.05)
        assert len(taken) == COUNT
        may_go_on.set()
        thread.join(10)
    assert len(taken) == COUNT + 1


def test_what_fails_in_a_step_is_raised_where_buffers_are_taken() -> None:
    done: list[int] = []

    def fail(piece: Piece) -> None:
        done.append(piece.offset)
        if piece.offset == 1:
            raise OSError("broken")

    given = []

    def give_all(ring: Ring) -> None:
        for number in range(100):
            ring.give(Piece(ring.take(), 0, SIZE, number))
            given.append(number)

    with pytest.raises(OSError, match="broken"), Ring(buffers(), beside=(fail,)) as ring:
        give_all(ring)
    assert done == [0, 1]
    assert len(given) <= 2 + COUNT


def test_what_failed_last_is_raised_at_the_end_and_before_anything_else() -> None:
    def fail(_piece: Piece) -> None:
        raise OSError("broken")

    def give_and_fail(ring: Ring) -> None:
        ring.give(Piece(ring.take(), 0, SIZE, 0))
        raise ValueError("the source failed too")

    with pytest.raises(OSError, match="broken") as found, Ring(buffers(), beside=(fail,)) as ring:
        give_and_fail(ring)
    assert isinstance(found.value.__context__, ValueError)


@pytest.mark.parametrize("possible", [0, 1])
def test_without_threads_all_is_done_here(monkeypatch: pytest.MonkeyPatch, possible: int) -> None:
    left, real = [None] * possible, threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    before = threading.active_count()
    seen: list[list[int]] = [[], []]
    steps = (lambda piece: seen[0].append(piece.offset), lambda piece: seen[1].append(piece.offset))
    with Ring(buffers(), beside=steps) as ring:
        for number in range(10):
            ring.give(Piece(ring.take(), 0, SIZE, number))
    assert seen == [list(range(10))] * 2
    assert threading.active_count() == before


def interrupt_soon(count: int) -> None:
    """Interrupt the main thread so many times, at short intervals."""

    def interrupt() -> None:
        for _ in range(count):
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


@pytest.mark.parametrize("count", [1, 3])
def test_an_impatient_user_waits_until_nothing_is_written_any_more(count: int) -> None:
    done: list[int] = []

    def slow(piece: Piece) -> None:
        time.sleep(0.15)
        done.append(piece.offset)

    def give_all(ring: Ring) -> None:
        for number in range(COUNT):
            ring.give(Piece(ring.take(), 0, SIZE, number))
        interrupt_soon(count)

    with pytest.raises(KeyboardInterrupt), Ring(buffers(), beside=(slow, slow)) as ring:
        give_all(ring)
    assert sorted(done) == sorted([*range(COUNT)] * 2)
    assert not [each for each in threading.enumerate() if each.name == "imagestore-step"]


def test_an_interrupt_goes_before_what_failed() -> None:
    def fail(_piece: Piece) -> None:
        raise OSError("broken")

    def give_and_interrupt(ring: Ring) -> None:
        ring.give(Piece(ring.take(), 0, SIZE, 0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Ring(buffers(), beside=(fail,)) as ring:
        give_and_interrupt(ring)


def test_whatever_a_step_raises_comes_out() -> None:
    def leave(_piece: Piece) -> None:
        raise SystemExit(3)

    def give_all(ring: Ring) -> None:
        for number in range(2 * COUNT):
            ring.give(Piece(ring.take(), 0, SIZE, number))

    with pytest.raises(SystemExit), Ring(buffers(), beside=(leave,)) as ring:
        give_all(ring)
