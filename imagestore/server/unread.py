"""Answers on their way to callers who may not be reading: how many bytes wait, and who has to give way.

HTTP/2 keeps what a caller doesn't take in this process's memory, and a caller can ask for a long list a thousand times
without reading one. A reader takes its answer within milliseconds. So when more than a soft limit waits, the answers
that have waited longest are withdrawn, if that is longer than any reader takes. Above the hard limit the patience is
shorter, and further answers wait for room; those that find none in time are refused.
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
PATIENCE_SECONDS: Final = 2.0
SHORT_PATIENCE_SECONDS: Final = 0.25
_WAIT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05


class Unread:
    """Counts what waits to be read; for one event loop.

    Args:
        soft_bytes: above this, the longest waiting are withdrawn.
        hard_bytes: above this, answers wait for room.
        clock: seconds, steady.
    """

    def __init__(
        self,
        soft_bytes: int = SOFT_BYTES,
        hard_bytes: int = HARD_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._soft = soft_bytes
        self._hard = hard_bytes
        self._clock = clock
        self._waiting: dict[asyncio.Task[Any], tuple[float, int]] = {}
        #: Bytes that wait now.
        self.total = 0

    async def begin(self, task: asyncio.Task[Any], size: int) -> None:
        """An answer goes out, as soon as there is room for it.

        Args:
            task: of the call; cancelled when the answer has to be withdrawn.
            size: its bytes.

        Raises:
            StoreBusyError: too much waited for too long.
        """
        give_up_at = self._clock() + _WAIT_SECONDS
        while not self._make_room(size):
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
        if found is not None:
            self.total -= found[1]

    def _make_room(self, size: int) -> bool:
        """Say whether an answer may go out now; one that is larger than every limit goes alone."""
        if self.total + size > self._soft:
            self._withdraw(self.total + size - self._soft, PATIENCE_SECONDS)
        if self.total + size > self._hard:
            self._withdraw(self.total + size - self._hard, SHORT_PATIENCE_SECONDS)
        return self.total + size <= self._hard or not self.total

    def _withdraw(self, wanted: int, patience: float) -> None:
        """Cancel the oldest until enough bytes are free; a dict keeps its order."""
        limit = self._clock() - patience
        for task, (since, size) in list(self._waiting.items()):
            if wanted <= 0 or since > limit:
                return
            self.end(task)
            task.cancel()
            wanted -= size
