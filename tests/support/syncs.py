"""What is made to outlast a loss of power."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all files and folders that are synced from now on, in order."""
    synced, fsync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return synced
