"""Whether a file system makes those wait who use it; only then are several threads worth it.

A thread that waits for a disk leaves interpreter and processor to others. Where files are in memory nothing waits, and
threads only take the interpreter from each other, for each call anew: several take longer there than one.

Waiting for an interpreter or a processor that others keep busy can't be told from waiting for a disk. Then there are
several threads in memory too: slower, but no harm.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Less work tells nothing: the first calls find nothing in the processor's caches.
_LEAST_SECONDS: Final = 0.0005


class Waits:
    """What one piece of work found out.

    Attributes:
        is_long: it waited for more than half of some time; once so, so for good.
    """

    is_long = False

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Some of the work, done by this thread in the block."""
        started, spent = time.monotonic(), time.thread_time()
        yield
        taken = time.monotonic() - started
        if taken > _LEAST_SECONDS and time.thread_time() - spent < taken / 2:
            self.is_long = True
