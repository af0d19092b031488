"""The metadata port's contract over the embedded adapter, and over the documented example."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from examples.adapters import Records
from imagestore.errors import StoreCorruptError, StoreError, UnsupportedError
from imagestore.metadata import SqliteMetadataStore
from imagestore.testing.contracts import MetadataContract
from imagestore.testing.contracts.metadata import record
from tests.contracts.pages import PagedContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagestore import MetadataStore
    from imagestore.testing.contracts.metadata import Later


class TestSqlite(PagedContract):
    @pytest.fixture
    def metadata(self, tmp_path: Path) -> Iterator[MetadataStore]:
        with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
            yield store

    @pytest.fixture
    def later(self, tmp_path: Path) -> Later:
        return lambda: contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db"))


class TestExample(MetadataContract):
    @pytest.fixture
    def metadata(self, tmp_path: Path) -> Iterator[MetadataStore]:
        with contextlib.closing(Records(str(tmp_path / "records.db"))) as store:
            yield store

    @pytest.fixture
    def later(self, tmp_path: Path) -> Later:
        return lambda: contextlib.closing(Records(str(tmp_path / "records.db")))


def test_a_newer_version_of_the_tables_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "records.db")
    with contextlib.closing(Records(path)) as store:
        store.execute("PRAGMA user_version = 99", {})
    with pytest.raises(StoreCorruptError, match="99"):
        Records(path)


def test_an_error_of_the_database_ends_the_transaction() -> None:
    store = Records()
    with pytest.raises(StoreError, match="no such table"), store.exclusive():
        store.execute("SELECT * FROM elsewhere", {})
    with store.exclusive():
        assert store.images.find() == []


def test_a_row_that_is_no_record_is_damage() -> None:
    store = Records()
    store.images.put(record(), {})
    store.execute("UPDATE image SET target = 'nonsense'", {})
    with pytest.raises(StoreCorruptError):
        store.images.find()


def test_the_program_backs_its_database_up_itself(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        Records().backup(tmp_path / "copy")
