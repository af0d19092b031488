"""Content that many machines share: objects in a bucket, and an index that says which of them is which blob.

Questions about blobs are answered by the index alone. Ingests are files of this machine, as for a bucket of one store.
While one writer brings a blob, those of other machines that want it wait for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from imagestore.content.api import ContentInfo, Deleted
from imagestore.content.blob_files import is_name
from imagestore.content.bucket import Bucket
from imagestore.content.shared_objects import SharedObjects
from imagestore.content.staged import StagedContent, is_right, nothing
from imagestore.errors import ContentNotFoundError, IntegrityError, SizeMismatchError
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, Self

    from imagestore.config.model import BucketSettings
    from imagestore.content.bucket import BucketReader
    from imagestore.content.shared_objects import ObjectIndex, StoredObject
    from imagestore.oci.digest import Digest

#: Between looks at what another machine brings.
_SHORTEST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
#: For what another machine brings; most layers come in less.
_PATIENCE_SECONDS: Final = 300.0
#: How often a blob is looked at that others replace at the same time.
_LOOKS: Final = 3
_DAMAGED_HINT: Final = "'imagestore check' finds what else is damaged, 'imagestore repair' fetches it again"


class SharedContentStore(StagedContent):
    """A ContentStore over a bucket and an index, shared by any number of machines; thread-safe.

    Args:
        folder: for ingests of this machine; made when missing.
        index: which object is which blob.
        owner: the name of the store whose index it is, the same on all machines; at most 200 bytes.

    It raises what BucketContentStore raises.
    """

    def __init__(self, settings: BucketSettings, folder: Path, index: ObjectIndex, *, owner: str) -> None:
        self._bucket = Bucket(settings)
        self._bucket.check()
        super().__init__(self._bucket.url, folder)
        self._index = index
        self._objects = SharedObjects(self._bucket, index)
        self._bucket.claim(owner, hint="give this store a prefix of its own, or use the database of its store")

    def find(self, digest: Digest) -> ContentInfo | None:
        """As info(), but None where the blob isn't there."""
        stored = self._stored(digest)
        return None if stored is None else _info(stored)

    def sizes(self, digests: Collection[Digest]) -> dict[Digest, int]:
        """Bytes of those blobs that are there."""
        there = self._index.find_all([digest for digest in digests if digest.is_verifiable])
        return {digest: stored.size for digest, stored in there.items()}

    def walk(self) -> Iterator[ContentInfo]:
        """Every blob, in no particular order."""
        return map(_info, self._index.walk())

    def names(self) -> Iterator[str]:
        """Every blob's digest in text form, in no particular order."""
        return self._index.names()

    def signed(self, digest: Digest, seconds: float) -> str:
        """A URL at which anyone can read a blob for this time; only the index is read.

        Raises:
            ContentNotFoundError: the blob isn't there.
        """
        stored = self._stored(digest)
        if stored is None:
            raise self._missing(digest)
        return self._bucket.signed(digest, seconds, key=stored.key)

    def has_object(self, digest: Digest) -> bool:
        """Whether the bucket has what the index says of a blob."""
        stored = self._stored(digest)
        return stored is not None and self._bucket.has_object(stored.key)

    def clear_locks(self) -> None:
        """Remove what killed processes left of their locks, and on all machines of their uploads."""
        super().clear_locks()
        self._index.expire_uploads()
        self._objects.delete_doomed()

    def sweep_strays(self, before: float) -> int:
        """List the bucket and delete objects that no row names, as a restored backup of the database leaves them.

        Args:
            before: only those that were stored before this time, in seconds since 1970; leave uploads a day at least.

        Returns:
            How many there were.
        """
        named = {stored.key for stored in self._index.walk()}
        strays = [key for key, info in self._bucket.objects() if info.modified_at < before and key not in named]
        for key in strays:
            self._index.abandon_upload(key)  # which spares what was published since
        self._objects.delete_doomed()
        return len(strays)

    def deleter(self) -> SharedDeleter:
        """For deleting many blobs in a transaction."""
        return SharedDeleter(self._index, self._objects)

    def remove(self, digest: Digest) -> int | None:
        """Remove a blob; its size in bytes, None when it wasn't there."""
        freed = self._index.remove([str(digest)]).get(str(digest))
        self._objects.delete_doomed()
        return freed

    def delete_damaged(self, digest: Digest) -> bool:
        """Hash a blob and remove it where it is damaged or has no object; say whether a whole one was found."""
        for _ in range(_LOOKS):
            stored = self._stored(digest)
            if stored is None:
                return False
            if self._is_whole(stored):
                return True
            if self._index.remove_object(digest, stored.key):
                self._objects.delete_doomed()
                return False
        return False

    def open_at(self, digest: Digest, offset: int = 0) -> BucketReader:
        """A blob's bytes from an offset on."""
        before = None
        for _ in range(_LOOKS):
            stored = self._stored(digest)
            if stored is None:
                raise self._missing(digest)
            if stored == before:
                break
            try:
                return self._open_object(stored, offset)
            except SizeMismatchError as error:
                raise IntegrityError(f"{error}", hint=_DAMAGED_HINT) from error
            except ContentNotFoundError:
                before = stored  # perhaps it was replaced since the index was read
        raise IntegrityError(f"content {digest}: has no object in {self.name}, but a row", hint=_DAMAGED_HINT)

    def send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Upload a blob under a new key, and name it in the index."""
        self._objects.send(digest, size, file, cancel=cancel)

    def _is_whole(self, stored: StoredObject) -> bool:
        try:
            with self._open_object(stored, 0) as reader:
                return is_right(reader, stored.digest)
        except (ContentNotFoundError, SizeMismatchError):
            return False

    def _stored(self, digest: Digest) -> StoredObject | None:
        return self._index.find(digest) if digest.is_verifiable else None

    def _open_object(self, stored: StoredObject, offset: int) -> BucketReader:
        return self._bucket.open(stored.digest, stored.size, key=stored.key, offset=offset, cancel=CancelToken())

    def _begin(self, expected: Digest, cancel: CancelToken, on_wait: Callable[[], None] | None) -> Callable[[], None]:
        end = self._flight(expected, cancel, on_wait)
        # The flight before may have brought it.
        try:
            self._check_missing(expected)
        except BaseException:
            end()
            raise
        return end

    def _flight(self, expected: Digest, cancel: CancelToken, on_wait: Callable[[], None] | None) -> Callable[[], None]:
        """Wait until no other machine brings the blob; returns what ends the flight."""
        pause, end = _SHORTEST_PAUSE_SECONDS, time.monotonic() + _PATIENCE_SECONDS
        while (flight := self._index.try_flight(expected)) is None:
            self._check_missing(expected)
            # The other process may be suspended; nothing relies on the flight.
            if time.monotonic() >= end:
                return nothing
            if on_wait is not None:
                on_wait()
            cancel.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return flight.end


class SharedDeleter:
    """Removes blobs from the index in the caller's transaction; their objects go after it."""

    def __init__(self, index: ObjectIndex, objects: SharedObjects) -> None:
        self._index = index
        self._objects = objects

    def delete(self, text: str) -> int | None:
        """Remove a blob, given by its digest in text form; its size in bytes, None when it wasn't there."""
        return self._remove([text])[text]

    def delete_some(self, texts: Sequence[str], is_due: Callable[[], bool]) -> Deleted:
        """Remove all of these blobs; only one if there is no time.

        Raises:
            StoreError: the index can't be changed; the transaction is lost.
        """
        deleted, count = Deleted(), 1 if is_due() else len(texts)
        deleted.sizes.update(self._remove(texts[:count]))
        deleted.left.extend(texts[count:])
        return deleted

    def let_go(self) -> None:
        """Delete the objects of what is committed."""
        self._objects.delete_doomed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _remove(self, texts: Sequence[str]) -> dict[str, int | None]:
        # Labels may name anything.
        named = [text for text in texts if is_name(*text.partition(":")[::2])]
        removed = self._index.remove(named) if named else {}
        return {text: removed.get(text) for text in texts}


def _info(stored: StoredObject) -> ContentInfo:
    return ContentInfo(stored.digest, stored.size, stored.stored_at)
