"""What only the embedded adapters have, for tests that look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore import Digest, ImageStore
from imagestore.metadata.sqlite.store import SqliteMetadataStore

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore import MetadataStore


def database_of(store: ImageStore) -> SqliteMetadataStore:
    """The store's records in SQLite."""
    assert isinstance(store.metadata, SqliteMetadataStore)
    return store.metadata


def edges_of(metadata: MetadataStore) -> dict[Digest, tuple[Digest, ...]]:
    """Every edge: children by parent."""
    written = metadata.graph.edges_as_written()
    return {Digest.parse(parent): tuple(map(Digest.parse, dict.fromkeys(each))) for parent, each in written.items()}


def copy_records(root: Path) -> None:
    """Let a store make a copy of its records now."""
    with ImageStore(root) as store:
        store.metadata.keep_copy(at_once=True)
