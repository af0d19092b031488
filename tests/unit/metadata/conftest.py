"""What the tests of keeping and of the journal share: a store whose clock stands still."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.unit.metadata.keeping import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqliteMetadataStore]:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db", clock=clock)) as store:
        yield store
