"""The code of the last version whose stores had schema 6 (SQLite) and 1 (PostgreSQL), from the repository's history."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TOP = __file__.rpartition("/tests/")[0]
_COMMIT = "79894516adbe"


def unpack_earlier(folder: Path) -> Path:
    """Put that code into a folder; the test is skipped where the history isn't here, as in a shallow clone."""
    packed = subprocess.run(["git", "archive", _COMMIT, "imagestore"], cwd=TOP, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"commit {_COMMIT} is not in this clone")
    folder.mkdir()
    subprocess.run(["tar", "x"], cwd=folder, input=packed.stdout, check=True)
    return folder


def earlier(code: Path, *arguments: str) -> list[str]:
    """A command line of Python that imports that code."""
    return ["env", f"PYTHONPATH={code}", sys.executable, *arguments]


def run_earlier(code: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it; whether it succeeds is the caller's to look at."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        earlier(code, *arguments), env=environment, cwd=code, capture_output=True, text=True, timeout=120, check=False
    )
