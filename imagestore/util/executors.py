"""Thread pools that also work if no thread can be started, and that always wait for their threads.

A KeyboardInterrupt doesn't end the wait: while a thread runs, the files and locks that it uses must not be closed or
released. It is raised afterwards.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.001


def take(waiting: deque[T]) -> T | None:
    """Take the first item of a queue that several threads share; None if the queue is empty."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def begin(executor: ThreadPoolExecutor, work: Callable[[], None]) -> Future[None]:
    """Run work in an executor, in a copy of this thread's context; if the process can't start a thread, in this thread.

    Then the executor may run it once more later. So the work takes its items from a queue and raises nothing.
    """
    try:
        return executor.submit(contextvars.copy_context().run, work)
    except RuntimeError:
        work()
        done: Future[None] = Future()
        done.set_result(None)
        return done


def work_off(executor: ThreadPoolExecutor, threads: int, waiting: deque[T], work: Callable[[T], None]) -> None:
    """Process all items of a queue in several threads, and return when no thread works any more.

    If the queue is cleared, or the work fails, no thread begins a further item. The first failure is raised.
    """
    busy, failures = deque[None](), deque[Exception]()

    def _run() -> None:
        # Before the first item is taken: an empty queue and then no busy thread mean that all work has ended.
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
    """An executor of one thread, whose work has ended when the block ends; None if no thread can be started."""
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
    """Run work in the thread of one_thread(), after all earlier work.

    While the interpreter shuts down, the executor only finishes its work; then new work runs in this thread.
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
    """Wait until the only thread of an executor has done its work; returns True."""
    if not last:
        last.append(submit_or_run(executor, _nothing))
    wait(last)
    return True


def _nothing() -> None:
    """Work whose end shows that all earlier work has ended."""


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
