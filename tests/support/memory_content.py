"""Content in memory: the smallest adapter of the content port, for the contract and for stores without files."""

from __future__ import annotations

import io
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagestore.content import Disk
from imagestore.content.api import ContentInfo, Deleted, IngestStatus
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
    IngestLockedError,
    InvalidInputError,
    SizeMismatchError,
    UnsupportedError,
    WriterClosedError,
)
from imagestore.oci import Digest, new_hash, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.content.api import Adoption, SmallBlob
    from imagestore.util.cancel import CancelToken


@dataclass
class _Ingest:
    data: bytearray = field(default_factory=bytearray)
    total: int = 0
    started_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    is_held: bool = False


class MemoryContentStore:
    """A ContentStore of one process."""

    def __init__(self, scratch: Path) -> None:
        self.name = "memory"
        self.scratch = scratch
        self._lock = threading.Condition()
        self._blobs: dict[Digest, tuple[bytes, float]] = {}
        self._ingests: dict[str, _Ingest] = {}

    def exists(self, digest: Digest) -> bool:
        return digest in self._blobs

    def sizes(self, digests: Collection[Digest]) -> dict[Digest, int]:
        return {digest: found.size for digest in digests if (found := self.find(digest)) is not None}

    def find(self, digest: Digest) -> ContentInfo | None:
        found = self._blobs.get(digest)
        return None if found is None else ContentInfo(digest, len(found[0]), found[1])

    def info(self, digest: Digest) -> ContentInfo:
        found = self.find(digest)
        if found is None:
            raise ContentNotFoundError(f"content {digest} is not in memory")
        return found

    def path(self, digest: Digest) -> Path:
        raise UnsupportedError(f"content {digest}: is in memory, and no file")

    def open(self, digest: Digest) -> BinaryIO:
        self.info(digest)
        return io.BytesIO(self._blobs[digest][0])

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        size = self.info(digest).size
        if size > limit_bytes:
            raise SizeMismatchError(f"content {digest}", expected=limit_bytes, actual=size)
        data = self._blobs[digest][0]
        verify(data, digest, what=f"content {digest} at rest")
        return data

    def walk(self) -> Iterator[ContentInfo]:
        yield from [ContentInfo(digest, len(data), at) for digest, (data, at) in list(self._blobs.items())]

    def names(self) -> Iterator[str]:
        yield from map(str, list(self._blobs))

    def damage(self, digest: Digest, data: bytes) -> None:
        """Put other bytes in a blob's place."""
        self._blobs[digest] = (data, time.time())

    def writer(
        self,
        ref: str,
        *,
        expected: Digest,
        total: int,
        cancel: CancelToken,
        on_wait: Callable[[], None] | None = None,
    ) -> _Writer:
        if not ref:
            raise InvalidInputError("an ingest needs a name")
        while not self._is_taken(ref, total):
            if on_wait is not None:
                on_wait()
                on_wait = None
            cancel.wait(0.01)
        if self.exists(expected):
            self._let_go(ref)
            raise AlreadyExistsError(f"content {expected} is in the store already")
        return _Writer(self, ref, expected.algorithm)

    def try_writer(self, ref: str, *, algorithm: str, total: int) -> _Writer:
        if not ref:
            raise InvalidInputError("an ingest needs a name")
        new_hash(algorithm)
        if not self._is_taken(ref, total):
            raise IngestLockedError(f"ingest {ref!r} is locked by another writer")
        return _Writer(self, ref, algorithm)

    def _is_taken(self, ref: str, total: int) -> bool:
        with self._lock:
            ingest = self._ingests.setdefault(ref, _Ingest(total=total))
            if ingest.is_held:
                return False
            if total and (len(ingest.data) > total or ingest.total not in (0, total)):
                ingest = self._ingests[ref] = _Ingest(total=total)
            ingest.is_held = True
            return True

    def _let_go(self, ref: str, *, is_done: bool = False) -> None:
        with self._lock:
            ingest = self._ingests.get(ref)
            if ingest is not None:
                ingest.is_held = False
                if is_done or not ingest.data:
                    del self._ingests[ref]

    def small_blobs(self, cancel: CancelToken) -> _Small:
        return _Small(self)

    def status(self, ref: str) -> IngestStatus | None:
        found = self._ingests.get(ref)
        if found is None:
            return None
        return IngestStatus(ref, len(found.data), found.total, found.started_at, found.updated_at)

    def statuses(self) -> Iterator[IngestStatus]:
        for ref in list(self._ingests):
            status = self.status(ref)
            if status is not None:
                yield status

    def abort(self, ref: str) -> bool:
        with self._lock:
            ingest = self._ingests.get(ref)
            if ingest is not None and ingest.is_held:
                return False
            self._ingests.pop(ref, None)
            return True

    def stale_ingests(self, before: float, *, beyond: float = float("inf")) -> Iterator[IngestStatus]:
        yield from [status for status in self.statuses() if not before <= status.updated_at <= beyond]

    def abort_stale(self, ingest: IngestStatus) -> bool:
        return self.abort(ingest.ref)

    def clear_locks(self) -> None:
        pass

    def adopt(self, digest: Digest, size: int, *, cancel: CancelToken) -> Adoption | None:
        return None

    def is_at_source(self, digest: Digest, size: int) -> bool:
        return False

    def deleter(self) -> _Deleter:
        return _Deleter(self)

    def delete(self, digest: Digest) -> int:
        found = self._blobs.pop(digest, None)
        return 0 if found is None else len(found[0])

    def delete_damaged(self, digest: Digest) -> bool:
        found = self._blobs.get(digest)
        if found is None:
            return False
        if Digest.of(found[0], digest.algorithm) == digest:
            return True
        self.delete(digest)
        return False

    def make_durable(self, algorithms: Iterable[str]) -> None:
        pass

    def free_bytes(self) -> int:
        return sys.maxsize

    def disk(self) -> Disk:
        return Disk(0, 0)

    def check_room(self) -> None:
        pass

    def make_room(self) -> None:
        pass

    def publish(self, digest: Digest, data: bytes) -> None:
        """A blob becomes visible."""
        with self._lock:
            if digest in self._blobs:
                raise AlreadyExistsError(f"content {digest} is in the store already")
            self._blobs[digest] = (data, time.time())


class _Writer:
    def __init__(self, store: MemoryContentStore, ref: str, algorithm: str) -> None:
        self._store = store
        self._ref = ref
        self._algorithm = algorithm
        self._ingest: _Ingest | None = store._ingests[ref]

    def _open(self) -> _Ingest:
        if self._ingest is None:
            raise WriterClosedError(f"ingest {self._ref}: the writer is closed")
        return self._ingest

    @property
    def offset(self) -> int:
        return len(self._ingest.data) if self._ingest is not None else 0

    @property
    def digest(self) -> Digest:
        return Digest.of(bytes(self._open().data), self._algorithm)

    def held(self) -> bytes | None:
        return bytes(self._open().data)

    def hash_with(self, algorithm: str) -> None:
        self._open()
        new_hash(algorithm)
        self._algorithm = algorithm

    def open_written(self) -> BinaryIO:
        return io.BytesIO(bytes(self._open().data))

    def write(self, chunk: bytes | memoryview) -> None:
        ingest = self._open()
        ingest.data += chunk
        ingest.updated_at = time.time()

    def fill(self, readinto: Callable[[memoryview], int], *, advanced: Callable[[int], None]) -> None:
        buffer = memoryview(bytearray(1 << 16))
        while count := readinto(buffer):
            advanced(self.offset + count)
            self.write(buffer[:count])

    def truncate(self) -> None:
        self._open().data.clear()

    def commit(
        self, expected: Digest | None = None, size: int | None = None, *, has_durable_name: bool = True
    ) -> Digest:
        data = bytes(self._open().data)
        if size is not None and len(data) != size:
            raise SizeMismatchError(str(expected or self._ref), expected=size, actual=len(data))
        actual = Digest.of(data, expected.algorithm if expected is not None else self._algorithm)
        if expected is not None and actual != expected:
            raise DigestMismatchError(self._ref, expected=str(expected), actual=str(actual))
        try:
            self._store.publish(actual, data)
        finally:
            self.abort()
        return actual

    def abort(self) -> None:
        if self._ingest is not None:
            self._ingest = None
            self._store._let_go(self._ref, is_done=True)

    def close(self) -> None:
        if self._ingest is not None:
            self._ingest = None
            self._store._let_go(self._ref)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Small:
    def __init__(self, store: MemoryContentStore) -> None:
        self.writer = store.writer
        self._store = store

    def put(self, blobs: Sequence[SmallBlob]) -> None:
        for blob in blobs:
            data = blob.read()
            verify(data, blob.digest, blob.size, what=blob.what)
            if not self._store.exists(blob.digest):
                self._store.publish(blob.digest, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Deleter:
    def __init__(self, store: MemoryContentStore) -> None:
        self._store = store

    def delete(self, text: str) -> int | None:
        sizes = {str(info.digest): info.size for info in self._store.walk()}
        if text in sizes:
            self._store.delete(Digest.parse(text))
        return sizes.get(text)

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        deleted = Deleted()
        for number, text in enumerate(texts):
            if number and is_due():
                deleted.left.append(text)
            else:
                deleted.sizes[text] = self.delete(text)
        return deleted

    def let_go(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
