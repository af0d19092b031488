"""Memory that was needed for a moment, back to the system: glibc's allocator keeps most of it for itself otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from typing import Final

# gRPC's core lets go of answers a moment after their calls have ended.
_DELAY_SECONDS: Final = 1.0


def give_back_soon() -> None:
    """Return what will be free in a moment; for the event loop."""
    loop = asyncio.get_running_loop()
    loop.call_later(_DELAY_SECONDS, lambda: loop.run_in_executor(None, give_back))


def give_back() -> None:
    """Return what is free; does nothing where the C library has no such call."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
