"""Storing many small blobs at once: the promises of an ingest's commit, at the cost of a few steps for all of them.

An ingest of its own costs a small blob ten times its bytes: a lock, a folder, four notes, and a sync of the blob
folder. Here the blobs come whole. Each is verified, written under a folder of ingests that is ours for the time, made
read-only and synced, several at once where a disk serves waiting threads together; then all get their names and the
folder of blobs is synced once. No name exists before its bytes are durable, and nobody is told of a blob before its
name is.

Two processes that store the same blob at once give it the same bytes twice, and the second name replaces the first. Who
dies leaves a folder of ingests without a name, which a collection takes when it is old enough.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import check_room, make_directory, sync_directory, translated
from imagestore.content.scratch import Scratch, is_taken
from imagestore.content.waits import Waits
from imagestore.digest import verify
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from imagestore.cancel import CancelToken
    from imagestore.digest import Digest

#: Larger ones are better off with an ingest: they can be resumed, and bytes are held in memory here.
SMALL_BYTES: Final = 256 * 1024
#: As many at once are written before they get their names.
BATCH: Final = 64
_THREADS: Final = 4
#: As many are written before it is looked whether threads are worth it.
_MEASURED: Final = 4
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SmallBlob:
    """A blob to store.

    Attributes:
        digest: what its bytes must hash to.
        size: how many there must be.
        read: gives them; may be called in another thread.
        what: names the blob in errors.
    """

    digest: Digest
    size: int
    read: Callable[[], bytes]
    what: str


class BlobBatches:
    """Stores small blobs, batch by batch; made by LocalContentStore.batches().

    Args:
        scratch: where files are until they have their names.
        blobs: the folder of all blobs.
        stack: ends the threads.
        cancel: ends the work between two batches.
    """

    def __init__(self, scratch: Scratch, blobs: Path, stack: contextlib.ExitStack, cancel: CancelToken) -> None:
        self._scratch = scratch
        self._blobs = blobs
        self._stack = stack
        self._cancel = cancel
        self._pool: ThreadPoolExecutor | None = None
        self._waits = Waits()

    def put(self, blobs: Sequence[SmallBlob]) -> None:
        """Store some blobs that aren't here yet, each digest once; durable when this returns.

        Raises:
            IntegrityError: the bytes aren't what they should be; batches before that one stay.
            StoreError: the store can't be written.
            OperationCancelledError: cancelled.
        """
        for start in range(0, len(blobs), BATCH):
            self._cancel.check()
            batch = blobs[start : start + BATCH]
            self._publish(batch, self._written(batch))

    def _written(self, batch: Sequence[SmallBlob]) -> list[str]:
        paths: list[str] = []
        while not self._waits.is_long and len(paths) < len(batch):
            with self._waits.measured():
                paths += self._write_all(batch[len(paths) : len(paths) + _MEASURED])
        rest = batch[len(paths) :]
        return [*paths, *self._side_by_side(rest)] if rest else paths

    def _side_by_side(self, batch: Sequence[SmallBlob]) -> list[str]:
        # One round trip between threads for several blobs, since each takes a fraction of a millisecond.
        share = -(-len(batch) // _THREADS)
        shares = [batch[at : at + share] for at in range(0, len(batch), share)]
        try:
            written = self._threads().map(self._write_all, shares)
        except (RuntimeError, ImportError, OSError):
            # No more threads for this process, or no descriptor to read their library with. What one of them has begun
            # is only written twice.
            written = map(self._write_all, shares)
        return [path for some in written for path in some]

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = self._stack.enter_context(ThreadPoolExecutor(_THREADS, "imagestore-batch"))
        return self._pool

    def _write_all(self, blobs: Sequence[SmallBlob]) -> list[str]:
        paths = []
        for blob in blobs:
            raw = blob.read()
            verify(raw, blob.digest, blob.size, what=blob.what)
            path = self._scratch.place()
            with translated("write", path):
                reach("batch-write")
                descriptor = os.open(path, _FLAGS, 0o644)
                try:
                    rest = memoryview(raw)
                    check_room(descriptor, len(rest))
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                    os.fchmod(descriptor, 0o444)
                    reach("batch-sync")
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            paths.append(path)
        return paths

    def _publish(self, batch: Sequence[SmallBlob], paths: Sequence[str]) -> None:
        folders = [self._blobs / algorithm for algorithm in {blob.digest.algorithm for blob in batch}]
        for folder in folders:
            with translated("make the folder", folder):
                make_directory(folder)
        for blob, path in zip(batch, paths, strict=True):
            target = f"{self._blobs}/{blob.digest.algorithm}/{blob.digest.encoded}"
            with translated("commit", target):
                is_taken(target)
                reach("batch-rename")
                os.rename(path, target)
        for folder in folders:
            with translated("commit", folder):
                reach("batch-sync-folder")
                sync_directory(folder)


@contextlib.contextmanager
def batches(ingests: Path, blobs: Path, locks: Path, cancel: CancelToken) -> Iterator[BlobBatches]:
    """Batches that are written to a folder of ours, which is removed at the end of the block."""
    with Scratch(ingests, locks, cancel) as scratch, contextlib.ExitStack() as stack:
        yield BlobBatches(scratch, blobs, stack, cancel)
