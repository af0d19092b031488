"""What is counted about pulls, and where to: nowhere by default.

The port keeps Prometheus' library out of servers that publish no metrics. Calls come from the event loop and from
worker threads and must return quickly. Handlers are names of configured runtime handlers, so there are few.
"""

from __future__ import annotations

import enum
from typing import Protocol


class PullOutcome(enum.Enum):
    """How a pull ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


class Meter(Protocol):
    """Hears of every pull. A pull that joins another one is that other one, and is counted as joined only."""

    def pulls_waiting(self, count: int) -> None:
        """So many pulls stand in the line now."""

    def pull_joined(self, handler: str) -> None:
        """A caller shares a pull that goes on already."""

    def pull_began(self, handler: str) -> None:
        """A pull got its place and begins to work."""

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        """A pull that began is over.

        Args:
            handler: name of the runtime handler.
            outcome: how it ended.
            bytes_fetched: what came over the network for it.
            seconds: how long it worked, without its time in the line.
        """


class NoMeter:
    """Nobody counts."""

    def pulls_waiting(self, count: int) -> None:
        """See Meter."""

    def pull_joined(self, handler: str) -> None:
        """See Meter."""

    def pull_began(self, handler: str) -> None:
        """See Meter."""

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        """See Meter."""
