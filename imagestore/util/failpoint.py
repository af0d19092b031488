"""Failpoints: named places before every step on disk, where a test can kill this process.

``IMAGESTORE_FAILPOINT=name:count`` kills the process when the place is reached for the count-th time; the name ``*``
counts every place. ``name:count:ENOSPC`` raises that system error there instead. Without the variable a place costs one
read of a cached value.
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
    """Mark that this place is reached; kill the process or raise if the variable names it.

    Raises:
        OSError: the variable names a system error.
    """
    armed = _armed()
    if armed is not None:
        armed.count(name)


class _Armed:
    """The parsed variable, with the visits of all threads."""

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
        """Count a visit, and act if it is the one that the variable names.

        Raises:
            OSError: the variable names a system error.
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
