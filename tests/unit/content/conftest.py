"""A store."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.content.local import LocalContentStore


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")
