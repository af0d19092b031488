"""What the kernel does about files of other users, for tests that run as any user, on any kernel."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def refuse_to_follow(monkeypatch: pytest.MonkeyPatch, link: Path) -> None:
    """As with fs.protected_symlinks = 1, of a link that a stranger laid where all may write: nothing follows it."""
    stat = os.stat

    def guarded(path: Any, *more: Any, **named: Any) -> os.stat_result:
        if named.get("follow_symlinks", True) and not isinstance(path, int) and os.fspath(path) == os.fspath(link):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return stat(path, *more, **named)

    monkeypatch.setattr(os, "stat", guarded)
