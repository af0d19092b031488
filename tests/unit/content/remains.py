"""What work on many blobs leaves."""

from __future__ import annotations

import os

from imagestore.content.local import LocalContentStore


def left_over(store: LocalContentStore) -> list[str]:
    return [*os.listdir(store.root / "ingest"), *os.listdir(store.root.parent / "locks")]
