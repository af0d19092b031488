"""Names of archives that are being written, next to their final ones; and the end of those whose writer died.

A writer holds a lock on its temporary file; an unlocked file was left by a dead process, and goes when the
next archive of that name is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
import uuid
from typing import Final

_ENDING: Final = r"\.[0-9a-f]{12}\.partial"
# Between making it and locking it a writer has this long.
_LEAST_AGE_SECONDS: Final = 60.0
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def partial_name(final: str) -> str:
    """A new name next to the final one; what dead writers of ours left next to it is removed, as far as we may."""
    folder, name = os.path.split(final)
    dead = re.compile(re.escape(name) + _ENDING)
    found: list[str] = []
    with contextlib.suppress(OSError):  # a folder that we may write and not list
        found = [each for each in os.listdir(folder or os.curdir) if dead.fullmatch(each)]
    for each in found:
        with contextlib.suppress(OSError):
            _remove_dead(os.path.join(folder, each))
    return f"{final}.{uuid.uuid4().hex[:12]}.partial"


def lock(descriptor: int) -> None:
    """Say that a process writes there; where the file system has no locks, what is left isn't removed."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_dead(path: str) -> None:
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _LEAST_AGE_SECONDS:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path)
        elif stat.S_ISREG(status.st_mode):
            os.unlink(path)
    finally:
        os.close(descriptor)
