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
#: One piece of work may have been interrupted by anything.
_IN_A_ROW: Final = 3


class Waits:
    """What somebody's work found out.

    Attributes:
        is_long: several pieces in a row waited for more than half of their time; once so, so for good.
    """

    is_long = False
    _in_a_row = 0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """A piece of the work, done by this thread in the block."""
        started, spent = time.monotonic(), time.thread_time()
        yield
        taken = time.monotonic() - started
        is_waiting = taken > _LEAST_SECONDS and time.thread_time() - spent < taken / 2
        self._in_a_row = self._in_a_row + 1 if is_waiting else 0
        self.is_long = self.is_long or self._in_a_row >= _IN_A_ROW
