"""Work in a thread for an asynchronous program, on asyncio or trio: when its task is cancelled, the work is too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def run_cancellable(work: Callable[[CancelToken], T], limiter: anyio.CapacityLimiter | None = None) -> T:
    """Run work in a thread. If the task is cancelled, the work is cancelled, and the task waits for its end.

    Args:
        work: gets the token that is cancelled with the task.
        limiter: of how many run at a time; anyio's for all threads by default.
    """
    token, failure = CancelToken(), None

    async def _watch() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            token.cancel("the task was cancelled")

    result: list[T] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_watch)
        try:
            result.append(await anyio.to_thread.run_sync(work, token, limiter=limiter))
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            # If the task was cancelled, the caller gets the cancellation, not the work's error.
            await anyio.lowlevel.checkpoint_if_cancelled()
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result[0]
