"""Both ports over another place: blobs in a dictionary, records in a SQLite database of the program's own.

A place that keeps more has the same methods: blobs in any object store, records by any driver for SQLite's SQL.
``imagestore.testing.contracts`` tests an adapter; ``python examples/adapters.py`` pulls an image into these two.
"""

import io
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import imagestore
from imagestore import CancelToken, Digest, errors
from imagestore.content import ContentInfo, StagedContent
from imagestore.metadata import SimpleMetadataStore
from imagestore.testing import Registry, build_image


class Stream(io.BytesIO):
    """Bytes of a blob from an offset on."""

    def __init__(self, data: bytes, offset: int) -> None:
        super().__init__(data)
        self.size = len(data)
        self.seek(offset)


class MemoryContent(StagedContent):
    """Whole blobs in memory; what isn't whole yet is in files of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("memory", folder)
        self.blobs: dict[Digest, tuple[bytes, float]] = {}

    def find(self, digest: Digest) -> ContentInfo | None:
        found = self.blobs.get(digest)
        return ContentInfo(digest, len(found[0]), found[1]) if found else None

    def walk(self) -> Iterator[ContentInfo]:
        return iter([ContentInfo(digest, len(data), stored) for digest, (data, stored) in self.blobs.copy().items()])

    def open_at(self, digest: Digest, offset: int = 0) -> Stream:
        self.info(digest)  # raises ContentNotFoundError
        return Stream(self.blobs[digest][0], offset)

    def send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        blob = (file.read(), time.time())
        if self.blobs.setdefault(digest, blob) is not blob:
            raise errors.AlreadyExistsError(f"content {digest} is in memory already")

    def remove(self, digest: Digest) -> int | None:
        found = self.blobs.pop(digest, None)
        return len(found[0]) if found else None


class Records(SimpleMetadataStore):
    """Records in a database by a driver of the program's own."""

    def __init__(self, path: str = ":memory:") -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        super().__init__()

    def execute(self, text: str, values: Mapping[str, object], /) -> sqlite3.Cursor:
        try:
            return self.connection.execute(text, values)
        except sqlite3.Error as error:
            raise errors.StoreError(f"records: {error}") from error

    def close(self) -> None:
        self.connection.close()


def main() -> int:
    """Pull an image into both, list it, and collect it again; returns the exit status."""
    registry = Registry({"registry.example/app:1": build_image("linux/amd64")})
    with tempfile.TemporaryDirectory() as folder:
        content, records = MemoryContent(Path(folder) / "ingests"), Records()
        with imagestore.open(folder, content=content, metadata=records, transport=registry.transport) as store:
            store.pull("registry.example/app:1", platform="linux/amd64")
            print(f"{len(list(store.list()))} image, {len(content.blobs)} blobs in memory")
            store.remove("registry.example/app:1")
            print(f"{len(store.collect_garbage().digests)} blobs collected")
        records.close()
    return 1 if content.blobs else 0


if __name__ == "__main__":
    sys.exit(main())
