"""Copies on this machine's disk of content that the store has elsewhere; each is made when it is first asked for.

A copy is made once for all clients, which read it while it grows, as they do with a blob that is being fetched from
upstream. The last bytes are held back until the copy is verified.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ContentNotFoundError,
    ImageStoreError,
    IntegrityError,
    ServerError,
    StoreError,
    StoreFullError,
)
from imagestore.mirror.blobs import StoredBlob
from imagestore.mirror.copy_folder import CopyFolder
from imagestore.mirror.fill import Fill, FillReader
from imagestore.oci import Verifier, verify
from imagestore.util.cancel import CancelGroup

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from imagestore.content import ContentStore
    from imagestore.mirror.blobs import BlobSource
    from imagestore.mirror.copy_folder import GrowingCopy
    from imagestore.oci import Descriptor, Digest
    from imagestore.store import ImageStore
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

#: Copies that are made at a time.
_THREADS: Final = 16
#: Attempts to read the rest from a source that breaks off.
_ATTEMPTS: Final = 3
_PIECE_BYTES: Final = 256 * 1024
_PATIENCE_SECONDS: Final = 10.0


class LocalCopies:
    """StoreBlobs over a folder of copies; thread-safe. Close it.

    Args:
        folder: of this process alone; made when missing.
        quota_bytes: what copies may take.
        content: lends the content that is copied.
        loop: the readers'.
        locate: gives a URL to redirect a client to instead, or an empty text; None if clients are never redirected.

    Raises:
        StoreBusyError: another process has the folder.
        StoreError: it can't be made or read.
    """

    def __init__(
        self,
        folder: Path,
        quota_bytes: int,
        content: Callable[[], AbstractContextManager[ContentStore]],
        loop: asyncio.AbstractEventLoop,
        *,
        locate: Callable[[Descriptor], str] | None = None,
    ) -> None:
        self._folder = CopyFolder(folder, quota_bytes)
        self._content = content
        self._loop = loop
        self._locate = locate
        self._lock = threading.Lock()
        self._growing: dict[Digest, tuple[GrowingCopy, Fill]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "copy")
        self._operations = CancelGroup()

    @property
    def redirects(self) -> bool:
        """Whether clients may be redirected."""
        return self._locate is not None

    @property
    def used_bytes(self) -> int:
        """What whole copies take."""
        return self._folder.used_bytes

    def location(self, upstream: str, blob: Descriptor) -> str:
        """A URL to redirect a client of an upstream to; empty if the mirror has to send the blob."""
        return self._locate(blob) if self._locate is not None else ""

    def has(self, store: ImageStore, blob: Descriptor) -> bool:
        """Whether there is a copy of this size, or the store has the blob."""
        with self._lock:
            size = self._folder.size(blob.digest)
        if size is None:
            found = store.content.find(blob.digest)
            size = None if found is None else found.size
        return size == blob.size

    def open(self, store: ImageStore, blob: Descriptor) -> BlobSource | None:
        """A whole or a growing copy; the store is asked only if there is none."""
        opened, is_known = self._opened(blob)
        if is_known:
            return opened
        found = store.content.find(blob.digest)
        if found is None:
            raise ContentNotFoundError(f"content {blob.digest} is not in {store.content.name}")
        return self._begun(blob, None) if found.size == blob.size else None

    def read(self, store: ImageStore, digest: Digest, *, limit_bytes: int) -> bytes:
        """Read a document whole, and verify it; without a copy it is read from the store, and a copy is made."""
        with self._lock:
            file = self._folder.open(digest)
        if file is not None:
            try:
                with file:
                    data = file.read(limit_bytes + 1)
                verify(data, digest, what=f"the copy of {digest}")
                return data
            except (IntegrityError, OSError) as error:
                log.warning("a copy is damaged, and made again: %s", error)
                with self._lock:
                    self._folder.drop(digest)
        data = store.content.read(digest, limit_bytes=limit_bytes)
        self._save(digest, data)
        return data

    def keep(self, blob: Descriptor, file: BinaryIO) -> None:
        """Copy a blob that was just written to the store from its file, so that it isn't read back from the store."""
        own = os.fdopen(os.dup(file.fileno()), "rb", buffering=0)
        try:
            source = self._begun(blob, own)
        except (ImageStoreError, OSError) as error:
            own.close()
            # The store has it.
            log.warning("a blob isn't copied: %s", error, extra={"digest": str(blob.digest)})
            return
        source.close()

    def close(self) -> None:
        """End growing copies, which are discarded."""
        self._operations.end("the mirror stops", patience_seconds=_PATIENCE_SECONDS)
        self._threads.shutdown()
        self._folder.close()

    def _opened(self, blob: Descriptor) -> tuple[BlobSource | None, bool]:
        """The copy of a blob; None with True if there is one of another size, None with False if there is none."""
        with self._lock:
            size = self._folder.size(blob.digest)
            file = self._folder.open(blob.digest) if size == blob.size else None
            if file is not None:
                return StoredBlob(file, blob), True
            growing = self._growing.get(blob.digest)
            if growing is not None:
                return (_reader(*growing) if growing[0].size == blob.size else None), True
            # A truncated copy was dropped by open().
            return None, self._folder.size(blob.digest) is not None

    def _begun(self, blob: Descriptor, given: BinaryIO | None) -> BlobSource:
        """A copy that grows from now on, or the one that another call began or finished since."""
        with self._lock:
            file = self._folder.open(blob.digest)
            growing = self._growing.get(blob.digest)
            if file is None and growing is None:
                return self._submitted(self._folder.begin(blob.digest, blob.size), Fill(blob, self._loop), given)
            source = StoredBlob(file, blob) if file is not None else _reader(*growing or ())
        if given is not None:
            given.close()
        return source

    def _submitted(self, copy: GrowingCopy, fill: Fill, given: BinaryIO | None) -> FillReader:
        """Give a copy to a thread, which needs the lock to finish it."""
        try:
            source = _reader(copy, fill)
            try:
                self._threads.submit(self._copy, copy, fill, given)
            except BaseException:
                source.close()
                raise
        except (OSError, RuntimeError) as error:
            self._folder.abandon(copy)
            raise StoreError(f"{copy.path}: can't be copied now: {error}") from error
        self._growing[copy.digest] = copy, fill
        return source

    def _save(self, digest: Digest, data: bytes) -> None:
        """Make a copy of a document."""
        try:
            with self._lock:
                if self._folder.size(digest) is not None:
                    return
                copy = self._folder.begin(digest, len(data))
            try:
                copy.file.write(data)
                os.fsync(copy.file.fileno())
                with self._lock:
                    self._folder.grow(copy, len(data))
                    self._folder.finish(copy)
            except BaseException:
                with self._lock:
                    self._folder.abandon(copy)
                raise
        except (OSError, StoreError) as error:
            log.warning("a document isn't copied: %s", error, extra={"digest": str(digest)})

    def _copy(self, copy: GrowingCopy, fill: Fill, given: BinaryIO | None) -> None:
        """Make a copy, in a thread, and tell the readers its end."""
        failure: ImageStoreError | None = None
        try:
            with self._operations.joined(None) as cancel:
                _Copying(copy, fill, cancel, functools.partial(self._grown, copy)).run(self._content, given)
                os.fsync(copy.file.fileno())
                with self._lock:
                    self._folder.finish(copy)
                    del self._growing[copy.digest]
        except ImageStoreError as error:
            failure = error
        except OSError as error:
            failure = _refusal(copy, error)
        except Exception as error:
            log.exception("a copy failed")
            failure = ServerError(f"copying {copy.digest} failed: {error!r}")
        if failure is not None:
            with self._lock:
                self._folder.abandon(copy)
                del self._growing[copy.digest]
        if given is not None:
            given.close()
        fill.tell(fill.finish, failure)

    def _grown(self, copy: GrowingCopy, written: int) -> None:
        with self._lock:
            self._folder.grow(copy, written)


class _Copying:
    """One copy, in its thread; ``grown`` is called with the number of bytes that are written."""

    def __init__(self, copy: GrowingCopy, fill: Fill, cancel: CancelToken, grown: Callable[[int], None]) -> None:
        self._copy = copy
        self._fill = fill
        self._cancel = cancel
        self._grown = grown
        self._verifier = Verifier(copy.digest, copy.size)
        self._buffer = memoryview(bytearray(_PIECE_BYTES))

    def run(self, content: Callable[[], AbstractContextManager[ContentStore]], given: BinaryIO | None) -> None:
        """Copy and verify. Damaged content is copied once more, and deleted from the store if it is still damaged.

        Raises:
            ContentNotFoundError: the store doesn't have it any more.
            IntegrityError: it was damaged in the store.
            StoreError: the store can't be read.
            OSError: the copy can't be written.
        """
        if given is not None:
            try:
                # With preadv, since the position is shared with the caller's file.
                self._receive(lambda buffer: os.preadv(given.fileno(), [buffer], self._verifier.received))
                return
            except (IntegrityError, OSError) as error:
                log.warning("a blob is copied from the store instead: %s", error)
                self._restart()
        with content() as store:
            try:
                self._receive_from(store)
            except IntegrityError:
                self._cancel.check()
                self._restart()
                try:
                    self._receive_from(store)
                except IntegrityError:
                    store.delete_damaged(self._copy.digest)
                    raise

    def _receive_from(self, store: ContentStore) -> None:
        """Receive the rest, in several attempts."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with store.open(self._copy.digest) as source:
                    source.seek(self._verifier.received)
                    self._receive(source.readinto)  # type: ignore[attr-defined]  # typeshed doesn't know it of BinaryIO
                return
            except StoreError as error:
                self._cancel.check()
                if attempt == _ATTEMPTS:
                    raise
                log.warning("a copy goes on after a failure: %s", error, extra={"digest": str(self._copy.digest)})

    def _receive(self, read: Callable[[memoryview], int]) -> None:
        self._fill.tell(self._fill.begin, None, self._verifier.received)
        while count := read(self._buffer):
            self._cancel.check()
            piece = self._buffer[:count]
            self._verifier.update(piece)
            while piece:
                piece = piece[self._copy.file.write(piece) :]
            self._grown(self._verifier.received)
            self._fill.tell(self._fill.advance, self._verifier.received)
        self._verifier.finish()

    def _restart(self) -> None:
        self._copy.file.seek(0)
        self._copy.file.truncate()
        self._verifier = Verifier(self._copy.digest, self._copy.size)
        self._grown(0)
        self._fill.tell(self._fill.restart)


def _reader(copy: GrowingCopy, fill: Fill) -> FillReader:
    return FillReader(fill, open(copy.path, "rb"))


def _refusal(copy: GrowingCopy, error: OSError) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "give copies less (local_quota), or the disk more"
        return StoreFullError(f"{copy.path}: no space is left for a copy of {copy.size} bytes", hint=hint)
    return StoreError(f"{copy.path}: can't write: {error.strerror}")
