"""Where the bytes of blobs come from that the store has: the store's own files, or copies of what it has elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from imagestore.mirror.bodies import StoredBlob

if TYPE_CHECKING:
    from typing import BinaryIO

    from imagestore.mirror.bodies import BlobSource
    from imagestore.mirror.second_tier import SecondTier
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.image_store import ImageStore


class StoreBlobs(Protocol):
    """Gives the bytes of what the store has; thread-safe. Close it.

    Every call may block for a look at the store, and none for a transfer of a blob.
    """

    @property
    def redirects(self) -> bool:
        """Whether location() may find something."""

    def has(self, store: ImageStore, blob: Descriptor) -> bool:
        """Whether the store has a blob of this size.

        Raises:
            StoreError: the store can't be asked.
        """

    def open(self, store: ImageStore, blob: Descriptor) -> BlobSource | None:
        """A blob's bytes to send, from any thread; await its begun() before an answer begins, and close it.

        Returns:
            None where what the store has is of another size.

        Raises:
            ContentNotFoundError: the store doesn't have it.
            StoreError: the store can't be asked.
        """

    def read(self, store: ImageStore, digest: Digest, *, limit_bytes: int) -> bytes:
        """A document whole, hashed again on the way.

        Raises:
            ContentNotFoundError: the store doesn't have it.
            IntegrityError: it is damaged, or longer than the limit.
            StoreError: the store can't be asked.
        """

    def keep(self, blob: Descriptor, file: BinaryIO) -> None:
        """Hear of a blob that was just brought into the store; the file is closed afterwards."""

    def location(self, blob: Descriptor) -> str:
        """A URL to send a client to for a blob; empty where it has to be sent from here."""

    def close(self) -> None:
        """End what is under way."""


class StoreFiles:
    """Sends the store's own files, or sends clients to the bucket behind it.

    Args:
        second: the bucket; None for none.
    """

    def __init__(self, second: SecondTier | None) -> None:
        self._second = second

    @property
    def redirects(self) -> bool:
        """Whether clients are sent to the bucket."""
        return self._second is not None and self._second.redirects

    def has(self, store: ImageStore, blob: Descriptor) -> bool:
        """Whether the store has a blob of this size."""
        found = store.content.find(blob.digest)
        return found is not None and found.size == blob.size

    def open(self, store: ImageStore, blob: Descriptor) -> StoredBlob | None:
        """The store's file; None where it has another size."""
        file = store.content.open(blob.digest)
        if os.fstat(file.fileno()).st_size == blob.size:
            return StoredBlob(file, blob)
        file.close()
        return None

    def read(self, store: ImageStore, digest: Digest, *, limit_bytes: int) -> bytes:
        """A document whole, hashed again on the way."""
        return store.content.read(digest, limit_bytes=limit_bytes)

    def keep(self, blob: Descriptor, file: BinaryIO) -> None:
        """Nothing: the store has its file."""

    def location(self, blob: Descriptor) -> str:
        """A URL of the bucket, where the blob is there."""
        return self._second.location(blob) if self._second is not None else ""

    def close(self) -> None:
        """Nothing; who opened the bucket closes it."""
