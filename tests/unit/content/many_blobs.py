"""What the tests of folders that go as a whole share."""

from __future__ import annotations

import os

from imagestore.content.local import LocalContentStore

COUNT = 300


def left_over(store: LocalContentStore) -> list[str]:
    return [*os.listdir(store.root / "ingest"), *os.listdir(store.root.parent / "locks")]


def is_freed_by_a_collection(store: LocalContentStore) -> bool:
    """What was left, however young it is."""
    (left,) = store.stale_ingests(1.0)
    return store.abort_stale(left) and left_over(store) == []
