"""Advice where the system refuses a store's file or folder to this user."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from imagestore.errors import StoreReadOnlyError


def permission_hint(*paths: object) -> str:
    """What to do where this user was refused files or folders of a store, some of which may be missing.

    If permissions of this user's own file, or of the folder that it is in, refuse it, they are named.

    Args:
        paths: those of which one was refused; what is no text or path, as an OSError may have it, is passed over.
    """
    given = [Path(path) for path in paths if isinstance(path, str | os.PathLike)]
    return next(filter(None, map(_nearest_hint, given)), StoreReadOnlyError.HINT)


def _nearest_hint(path: Path) -> str:
    for each in (path, *path.parents):
        with contextlib.suppress(OSError):  # missing, or in a folder that refuses it
            status = os.lstat(each)
            if stat.S_ISDIR(status.st_mode):
                return _own_hint(each, status, "rwx")
            return _own_hint(each.parent, os.stat(each.parent), "rwx") or _own_hint(each, status, "rw")
    return ""


def _own_hint(path: Path, status: os.stat_result, needed: str) -> str:
    bits = {"r": stat.S_IRUSR, "w": stat.S_IWUSR, "x": stat.S_IXUSR}
    missing = "".join(letter for letter in needed if not status.st_mode & bits[letter])
    # Permissions don't bind root: something else refuses.
    is_bound = status.st_uid == os.geteuid() != 0
    return f"run 'chmod u+{missing} {path}'" if missing and is_bound else ""
