"""What the kernel does about files of other users, for tests that run as any user, on any kernel."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

_USER: Final = 12345


def refuse_to_follow(monkeypatch: pytest.MonkeyPatch, link: Path) -> None:
    """As with fs.protected_symlinks = 1, of a link that a stranger laid where all may write: nothing follows it."""
    stat = os.stat

    def guarded(path: Any, *more: Any, **named: Any) -> os.stat_result:
        if named.get("follow_symlinks", True) and not isinstance(path, int) and os.fspath(path) == os.fspath(link):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return stat(path, *more, **named)

    monkeypatch.setattr(os, "stat", guarded)


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A folder of a user whom permissions bind, as whom the block runs: this one, for root another.

    Modules that the block needs must be loaded before: that user may not be able to read them.
    """
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, _USER, _USER)
        os.seteuid(_USER)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)
