"""Page-aligned buffers that a whole store shares and uses again, and what writing past the page cache needs.

Large blobs go through a few of them in turn; a small one is held whole in one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from imagestore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from mmap import mmap

#: Of 2 MiB: a huge page on most systems. With half of it, handing buffers from thread to thread costs a tenth more.
BUFFER_BYTES: Final = 2 * 1024 * 1024
#: What every device and file system accepts as alignment of offsets, lengths and addresses.
BLOCK_BYTES: Final = 4096
#: Larger blobs have an ingest from the start. Each transfer holds as much memory, about half of a large one's.
SMALL_BYTES: Final = 9 * 256 * 1024
#: A byte more must fit, to see that a blob ends; and whole blocks are written.
SMALL_BUFFER_BYTES: Final = SMALL_BYTES + BLOCK_BYTES
#: Less than this is not worth opening the file twice, nor a huge page.
LEAST_DIRECT_BYTES: Final = 256 * 1024
#: Not on every system that has files.
DIRECT: Final = getattr(os, "O_DIRECT", 0)
# For the next pull.
_MOST_KEPT: Final = 8
# A blob gets a buffer more than it must have as long as no more than so many go round. So three at a time have seven.
_FEW: Final = 5
# Blobs with threads beside their transfers, and so several buffers each. Where more come, their transfers alone keep as
# many processors busy.
_MOST_HELPED: Final = 3
# Bounds what whole blobs in memory take, however many pulls one store runs: 54 MiB.
_MOST_LENT: Final = 24


class Buffers:
    """Page-aligned buffers, kept for the next blob; thread-safe.

    Args:
        most_lent: to those who can do without, see try_take().
    """

    def __init__(self, most_lent: int = _MOST_LENT) -> None:
        self._lendable = most_lent
        self._kept: deque[mmap] = deque(maxlen=_MOST_KEPT)
        self._going_round = 0
        # Re-entrant: a signal handler that pulls may run while this thread holds it.
        self._lock = threading.RLock()
        # The large blobs that come at the moment, the largest lowest; of equal ones the first.
        self._coming: set[tuple[int, int]] = set()
        self._helped: set[tuple[int, int]] = set()
        self._numbers = itertools.count()
        self._processors = os.cpu_count() or 1

    def take_some(self, least: int, most: int) -> list[memoryview]:
        """Buffers for one large blob, of BUFFER_BYTES each; give_some() must follow.

        Args:
            least: how many, if others have many.
            most: how many, as long as others have few.
        """
        with self._lock:
            count = most if self._going_round + most <= _FEW else least
            self._going_round += count
        try:
            return [memoryview(self._take())[:BUFFER_BYTES] for _ in range(count)]
        except BaseException:
            with self._lock:
                self._going_round -= count
            raise

    def give_some(self, taken: list[memoryview]) -> None:
        """Give back what take_some() gave."""
        with self._lock:
            self._going_round -= len(taken)
        for each in taken:
            self._give(each)

    def try_take(self, size: int) -> memoryview | None:
        """Memory for a whole small blob of so many bytes and one more, unless too many have such.

        What isn't written past the page cache has memory of its own size. give_back() must follow.
        """
        with self._lock:
            if not self._lendable:
                return None
            self._lendable -= 1
        try:
            if size < LEAST_DIRECT_BYTES:
                return memoryview(bytearray(size + 1))
            return memoryview(self._take())[:SMALL_BUFFER_BYTES]
        except BaseException:
            self._lend_again()
            raise

    def give_back(self, taken: memoryview) -> None:
        """Give back what try_take() gave."""
        if not isinstance(taken.obj, bytearray):
            self._give(taken)
        self._lend_again()

    def _lend_again(self) -> None:
        with self._lock:
            self._lendable += 1

    def _take(self) -> mmap:
        try:
            return self._kept.pop()
        except IndexError:
            return _memory()

    def _give(self, taken: memoryview) -> None:
        self._kept.append(cast("mmap", taken.obj))

    @contextlib.contextmanager
    def coming(self, size: int) -> Iterator[Callable[[], bool]]:
        """While a large blob of so many bytes comes.

        Yields:
            Asks for threads that work on it beside its transfer; once given, they are its own to the end. The largest
            have them first, since they decide when the pull ends, and the others when those before them are done.
        """
        own = (-size, next(self._numbers))
        with self._lock:
            self._coming.add(own)
        try:
            yield lambda: self._may_be_helped(own)
        finally:
            with self._lock:
                self._coming.remove(own)
                self._helped.discard(own)

    def _may_be_helped(self, own: tuple[int, int]) -> bool:
        with self._lock:
            is_among_first = sum(each < own for each in self._coming) < min(self._processors, _MOST_HELPED)
            # One more than processors: the largest may come last.
            if is_among_first and len(self._helped) < min(self._processors + 1, _MOST_HELPED):
                self._helped.add(own)
            return own in self._helped


def _memory() -> mmap:
    """Memory for any buffer: a huge page where there are such, and what only the largest of small blobs fill.

    Memory is found and cleared a page at a time: for 4 KiB that costs as much as hashing them, for 2 MiB hardly more.
    """
    import mmap

    # Whole huge pages: only then the system places it where huge pages can be (Linux 6.7 and later).
    whole = -(-SMALL_BUFFER_BYTES // BUFFER_BYTES) * BUFFER_BYTES
    try:
        memory = mmap.mmap(-1, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        mend = "allow the process more (ulimit -v, its control group), or let fewer layers come at a time"
        raise StoreError(f"no memory for a transfer's buffer: {error.strerror}", hint=mend) from error
    with contextlib.suppress(AttributeError, OSError):  # not on every system
        memory.madvise(mmap.MADV_HUGEPAGE, 0, BUFFER_BYTES)
        memory.madvise(mmap.MADV_NOHUGEPAGE, BUFFER_BYTES)
    return memory
