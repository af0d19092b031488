"""Places for pulls at work, shared out among registries.

A registry may take a further place only while at least as many places are free as it holds itself. So one slow registry
gets about half of the places, a second one half of the rest, and a registry that holds none gets the next free place.

Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter


class PullPlaces:
    """Hands out places in the order in which they were asked for, as far as the registries' shares allow.

    Args:
        limit: places in all.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._held: Counter[str] = Counter()
        # In the order in which they came.
        self._waiting: dict[asyncio.Future[None], str] = {}

    def try_take(self, host: str) -> bool:
        """Take a place if that is possible at once."""
        if not self._may_take(host):
            return False
        self._take(host)
        return True

    async def take(self, host: str) -> None:
        """Wait for a place; cancelling the wait leaves the line.

        Args:
            host: the registry that the pull goes to.
        """
        if self.try_take(host):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = host
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None and not turn.cancelled():
                # The place was handed over in the same moment.
                self.give_back(host)
            raise

    def give_back(self, host: str) -> None:
        """Free a place, for the first in the line that may have it."""
        self._free += 1
        self._held[host] -= 1
        if not self._held[host]:
            del self._held[host]
        for turn, waiting in list(self._waiting.items()):
            if self._may_take(waiting):
                del self._waiting[turn]
                if not turn.done():
                    self._take(waiting)
                    turn.set_result(None)

    def _may_take(self, host: str) -> bool:
        return self._free > 0 and self._free >= self._held[host]

    def _take(self, host: str) -> None:
        self._free -= 1
        self._held[host] += 1
