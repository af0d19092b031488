"""The metadata port's contract over the embedded adapter, and over a double in memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.contracts.metadata import Later, MetadataContract
from tests.support.memory_metadata import MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagestore import MetadataStore


class TestSqlite(MetadataContract):
    @pytest.fixture
    def metadata(self, tmp_path: Path) -> Iterator[MetadataStore]:
        with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
            yield store

    @pytest.fixture
    def later(self, tmp_path: Path) -> Later:
        return lambda: contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db"))


class TestMemory(MetadataContract):
    @pytest.fixture
    def metadata(self) -> MetadataStore:
        return MemoryMetadataStore()

    @pytest.fixture
    def later(self, metadata: MetadataStore) -> Later:
        return lambda: contextlib.nullcontext(metadata)
