"""Cancellation reaches checks, waits, callbacks and children."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time

import pytest

from imagestore import CancelToken
from imagestore.errors import DeadlineExceededError, OperationCancelledError


def test_a_passed_deadline_is_seen_by_check() -> None:
    with pytest.raises(DeadlineExceededError, match="within 0 seconds"):
        CancelToken(0.0).check()


@pytest.mark.parametrize("seconds", [1e10, 1e300, float("inf")])
def test_a_deadline_of_ages_can_still_be_waited_with(seconds: float) -> None:
    remaining = CancelToken(seconds).remaining_seconds()
    assert remaining is not None
    assert not threading.Event().wait(min(remaining, 0.0))
    assert threading.Lock().acquire(timeout=remaining)


def test_cancel_ends_a_wait_at_once() -> None:
    token = CancelToken()
    timer = threading.Timer(0.02, token.cancel, ["stop"])
    timer.start()
    with pytest.raises(OperationCancelledError, match="stop"):
        token.wait(60)
    timer.join()


def test_a_deadline_ends_a_wait() -> None:
    with pytest.raises(DeadlineExceededError):
        CancelToken(0.01).wait(120)


def test_callbacks_run_once_and_only_while_registered() -> None:
    token, calls = CancelToken(), []
    with token.on_cancel(lambda: calls.append("left")):
        pass
    with token.on_cancel(lambda: calls.append("inside")):
        token.cancel()
        token.cancel()
    with token.on_cancel(lambda: calls.append("late")):
        pass
    assert calls == ["inside", "late"]


def test_a_child_ends_with_its_parent_and_shares_its_deadline() -> None:
    parent = CancelToken(1000)
    with parent.child() as child:
        remaining = child.remaining_seconds()
        assert remaining is not None
        assert remaining <= 1000
        parent.cancel("parent stopped")
        with pytest.raises(OperationCancelledError, match="parent stopped"):
            child.check()


def test_a_childs_deadline_is_shown_as_it_was_given() -> None:
    parent = CancelToken(0.05)
    time.sleep(0.01)
    with parent.child() as child, child.child() as grandchild, pytest.raises(DeadlineExceededError, match=r"0\.05 s"):
        grandchild.wait(120)


def test_a_child_can_end_alone() -> None:
    parent = CancelToken()
    with parent.child() as child:
        child.cancel()
        assert child.is_cancelled
    parent.check()


def test_a_callback_that_fails_keeps_no_other_from_being_called() -> None:
    token, called = CancelToken(), []

    def fail() -> None:
        called.append("first")
        raise ValueError("of the first")

    both = token.on_cancel(fail), token.on_cancel(lambda: called.append("second"))
    with both[0], both[1], pytest.raises(ValueError, match="of the first"):
        token.cancel()
    assert called == ["first", "second"]


# Raises the signal while the main thread holds the lock of its own token, as it may happen at any request.
SIGNALLED = """
import signal, sys, time
from imagestore.util import cancel
from imagestore.cli.signals import cancelled_by_signals

def trace(frame, event, argument):
    if frame.f_code is on_cancel and "key" in frame.f_locals and not raised:
        raised.append(True)
        signal.raise_signal(signal.SIGTERM)
    return trace if frame.f_code is on_cancel else None

on_cancel, raised, called = cancel.CancelToken.on_cancel.__wrapped__.__code__, [], []
with cancelled_by_signals() as token:
    sys.settrace(trace)
    with token.on_cancel(lambda: called.append(True)):
        sys.settrace(None)
        while not called:
            time.sleep(0.001)
print(raised, called, token.is_cancelled)
"""


def test_a_signal_cancels_also_while_its_thread_holds_the_token() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[True] [True] True\n"


def test_a_wait_that_a_signal_did_not_interrupt_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    token = CancelToken()

    def wait(event: threading.Event, seconds: float) -> bool:
        assert seconds < 10
        token.cancel("interrupted")  # what a handler does that Python runs after the wait
        return False

    monkeypatch.setattr(threading.Event, "wait", wait)
    with pytest.raises(OperationCancelledError, match="interrupted"):
        token.wait(math.inf)
