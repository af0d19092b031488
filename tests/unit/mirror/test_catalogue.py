"""The contract of a mirror's catalogue over SQLite, and what is SQLite's own."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import pytest

from imagestore import Descriptor, Digest
from imagestore.errors import StoreError
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.catalogue_database import SqliteCatalogueDatabase
from tests.contracts.catalogue import CatalogueContract, Later

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def opened(path: Path) -> Catalogue:
    return Catalogue(SqliteCatalogueDatabase(path))


class TestSqlite(CatalogueContract):
    @pytest.fixture
    def rows(self, tmp_path: Path) -> Iterator[Catalogue]:
        with contextlib.closing(opened(tmp_path / "mirror.db")) as rows:
            yield rows

    @pytest.fixture
    def later(self, tmp_path: Path) -> Later:
        return lambda: contextlib.closing(opened(tmp_path / "mirror.db"))


def test_another_versions_file_begins_anew(tmp_path: Path) -> None:
    path, blob = tmp_path / "mirror.db", Descriptor("a/b", Digest.of(b"x"), 1)
    with contextlib.closing(opened(path)) as rows:
        rows.put_blob("r.example", "r.example/a", blob, now=1.0)
    with contextlib.closing(opened(path)) as rows:
        assert rows.used_bytes() == {"r.example": 1}
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")
    with contextlib.closing(opened(path)) as rows:
        assert rows.used_bytes() == {}


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        opened(tmp_path / "missing" / "mirror.db")
