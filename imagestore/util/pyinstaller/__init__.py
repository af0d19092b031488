"""What PyInstaller asks this package for: the folder of its hook (entry point ``pyinstaller40``, ``hook-dirs``)."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """The folders with hooks for PyInstaller."""
    return [str(Path(__file__).parent)]
