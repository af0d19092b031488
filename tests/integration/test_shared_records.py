"""The metadata port's contract over PostgreSQL, and what is only true of a shared store's records."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest

from imagestore.metadata import PostgresMetadataStore
from tests.contracts.metadata import Later, MetadataContract, record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore import MetadataStore

pytestmark = pytest.mark.integration


class TestPostgres(MetadataContract):
    @pytest.fixture
    def metadata(self, database_url: str) -> Iterator[MetadataStore]:
        with contextlib.closing(PostgresMetadataStore(database_url)) as store:
            yield store

    @pytest.fixture
    def later(self, database_url: str) -> Later:
        return lambda: contextlib.closing(PostgresMetadataStore(database_url))

    def test_all_scopes_have_the_stores_id(self, metadata: MetadataStore, database_url: str) -> None:
        with contextlib.closing(PostgresMetadataStore(database_url, scope="other")) as other:
            assert other.store_id == metadata.store_id

    def test_uses_are_noted_of_what_was_not_used_a_moment_ago(self, metadata: MetadataStore, database_url: str) -> None:
        names = [f"registry.example/{name}:1" for name in "abc"]
        metadata.images.put_many((record(name), {}) for name in names)
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute("UPDATE image SET updated_at = 0 WHERE reference <> %s", (names[2],))
        metadata.images.touch_many([(name, "runc") for name in (*names[1:], "none", names[1])])
        assert [each.used_at > 0 for each in metadata.images.find()] == [False, True, False]
        metadata.images.touch(names[0], "runc")
        assert [each.used_at > 0 for each in metadata.images.find()] == [True, True, False]
