"""What the pools of threads here have in common: work goes on where no thread can be started, and is waited for.

An interrupt (KeyboardInterrupt) ends no waiting: what threads work with must not be closed, nor a lock be released,
before they have ended. The interrupt is raised afterwards.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.001


def take(waiting: deque[T]) -> T | None:
    """The first of what waits, for whichever thread asks first; None when there is no more."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def begin(executor: ThreadPoolExecutor, work: Callable[[], None]) -> Future[None]:
    """Have work done by an executor; by this thread where the process gets no more threads.

    Args:
        executor: its queue may keep what this thread has done, and do it once more.
        work: takes what it works on from a queue of the caller's, so that twice is harmless; raises nothing.
    """
    try:
        return executor.submit(work)
    except RuntimeError:
        work()
        done: Future[None] = Future()
        done.set_result(None)
        return done


def work_off(executor: ThreadPoolExecutor, threads: int, waiting: deque[T], work: Callable[[T], None]) -> None:
    """Have several threads do something with everything that waits; at the end no thread is at it any more.

    Args:
        executor: has the threads.
        threads: how many.
        waiting: when it is cleared, or the work fails, no thread begins anything further.
        work: the first failure is raised.
    """
    busy, failures = deque[None](), deque[Exception]()

    def _run() -> None:
        # Before it takes anything: a queue that is cleared, and then no busy thread, is the end.
        busy.append(None)
        try:
            while (thing := take(waiting)) is not None:
                work(thing)
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)
            waiting.clear()
        finally:
            busy.pop()

    try:
        wait([begin(executor, _run) for _ in range(threads)])
    finally:
        waiting.clear()
        _wait_until(lambda: not busy)
    if failures:
        raise failures[0]


@contextlib.contextmanager
def one_thread(name: str) -> Iterator[ThreadPoolExecutor | None]:
    """An executor of one thread that has ended its work when the block ends; None where the process gets no thread."""
    with ThreadPoolExecutor(1, name) as executor:
        try:
            executor.submit(_nothing)
        except RuntimeError:
            yield None
            return
        try:
            yield executor
        finally:
            last: list[Future[None]] = []
            _wait_until(lambda: _is_done(executor, last))


def submit_or_run(executor: ThreadPoolExecutor, work: Callable[[], None]) -> Future[None]:
    """Have work done by the thread of one_thread(), behind what that was given before; also while the program ends.

    Args:
        executor: takes no work any more once Python has begun to end; its thread does what it was given.
        work: is done by this thread then.
    """
    try:
        return executor.submit(work)
    except RuntimeError:
        executor.shutdown()
    done: Future[None] = Future()
    try:
        work()
    except Exception as error:  # noqa: BLE001 - raised where the result is asked for
        done.set_exception(error)
    else:
        done.set_result(None)
    return done


def _is_done(executor: ThreadPoolExecutor, last: list[Future[None]]) -> bool:
    """Whether the only thread of an executor has done what it was given."""
    if not last:
        last.append(submit_or_run(executor, _nothing))
    wait(last)
    return True


def _nothing() -> None:
    """What says that everything before it is done."""


def _wait_until(is_so: Callable[[], bool]) -> None:
    interruption: BaseException | None = None
    while True:
        try:
            if is_so():
                break
            time.sleep(_LOOK_SECONDS)
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below
            interruption = interruption or error
    if interruption is not None:
        raise interruption
