"""Blobs kept elsewhere as files: a seekable reader, a writer that sends on commit, and small blobs in parallel."""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import AlreadyExistsError, ContentNotFoundError, IntegrityError, SizeMismatchError
from imagestore.oci.digest import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO, Self

    from imagestore.content.api import OpenWriter, SmallBlob
    from imagestore.content.ingest import LocalIngestWriter
    from imagestore.oci.digest import Digest
    from imagestore.util.cancel import CancelToken

#: Small blobs that are sent at once.
_THREADS: Final = 8


class BlobStream(Protocol):
    """A blob's bytes in order, from some offset on."""

    @property
    def size(self) -> int:
        """Bytes of the whole blob."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Put the next bytes into a buffer; returns how many, 0 only at the end."""

    def close(self) -> None:
        """Let go."""


class Send(Protocol):
    """Brings verified bytes to where blobs are kept; from any thread."""

    def __call__(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Upload a blob, unless it is there.

        Raises:
            AlreadyExistsError: it is.
        """


class StagedWriter:
    """Appends to a file, which is sent away when it is committed.

    Args:
        ended: called when the writer has let go, perhaps more than once.
    """

    def __init__(self, inner: LocalIngestWriter, send: Send, cancel: CancelToken, ended: Callable[[], None]) -> None:
        self._inner = inner
        self._send = send
        self._cancel = cancel
        self._ended = ended

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
        """Verify, send, then close; see ``BlobWriter.commit``.

        Raises:
            StoreError: the place doesn't take it; the ingest stays, and the writer stays open.
            OperationCancelledError: cancelled; the ingest stays, and the writer stays open.
        """
        actual = self._inner.verified(expected, size)
        try:
            with self._inner.open_written() as file:
                self._send(actual, self.offset, file, cancel=self._cancel)
        except AlreadyExistsError:
            self.abort()
            raise
        self.abort()
        return actual

    def abort(self) -> None:
        """Throw the ingest away and close; harmless when closed."""
        try:
            self._inner.abort()
        finally:
            self._ended()

    def close(self) -> None:
        """Let go; what is written stays and can be resumed."""
        try:
            self._inner.close()
        finally:
            self._ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlobFile(io.RawIOBase):
    """A blob as a file; each seek makes a new request."""

    def __init__(self, digest: Digest, opened: BlobStream, reopen: Callable[[int], BlobStream]) -> None:
        super().__init__()
        self._digest = digest
        self._reopen = reopen
        self._size = opened.size
        self._position = 0
        self._stream: BlobStream | None = opened

    def readable(self) -> bool:
        """See io.IOBase."""
        return True

    def seekable(self) -> bool:
        """See io.IOBase."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """See io.IOBase."""
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"expected a position from the beginning on, got {position}")
        if position != self._position:
            self._let_go()
        self._position = position
        return position

    def tell(self) -> int:
        """See io.IOBase."""
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # narrower than Buffer
        """See io.RawIOBase."""
        if self._position >= self._size:
            return 0
        try:
            if self._stream is None:
                self._stream = self._reopen(self._position)
                if self._stream.size != self._size:
                    raise SizeMismatchError(str(self._digest), expected=self._size, actual=self._stream.size)
            count = self._stream.readinto(memoryview(buffer))
        except ContentNotFoundError as error:
            raise IntegrityError(f"content {self._digest}: went while it was read") from error
        if count == 0:
            raise SizeMismatchError(str(self._digest), expected=self._size, actual=self._position)
        self._position += count
        return count

    def close(self) -> None:
        """See io.RawIOBase."""
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class StagedSmallBlobs:
    """Small blobs of one pull or import, several at once; each is sent by a thread outside of any transaction."""

    def __init__(self, writer: OpenWriter, send: Send, cancel: CancelToken) -> None:
        self.writer = writer
        self._send = send
        self._cancel = cancel
        self._threads = ThreadPoolExecutor(_THREADS, "put-small")

    def put(self, blobs: Sequence[SmallBlob]) -> None:
        """Store blobs; durable when this returns."""
        puts = [self._threads.submit(contextvars.copy_context().run, self._put, blob) for blob in blobs]
        try:
            for done in puts:
                done.result()
        except BaseException:
            for put in puts:
                put.cancel()
            wait(puts)
            raise

    def _put(self, blob: SmallBlob) -> None:
        self._cancel.check()
        data = blob.read()
        verify(data, blob.digest, blob.size, what=blob.what)
        with contextlib.suppress(AlreadyExistsError):
            self._send(blob.digest, blob.size, io.BytesIO(data), cancel=self._cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
