"""The folder of an ingest, in containerd's form.

ingest/<sha256 of the ref>/ref         the ingest's name
                          /data        the bytes so far; its size is the offset
                          /startedat   RFC 3339 with nanoseconds
                          /updatedat   the same
                          /total       decimal, only when known
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING

from imagestore.content.api import IngestStatus
from imagestore.oci.digest import Digest
from imagestore.util.failpoint import reach
from imagestore.util.files import opener

if TYPE_CHECKING:
    from pathlib import Path


def ingest_name(ref: str) -> str:
    """The folder of an ingest: lower-case sha256 of its name, whatever the content's algorithm.

    >>> ingest_name("hello-ref")[:12]
    '9e2b3b72513e'
    """
    return Digest.of(ref.encode()).encoded


def read_status(directory: Path) -> IngestStatus | None:
    """What an ingest's folder says; None when it isn't one (or is just being made or removed)."""
    try:
        # Not as text: a carriage return is a part of the name.
        ref = _read(directory / "ref")
        data = os.lstat(directory / "data")
    except (OSError, UnicodeDecodeError):
        return None
    if not stat.S_ISREG(data.st_mode):
        return None
    return IngestStatus(
        ref=ref,
        offset=data.st_size,
        total=_read_total(directory),
        started_at=_read_time(directory / "startedat", data.st_mtime),
        updated_at=max(_read_time(directory / "updatedat", 0.0), data.st_mtime),
    )


def read_remains(directory: Path) -> IngestStatus | None:
    """A folder that has lost (or never got) its name, as an ingest named like the folder; None when it is gone."""
    size = 0
    try:
        made_at = updated_at = os.stat(directory).st_mtime
        with os.scandir(directory) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                size, updated_at = size + status.st_size, max(updated_at, status.st_mtime)
    except OSError:
        return None
    return IngestStatus(directory.name, size, 0, made_at, updated_at)


def remove_ingest(directory: Path) -> None:
    """Throw an ingest's folder away, its data last, so that a half removed one still says how big it is."""
    for name in ("ref", "startedat", "updatedat", "total"):
        reach("ingest-remove")
        with contextlib.suppress(OSError):
            os.unlink(directory / name)
    reach("ingest-remove-data")
    with contextlib.suppress(OSError):
        os.unlink(directory / "data")
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return
    except OSError:
        # Something is in it that isn't ours.
        shutil.rmtree(directory, ignore_errors=True)


def now_text() -> str:
    """The moment, as it is noted."""
    nanoseconds = time.time_ns()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9))
    fraction = f"{nanoseconds % 10**9:09d}".rstrip("0")
    return whole + (f".{fraction}" if fraction else "") + "Z"


def _read(path: Path) -> str:
    with open(path, "rb", opener=opener) as file:
        return file.read().decode("utf-8")


def _read_total(directory: Path) -> int:
    try:
        text = _read(directory / "total")
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _read_time(path: Path, default: float) -> float:
    try:
        text = _read(path)
        whole, _, fraction = text.removesuffix("Z").partition(".")
        moment = datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.UTC)
        return moment.timestamp() + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)
    except (OSError, ValueError):
        return default
