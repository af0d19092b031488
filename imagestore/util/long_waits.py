"""Waits for locks that other processes hold: one that is long is logged, with the holder, and told to its operation.

Operations are told apart by the context (``contextvars``), which ``executors`` passes on to threads that they start.
"""

from __future__ import annotations

import contextlib
import logging
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

#: A wait of so long is told.
LONG_WAIT_SECONDS: Final = 2.0


class _Listener:
    def __init__(self, tell: Callable[[str], object]) -> None:
        self.tell = tell
        self.known: set[str] = set()


_LISTENER: Final[ContextVar[_Listener | None]] = ContextVar("imagestore_long_waits", default=None)


@contextlib.contextmanager
def told_to(tell: Callable[[str], object]) -> Iterator[None]:
    """Call ``tell`` with a line about each long wait of the block, and of the threads that it starts."""
    token = _LISTENER.set(_Listener(tell))
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report(what: str, holder: str) -> None:
    """Log a long wait, and tell it to its operation, which hears once of each thing that it waits for.

    Args:
        what: is locked: a file's path, or a database.
        holder: who holds the lock.
    """
    listener = _LISTENER.get()
    if listener is not None:
        if what in listener.known:
            return
        listener.known.add(what)
    line = f"{what}: waiting for a lock that {holder} holds"
    log.warning("%s", line)
    if listener is not None:
        listener.tell(line)


class LongWait:
    """A wait in which one tries again and again.

    Args:
        what: is locked.
        holder: looks who holds the lock; called once.
    """

    def __init__(self, what: str, holder: Callable[[], str]) -> None:
        self._what = what
        self._holder = holder
        self._due = time.monotonic() + LONG_WAIT_SECONDS

    def look(self) -> None:
        """Report the wait once it is long; to be called between two tries."""
        if time.monotonic() >= self._due:
            self._due = float("inf")
            report(self._what, self._holder())
