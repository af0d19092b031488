"""What the tests of keeping share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from imagestore import Descriptor, Digest, Platform
from imagestore.metadata.records import ImageRecord
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci.media_types import OCI_MANIFEST


def without_log(path: Path) -> None:
    """Let SQLite find no place for a database's log, as it does where a disk has none for another file."""
    Path(f"{path}-wal").symlink_to("nowhere/else")


def digest(name: str) -> Digest:
    return Digest.of(name.encode())


A, B, C, D = (digest(name) for name in "abcd")


def kept(store: SqliteMetadataStore, names: Iterable[Digest] = (A, B, C, D)) -> set[Digest]:
    """What a collection would spare; the question that it asks again before it deletes must agree."""
    names = list(names)
    garbage = set(map(Digest.parse, store.graph.garbage(map(str, names))))
    assert set(map(Digest.parse, store.graph.unheld(list(map(str, names))))) == garbage & set(names)
    assert not store.graph.keeps_nothing() or set(names) <= garbage
    return set(names) - garbage


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def record(
    reference: str = "registry.example/a:1", root: Digest = A, labels: dict[str, str] | None = None
) -> ImageRecord:
    descriptor = Descriptor(OCI_MANIFEST, root, 10)
    platform = Platform("linux", "amd64")
    return ImageRecord(reference, "runc", descriptor, descriptor, C, platform, "linux/amd64", (root,), 3, labels or {})
