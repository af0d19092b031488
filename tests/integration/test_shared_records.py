"""The metadata port's contract over PostgreSQL, and what is only true of a shared store's records."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from imagestore.metadata.postgres import PostgresMetadataStore
from tests.contracts.metadata import Later, MetadataContract

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
