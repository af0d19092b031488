"""Where the bytes of blobs come from: the store's own files, or copies of what the store has elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import BinaryIO

    from imagestore.mirror.bucket import MirrorBucket
    from imagestore.oci import Descriptor, Digest
    from imagestore.store import ImageStore


class BlobSource(Protocol):
    """An open blob whose bytes are sent to one client; close it."""

    @property
    def descriptor(self) -> Descriptor:
        """Of the blob."""

    @property
    def file(self) -> BinaryIO:
        """The open file; other readers may share it, so its position means nothing."""

    async def begun(self) -> None:
        """Wait until there are bytes, before an answer begins.

        Raises:
            ImageStoreError: the blob doesn't come.
        """

    async def available(self, start: int, end: int) -> int:
        """Wait until bytes from ``start`` on may be sent, of an answer that ends at ``end``.

        Returns:
            The offset behind the last byte that may be sent.

        Raises:
            ImageStoreError: the blob doesn't come.
            RestartedError: bytes that were sent before are wrong.
        """

    def close(self) -> None:
        """Close the file, if other readers don't use it."""


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob in a whole, open file, which stays readable when the blob is evicted."""

    file: BinaryIO
    descriptor: Descriptor

    async def begun(self) -> None:
        """Return at once."""

    async def available(self, start: int, end: int) -> int:
        """All of it."""
        return end

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class StoreBlobs(Protocol):
    """Gives the bytes of the store's content; thread-safe.

    Calls may block for a look at the store, but not for the transfer of a blob. All raise StoreError if the store can't
    be asked.
    """

    @property
    def redirects(self) -> bool:
        """Whether location() may find something."""

    def has(self, store: ImageStore, blob: Descriptor) -> bool:
        """Whether the store has a blob of this size."""

    def open(self, store: ImageStore, blob: Descriptor) -> BlobSource | None:
        """Open a blob, in any thread; await its begun() before an answer begins.

        Returns:
            None if the store's content has another size.

        Raises:
            ContentNotFoundError: the store doesn't have it.
        """

    def read(self, store: ImageStore, digest: Digest, *, limit_bytes: int) -> bytes:
        """Read a document whole, and verify it.

        Raises:
            ContentNotFoundError: the store doesn't have it.
            IntegrityError: it is damaged, or longer than the limit.
        """

    def keep(self, blob: Descriptor, file: BinaryIO) -> None:
        """Take note of a blob that was just written to the store; the caller closes the file afterwards."""

    def location(self, upstream: str, blob: Descriptor) -> str:
        """A URL to redirect a client of an upstream to; empty if the mirror has to send the blob."""


class StoreFiles:
    """StoreBlobs of a store in a folder: its own files, or redirects to the bucket behind it, if there is one."""

    def __init__(self, bucket: MirrorBucket | None) -> None:
        self._bucket = bucket

    @property
    def redirects(self) -> bool:
        """Whether clients are redirected to the bucket."""
        return self._bucket is not None and self._bucket.redirects

    def has(self, store: ImageStore, blob: Descriptor) -> bool:
        """Whether the store has a blob of this size."""
        found = store.content.find(blob.digest)
        return found is not None and found.size == blob.size

    def open(self, store: ImageStore, blob: Descriptor) -> StoredBlob | None:
        """The store's file; None if it has another size."""
        file = store.content.open(blob.digest)
        if os.fstat(file.fileno()).st_size == blob.size:
            return StoredBlob(file, blob)
        file.close()
        return None

    def read(self, store: ImageStore, digest: Digest, *, limit_bytes: int) -> bytes:
        """Read a document whole, and verify it."""
        return store.content.read(digest, limit_bytes=limit_bytes)

    def keep(self, blob: Descriptor, file: BinaryIO) -> None:
        """Do nothing: the store has its file."""

    def location(self, upstream: str, blob: Descriptor) -> str:
        """A URL of the bucket, if the blob is there."""
        return self._bucket.location(upstream, blob) if self._bucket is not None and self.redirects else ""
