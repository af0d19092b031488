"""Answers on their way to callers who may not be reading: how many bytes wait, and who has to give way.

HTTP/2 keeps what a caller doesn't take in this process's memory, and a caller can ask for a long list a thousand times
without reading one. A reader takes its answer within milliseconds. So when more than a soft limit waits, callers who
read nothing at all from their connections are disconnected, which is what frees the memory. Above the hard limit the
patience with them is shorter, and further answers wait for room; those that find none in time are refused. A caller may
also read its connection and still leave answers untaken, by HTTP/2's own flow control; those don't keep others waiting
once they are old, but for them too there is a limit.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

SOFT_BYTES: Final = 24 * 1024 * 1024
HARD_BYTES: Final = 48 * 1024 * 1024
MOST_BYTES: Final = 128 * 1024 * 1024
PATIENCE_SECONDS: Final = 2.0
SHORT_PATIENCE_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05


class Unread:
    """Counts what waits to be read; for one event loop.

    Args:
        disconnect: ends the connections of callers who took nothing for so many seconds; cheap enough for every 50 ms.
        relieved: told when nothing waits any more after there was more than the soft limit.
        soft_bytes: above this, callers who don't read are disconnected.
        hard_bytes: above this, answers wait for room.
        most_bytes: above this, they wait for old ones too.
        clock: seconds, steady.
    """

    def __init__(
        self,
        disconnect: Callable[[float], object],
        relieved: Callable[[], object],
        *,
        soft_bytes: int = SOFT_BYTES,
        hard_bytes: int = HARD_BYTES,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._disconnect = disconnect
        self._relieved = relieved
        self._soft = soft_bytes
        self._hard = hard_bytes
        self._most = most_bytes
        self._clock = clock
        self._waiting: dict[asyncio.Task[Any], tuple[float, int]] = {}
        self._looked_at = -_LOOK_SECONDS
        self._is_pressed = False
        #: Bytes that wait now.
        self.total = 0

    async def begin(self, task: asyncio.Task[Any], size: int) -> None:
        """An answer goes out, as soon as there is room for it.

        Args:
            task: of the call.
            size: its bytes.

        Raises:
            StoreBusyError: too much waited for too long.
        """
        give_up_at = self._clock() + _WAIT_SECONDS
        while not self._has_room(size):
            if self._clock() >= give_up_at:
                raise StoreBusyError(
                    f"answers: expected callers to read them, but {self.total} bytes wait to be read",
                    hint="try again later",
                )
            await asyncio.sleep(_LOOK_SECONDS)
        self._waiting[task] = (self._clock(), size)
        self.total += size

    def end(self, task: asyncio.Task[Any]) -> None:
        """The answer was taken, or its call is over."""
        found = self._waiting.pop(task, None)
        if found is None:
            return
        self.total -= found[1]
        if not self.total and self._is_pressed:
            self._is_pressed = False
            self._relieved()

    def _has_room(self, size: int) -> bool:
        """Say whether an answer may go out now; one that is larger than every limit goes alone."""
        after = self.total + size
        if after > self._soft:
            self._look(PATIENCE_SECONDS if after <= self._hard else SHORT_PATIENCE_SECONDS)
        if after <= self._hard or not self.total:
            return True
        return after <= self._most and self._young() + size <= self._hard

    def _look(self, patience: float) -> None:
        self._is_pressed = True
        now = self._clock()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._disconnect(patience)

    def _young(self) -> int:
        """Bytes that have waited no longer than a slow reader may take; a dict keeps its order."""
        limit, total = self._clock() - PATIENCE_SECONDS, 0
        for since, size in reversed(self._waiting.values()):
            if since < limit:
                break
            total += size
        return total
