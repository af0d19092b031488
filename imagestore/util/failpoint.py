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
from typing import Final

VARIABLE: Final = "IMAGESTORE_FAILPOINT"
_GRAMMAR: Final = re.compile(r"(\*|[a-z-]+):([0-9]{1,9})(?::(E[A-Z]+))?")


class _Failpoint:
    """The parsed variable; ``left`` counts down the visits of all threads."""

    def __init__(self, name: str, count: int, number: int) -> None:
        self.name = name
        self.left = count
        self.number = number
        self.lock = threading.Lock()


@functools.cache
def _failpoint() -> _Failpoint | None:
    found = _GRAMMAR.fullmatch(os.environ.get(VARIABLE, ""))
    return None if found is None else _Failpoint(found[1], int(found[2]), getattr(errno, found[3] or "", 0))


def reach(name: str) -> None:
    """Mark that this place is reached; kill the process or raise if the variable names it.

    Raises:
        OSError: the variable names a system error.
    """
    point = _failpoint()
    if point is None or point.name not in ("*", name):
        return
    with point.lock:
        point.left -= 1
        is_due = point.left == 0
    if not is_due:
        return
    if point.number:
        raise OSError(point.number, os.strerror(point.number))
    os.kill(os.getpid(), signal.SIGKILL)
