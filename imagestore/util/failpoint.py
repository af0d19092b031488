"""Failpoints: named places in front of and behind every step on disk where a test may end this process.

``IMAGESTORE_FAILPOINT=name:count`` acts the count-th time the place is reached; the name ``*`` counts every place.
``name:count:ENOSPC`` raises that system error there instead of killing the process. Without the variable a place costs
one look at a cached value.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Self

VARIABLE: Final = "IMAGESTORE_FAILPOINT"
_GRAMMAR: Final = re.compile(r"(\*|[a-z-]+):([0-9]{1,9})(?::(E[A-Z]+))?")


def reach(name: str) -> None:
    """Say that this place was reached.

    Args:
        name: the place, unique in the program.

    Raises:
        OSError: the variable asks for a system error here.
    """
    armed = _armed()
    if armed is not None:
        armed.count(name)


class _Armed:
    """What the variable asks for; counts over all threads."""

    def __init__(self, name: str, after: int, number: int) -> None:
        self._name = name
        self._left = after
        self._number = number
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the value of the variable; None if it is empty or does not follow the grammar."""
        found = _GRAMMAR.fullmatch(text) if text else None
        if found is None:
            return None
        name, after, error = found.groups()
        return cls(name, int(after), getattr(errno, error or "", 0))

    def count(self, name: str) -> None:
        """Count a visit to a place, and act if it is the one asked for: kill the process, or raise.

        Raises:
            OSError: the variable names this system error.
        """
        if self._name not in ("*", name):
            return
        with self._lock:
            self._left -= 1
            is_due = self._left == 0
        if not is_due:
            return
        if self._number:
            raise OSError(self._number, os.strerror(self._number))
        os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def _armed() -> _Armed | None:
    return _Armed.parse(os.environ.get(VARIABLE, ""))
