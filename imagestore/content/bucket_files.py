"""A bucket's blobs as files: one that is read, with jumps, and one that is written here and sent there."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from imagestore.errors import AlreadyExistsError, ContentNotFoundError, IntegrityError, SizeMismatchError
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO, Self

    from imagestore.content.bucket import Bucket, BucketReader
    from imagestore.content.ingest import LocalIngestWriter
    from imagestore.oci.digest import Digest


class BucketIngestWriter:
    """Appends to a file, which goes to the bucket when it is committed."""

    def __init__(self, bucket: Bucket, inner: LocalIngestWriter, ref: str, cancel: CancelToken) -> None:
        self._bucket = bucket
        self._inner = inner
        self._ref = ref
        self._cancel = cancel

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        return self._inner.offset

    @property
    def digest(self) -> Digest:
        """What the bytes so far hash to."""
        return self._inner.digest

    def held(self) -> None:
        """None: they are in a file."""

    def hash_with(self, algorithm: str) -> None:
        """Hash with another algorithm from now on; what is there is read again."""
        self._inner.hash_with(algorithm)

    def open_written(self) -> BinaryIO:
        """What is written, opened for reading along."""
        return self._inner.open_written()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append bytes."""
        self._inner.write(chunk)

    def fill(self, readinto: Callable[[memoryview], int], *, advanced: Callable[[int], None]) -> None:
        """Append what a source gives until its end."""
        self._inner.fill(readinto, advanced=advanced)

    def truncate(self) -> None:
        """Start again from nothing."""
        self._inner.truncate()

    def commit(
        self, expected: Digest | None = None, size: int | None = None, *, has_durable_name: bool = True
    ) -> Digest:
        """Verify, send to the bucket, then close; see ``BlobWriter.commit``.

        Raises:
            StoreError: the bucket doesn't take it; the ingest stays, and the writer stays open.
            OperationCancelledError: cancelled; the ingest stays, and the writer stays open.
        """
        actual = self._inner.verified(expected, size)
        if self._bucket.size(actual) == self.offset:
            self.abort()
            raise AlreadyExistsError(f"content {actual} is in the store already")
        with self._inner.open_written() as file:
            self._bucket.put(actual, self.offset, file, cancel=self._cancel)
        self.abort()
        return actual

    def abort(self) -> None:
        """Throw the ingest away and close; harmless when closed."""
        self._inner.abort()

    def close(self) -> None:
        """Let go; what is written stays and can be resumed."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlobReader(io.RawIOBase):
    """A blob as a file; each jump is a request of its own."""

    def __init__(self, bucket: Bucket, digest: Digest, opened: BucketReader) -> None:
        super().__init__()
        self._bucket = bucket
        self._digest = digest
        self._size = opened.size
        self._position = 0
        self._stream: BucketReader | None = opened

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"expected a position from the beginning on, got {position}")
        if position != self._position:
            self._let_go()
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # narrower than Buffer
        if self._position >= self._size:
            return 0
        try:
            if self._stream is None:
                token = CancelToken()
                self._stream = self._bucket.open(self._digest, self._size, offset=self._position, cancel=token)
            count = self._stream.readinto(memoryview(buffer))
        except ContentNotFoundError as error:
            raise IntegrityError(f"content {self._digest}: went while it was read") from error
        if count == 0:
            raise SizeMismatchError(str(self._digest), expected=self._size, actual=self._position)
        self._position += count
        return count

    def close(self) -> None:
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
