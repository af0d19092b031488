"""When to collect garbage: containerd's scheduler, with an upper bound.

After a removal the next look collects; so do 100 changes of records without one, and the longest interval, since
leases and unfinished downloads expire by themselves. Looks are so far apart that collecting takes at most two
hundredths of the time. (containerd: pause threshold 0.02, mutation threshold 100, deletion threshold 0.)
"""

from __future__ import annotations

from typing import Final

PAUSE_THRESHOLD: Final = 0.02
MUTATION_THRESHOLD: Final = 100
STARTUP_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 1.0


class GcSchedule:
    """Decides at each look whether to collect.

    Args:
        longest_seconds: between two collections.
        now: seconds on a steady clock.
    """

    def __init__(self, longest_seconds: float, now: float) -> None:
        self._longest = longest_seconds
        self._runs = 0
        self._spent = 0.0
        self._last_at = now
        self._removals = 0
        self._generation: int | None = None

    def pause_seconds(self) -> float:
        """How long to wait before the next look."""
        if not self._runs:
            return min(STARTUP_SECONDS, self._longest)
        average = self._spent / self._runs
        return min(self._longest, max(_LEAST_SECONDS, average / PAUSE_THRESHOLD - average))

    def is_due(self, now: float, removals: int, generation: int | None) -> bool:
        """Whether to collect now.

        Args:
            now: seconds on the steady clock.
            removals: how many there were since the start.
            generation: number of the last change of records, or None when unknown.
        """
        if not self._runs or removals != self._removals or now - self._last_at >= self._longest:
            return True
        if generation is None or self._generation is None:
            return False
        return generation - self._generation >= MUTATION_THRESHOLD

    def ran(self, now: float, seconds: float, removals: int, generation: int | None) -> None:
        """A collection ended, well or not.

        Args:
            now: seconds on the steady clock.
            seconds: how long it took.
            removals: how many there were when it began.
            generation: number of the last change of records when it began.
        """
        self._runs += 1
        self._spent += seconds
        self._last_at, self._removals, self._generation = now, removals, generation
