"""Answers on their way to callers who may not be reading: how many bytes wait, in all.

HTTP/2 keeps what a caller doesn't take in this process's memory, and a caller can ask for a long list a thousand times
without reading one. gRPC's Python interface can't take an answer back. So large answers are counted until they were
taken, and above a limit further ones wait for room; meanwhile connections whose peer has stopped reading are cut, which
frees what waits in them. Who finds no room in time is refused. Small answers never wait. A peer may also read its
connection and grant its calls no window: answers that have waited for long keep nobody waiting, up to a last limit.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_BYTES: Final = 48 * 1024 * 1024
#: Of the limit, with the answers that have waited for long.
MOST_WITH_OLD: Final = 8 / 3
OLD_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1


class Unread:
    """Counts what waits to be read; for one event loop.

    Args:
        relieve: cuts connections that nobody reads; called again and again while there is no room.
        limit_bytes: above this, answers wait for room.
        clock: seconds, steady.
        emptied: called when nothing waits any more, after much did.
    """

    def __init__(
        self,
        relieve: Callable[[], object],
        limit_bytes: int = LIMIT_BYTES,
        clock: Callable[[], float] = time.monotonic,
        emptied: Callable[[], object] = lambda: None,
    ) -> None:
        self._relieve = relieve
        self._emptied = emptied
        self._was_much = False
        self._limit = limit_bytes
        self._clock = clock
        self._waiting: dict[asyncio.Task[Any], tuple[float, int]] = {}
        self._relieved_at = -math.inf
        #: Bytes that wait now.
        self.total = 0

    async def begin(self, task: asyncio.Task[Any], size: int) -> None:
        """An answer goes out, as soon as there is room for it; one above the limit goes alone.

        Args:
            task: of the call.
            size: its bytes.

        Raises:
            StoreBusyError: too much waited for too long.
        """
        give_up_at = self._clock() + WAIT_SECONDS
        while not self._has_room(size):
            self._relieve_in_turn()
            if self._clock() >= give_up_at:
                raise StoreBusyError(
                    f"answers: expected callers to read them, but {self.total} bytes wait to be read",
                    hint="try again later",
                )
            await asyncio.sleep(_LOOK_SECONDS)
        self._waiting[task] = (self._clock(), size)
        self.total += size
        self._was_much = self._was_much or self.total > self._limit // 2

    def _relieve_in_turn(self) -> None:
        """One look serves all who wait: each costs as many system calls as there are descriptors."""
        now = self._clock()
        if now - self._relieved_at >= _LOOK_SECONDS:
            self._relieved_at = now
            self._relieve()

    def end(self, task: asyncio.Task[Any]) -> None:
        """The answer was taken, or its call is over."""
        found = self._waiting.pop(task, None)
        if found is None:
            return
        self.total -= found[1]
        if self._was_much and not self.total:
            self._was_much = False
            self._emptied()

    def _has_room(self, size: int) -> bool:
        after = self.total + size
        if not self.total or after <= self._limit:
            return True
        return after <= self._limit * MOST_WITH_OLD and self._young() + size <= self._limit

    def _young(self) -> int:
        """Bytes that wait no longer than a slow reader may take; a dict keeps its order."""
        limit, total = self._clock() - OLD_SECONDS, 0
        for since, size in reversed(self._waiting.values()):
            if since < limit:
                break
            total += size
        return total
