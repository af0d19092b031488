"""Symbolic links where somebody asked us to write: followed as the kernel would, so that a link stays a link."""

from __future__ import annotations

import contextlib
import os


def followed(path: str) -> str:
    """The path that a name means, without links.

    The kernel is asked first. Where everybody may write, as in /tmp, it follows no stranger's link (sysctl
    fs.protected_symlinks, proc(5)), and to take the link apart by its text would walk around that.

    Args:
        path: what it names need not be there.

    Raises:
        OSError: as opening it would.
    """
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
    return os.path.realpath(path)
