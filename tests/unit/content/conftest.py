"""A store, many small blobs, and file systems that make wait or don't."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore.content.local import LocalContentStore
from imagestore.content.waits import Waits
from imagestore.digest import Digest
from tests.unit.content.many_blobs import COUNT
from tests.unit.content.test_deleting import never_waiting


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


@pytest.fixture
def texts(store: LocalContentStore) -> list[str]:
    """Many blobs of five bytes."""
    digests = [Digest.of(str(number).encode()) for number in range(COUNT)]
    for digest in digests:
        (store.root / "blobs" / "sha256" / digest.encoded).write_bytes(b"12345")
    return [str(digest) for digest in digests]


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def is_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system makes those wait who use it."""
    monkeypatch.setattr(Waits, "is_long", request.param)
    if not request.param:
        never_waiting(monkeypatch)
    return bool(request.param)
