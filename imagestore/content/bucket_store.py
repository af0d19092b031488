"""One store's content in an S3-compatible bucket: objects are named by digest, and the bucket says what is there."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Deleted
from imagestore.content.blob_files import is_name
from imagestore.content.bucket_content import BucketContent, is_right, nothing
from imagestore.errors import AlreadyExistsError, ContentNotFoundError, PreconditionError, StoreError
from imagestore.oci.digest import Digest
from imagestore.util.cancel import CancelToken
from imagestore.util.file_locks import FileLock
from imagestore.util.files import read_regular, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.config.model import BucketSettings
    from imagestore.content.api import ContentInfo
    from imagestore.content.bucket import Bucket, BucketReader

_MOST_NAME_BYTES: Final = 200


class BucketContentStore(BucketContent):
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
        super().__init__(settings, folder)
        self._claim(
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

    def names(self) -> Iterator[str]:
        """Every blob's digest in text form, in no particular order."""
        return (str(info.digest) for info in self.walk())

    def deleter(self) -> BucketDeleter:
        """For deleting many blobs under a lock."""
        return BucketDeleter(self._bucket)

    def delete(self, digest: Digest) -> int:
        """Remove a blob and return the bytes freed; 0 when it wasn't there."""
        return self._bucket.delete(digest) or 0 if digest.is_verifiable else 0

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged; say whether a whole one was found."""
        try:
            reader = self._opened(digest)
        except ContentNotFoundError:
            return False
        with reader:
            if is_right(reader, digest):
                return True
        if self._bucket.e_tag(digest) == reader.e_tag:  # and it wasn't repaired since
            self.delete(digest)
        return False

    def _opened(self, digest: Digest, offset: int = 0) -> BucketReader:
        if not digest.is_verifiable:
            raise self._missing(digest)
        return self._bucket.open(digest, None, offset=offset, cancel=CancelToken())

    def _send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        if self._bucket.size(digest) == size:
            raise AlreadyExistsError(f"content {digest} is in the store already")
        self._bucket.put(digest, size, file, cancel=cancel)

    def _begin(
        self,
        expected: Digest,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None,
    ) -> Callable[[], None]:
        self._check_missing(expected)
        return nothing


class BucketDeleter:
    """Deletes blobs while a lock is held; after the first failure of the bucket, nothing more is tried."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._failure = ""

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form; its size in bytes, None when it wasn't there."""
        algorithm, _, encoded = text.partition(":")
        # Labels may name anything.
        return self._bucket.delete(Digest(algorithm, encoded)) if is_name(algorithm, encoded) else None

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        """Remove blobs until time is up, but at least one; after a failure, all others get it as theirs."""
        deleted = Deleted()
        for number, text in enumerate(texts):
            if number and is_due():
                deleted.left.extend(texts[number:])
                break
            if not self._failure:
                try:
                    deleted.sizes[text] = self.delete(text)
                    continue
                except (StoreError, PreconditionError) as error:
                    self._failure = str(error)
            deleted.failures[text] = self._failure
        return deleted

    def let_go(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


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
