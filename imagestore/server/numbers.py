"""What is counted about calls, and where to: nowhere by default.

The port keeps Prometheus' library out of servers that publish no metrics.
"""

from __future__ import annotations

from typing import Protocol


class CallNumbers(Protocol):
    """Hears of every call."""

    def began(self, method: str) -> None:
        """A call starts.

        Args:
            method: ``/package.Service/Method``.
        """

    def ended(self, method: str, code: str, seconds: float) -> None:
        """A call is over.

        Args:
            method: ``/package.Service/Method``.
            code: name of its status code.
            seconds: how long it took.
        """


class NoNumbers:
    """Nobody counts."""

    def began(self, method: str) -> None:
        """See CallNumbers."""

    def ended(self, method: str, code: str, seconds: float) -> None:
        """See CallNumbers."""
