"""Locks on files as the kernel tells them, and on databases as another process meets them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path


def locks_on(folder: Path, pid: int | None = None) -> list[str]:
    """Names of a folder's files on which a process (this one) has POSIX locks."""
    names = {each.stat().st_ino: each.name for each in folder.iterdir()}
    found = set()
    for line in Path("/proc/locks").read_text().splitlines():
        # "1: POSIX  ADVISORY  READ 4711 fe:00:123456 128 128", proc(5)
        _, kind, _, _, owner, place, *_ = line.split()
        inode = int(place.rpartition(":")[2])
        if kind == "POSIX" and int(owner) == (pid or os.getpid()) and inode in names:
            found.add(names[inode])
    return sorted(found)


def is_locked(database: Path) -> bool:
    """Whether another process would have to wait before it could write."""
    with contextlib.closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False
