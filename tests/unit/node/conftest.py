"""Temporary folders of these tests are in memory where there is any: stores sync every blob, which takes most of the
time of a test on a busy disk, and what is tested here isn't durability.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of the test's own, removed afterwards."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="imagestore-", dir=parent) as folder:
        yield Path(folder)
