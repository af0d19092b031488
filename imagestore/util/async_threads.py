"""Work in threads for asynchronous programs, on asyncio or trio: a cancelled task waits until its thread has ended."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, stop: Callable[[], object] = lambda: None) -> T:
    """Run work in a thread that begins at once.

    If the task is cancelled, ``stop`` is called, and the cancellation goes on when the thread has ended. anyio's own
    threads hold a task only against anyio's cancellation: asyncio's (``task.cancel()``) would leave the thread alone.
    """
    outcome, ended = Future[T](), anyio.Event()
    context, loop = contextvars.copy_context(), anyio.lowlevel.current_token()
    threading.Thread(target=context.run, args=(_run, work, outcome, ended, loop), name="aio").start()
    cancelled: BaseException | None = None
    try:
        while not ended.is_set():
            try:
                with anyio.CancelScope(shield=cancelled is not None):
                    await ended.wait()
            except anyio.get_cancelled_exc_class() as error:
                # The last one counts: asyncio's, which may follow anyio's, must reach the caller.
                cancelled = error
                stop()
        if cancelled is not None:
            raise cancelled
        return outcome.result()
    finally:
        # They keep an error, which keeps this frame.
        del cancelled, outcome


def _run(work: Callable[[], T], outcome: Future[T], ended: anyio.Event, loop: anyio.lowlevel.EventLoopToken) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again by the task
        outcome.set_exception(error)
    finally:
        anyio.from_thread.run_sync(ended.set, token=loop)


async def run_cancellable(work: Callable[[CancelToken], T]) -> T:
    """Run work in a thread with a token that is cancelled with the task, which then waits for the work's end."""
    token = CancelToken()
    return await in_thread(partial(work, token), stop=partial(token.cancel, "the task was cancelled"))
