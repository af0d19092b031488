"""Where pulls write: a folder on a disk, and one in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMORY = ("tmpfs", "ramfs")
#: The largest image, twice, and something around it.
LEAST_FREE_BYTES = 5 << 30


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to work in.

    Attributes:
        name: ``disk`` or ``tmpfs``.
        folder: for everything.
        kind: of file system.
    """

    name: str
    folder: Path
    kind: str

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Path]:
        """A folder that is gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def file_system(path: Path) -> str:
    """Kind of the file system that a path is on, from the mounts of this process; empty when it can't be told."""
    found, longest = "", -1
    real = os.path.realpath(path)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            found, longest = kind, len(point)
    return found


def choose(disk: Path, memory: Path) -> tuple[list[Place], list[str]]:
    """The places that can be used, and what is to be said about those that can't.

    Args:
        disk: a folder on a disk; made when it is missing.
        memory: a folder in memory.
    """
    places, notes = [], []
    for name, folder in (("disk", disk), ("tmpfs", memory)):
        if name == "disk":
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            notes.append(f"{name}: left out, {folder} is no folder that can be written")
            continue
        kind, free = file_system(folder), shutil.disk_usage(folder).free
        if (kind in _MEMORY) != (name == "tmpfs"):
            notes.append(f"{name}: {folder} is on {kind or 'an unknown file system'}")
            if name == "tmpfs":
                continue
        if free < LEAST_FREE_BYTES:
            notes.append(f"{name}: left out, {folder} has {free >> 20} MiB free, {LEAST_FREE_BYTES >> 20} are needed")
            continue
        places.append(Place(name, folder, kind))
    return places, notes
