"""How long a test waits for what must come: far longer than it takes, since other work may have the processors."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS: Final = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds.

    Args:
        condition: is asked again and again.
        what: what was awaited, for the failure.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"never within {PATIENCE_SECONDS:g} seconds: {what}"
        time.sleep(0.005)


async def until_in_loop(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds while the event loop goes on; see :func:`until`."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"never within {PATIENCE_SECONDS:g} seconds: {what}"
        await asyncio.sleep(0.001)
