"""One store's content in an S3-compatible bucket: objects are named by digest, and the bucket says what is there."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from imagestore.content.bucket import Bucket
from imagestore.content.staged import StagedContent, is_right
from imagestore.errors import AlreadyExistsError, ContentNotFoundError, StoreError
from imagestore.util.cancel import CancelToken
from imagestore.util.file_locks import FileLock
from imagestore.util.files import read_regular, replace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from imagestore.config.model import BucketSettings
    from imagestore.content.api import ContentInfo
    from imagestore.content.bucket import BucketReader
    from imagestore.oci.digest import Digest

_MOST_NAME_BYTES: Final = 200


class BucketContentStore(StagedContent):
    """A ContentStore over a bucket; thread-safe, for any number of processes of this machine.

    Args:
        settings: where the bucket is.
        folder: for ingests and this store's name; made when missing.

    Raises:
        ConfigError: the settings can't be used, there is no such bucket, or obstore isn't installed.
        PreconditionError: the prefix is another store's, or the credentials are refused.
        StoreError: the bucket doesn't answer, or the folder can't be made.
    """

    def __init__(self, settings: BucketSettings, folder: Path) -> None:
        self._bucket = Bucket(settings)
        self._bucket.check()
        super().__init__(self._bucket.url, folder)
        self._bucket.claim(
            _name_in(folder),
            hint="give this store a prefix of its own; if the other one is lost, and this one has its records,"
            f" write that name to {folder / 'name'}",
        )

    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't there."""
        return self._bucket.find(digest) if digest.is_verifiable else None

    def walk(self) -> Iterator[ContentInfo]:
        """Every blob, in no particular order."""
        return self._bucket.walk()

    def remove(self, digest: Digest) -> int | None:
        """Remove a blob; its size in bytes, None when it wasn't there."""
        return self._bucket.delete(digest) if digest.is_verifiable else None

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found."""
        try:
            reader = self.open_at(digest)
        except ContentNotFoundError:
            return False
        with reader:
            if is_right(reader, digest):
                return True
        if self._bucket.e_tag(digest) == reader.e_tag:  # and it wasn't repaired since
            self.remove(digest)
        return False

    def open_at(self, digest: Digest, offset: int = 0) -> BucketReader:
        """A blob's bytes from an offset on."""
        if not digest.is_verifiable:
            raise self._missing(digest)
        return self._bucket.open(digest, None, offset=offset, cancel=CancelToken())

    def send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Upload a blob, unless it is there."""
        if self._bucket.size(digest) == size:
            raise AlreadyExistsError(f"content {digest} is in the store already")
        self._bucket.put(digest, size, file, cancel=cancel)


def _name_in(folder: Path) -> str:
    """The store's name, made when there is none."""
    path, lock = folder / "name", FileLock(str(folder / "locks" / "name"))
    lock.acquire(CancelToken())
    try:
        if not path.exists():
            replace(path, uuid.uuid4().hex.encode(), is_durable=True)
        return read_regular(path, _MOST_NAME_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    finally:
        lock.release()
