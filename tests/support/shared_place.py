"""A shared store for tests: a database, a bucket, and machines that differ by their cache folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import obstore

import imagestore
from imagestore import BucketSettings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from imagestore import ImageStore
    from tests.support.ceph import Ceph


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """Where a shared store is.

    Attributes:
        url: of its database.
        content: its bucket.
        gateway: serves the bucket.
        folder: of the test.
        monkeypatch: changes which machine this process is.
    """

    url: str
    content: str
    gateway: Ceph
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def be_machine(self, name: str) -> None:
        """Stores that are opened from now on are those of another machine."""
        self.monkeypatch.setenv("XDG_CACHE_HOME", str(self.folder / "machines" / name))

    def open(self, machine: str = "one", *, scope: str = "", url: str = "", **given: Any) -> ImageStore:
        """The store, as a machine opens it."""
        self.be_machine(machine)
        return imagestore.open(url or self.url, content=self.content, scope=scope, **given)

    def objects(self) -> list[str]:
        """Keys of the blobs in the bucket."""
        store = self.gateway.store(BucketSettings(self.content, endpoint=self.gateway.endpoint))
        return sorted(meta["path"] for some in obstore.list(store, prefix="blobs") for meta in some)
