"""What only the embedded adapters have, for tests that look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.metadata.sqlite.store import SqliteMetadataStore

if TYPE_CHECKING:
    from imagestore import ImageStore


def database_of(store: ImageStore) -> SqliteMetadataStore:
    """The store's records in SQLite."""
    assert isinstance(store.metadata, SqliteMetadataStore)
    return store.metadata
