"""Content that several machines share: which object of a bucket holds which content, and how objects come and go.

The index's row is the truth: content is here when the index says so, and an object without a row is garbage. Each
upload has an object of its own, so a collection never deletes what another machine uploads anew at that moment.

The order of steps keeps content safe without one lock for all: a writer leases content first and then looks for it; the
collector locks the row first and then checks whether anything keeps it.

An upload is noted in the index before its first byte is sent. So if the machine dies, another one deletes the object.
"""

from __future__ import annotations

import logging
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.content.bucket import blob_key
from imagestore.errors import AlreadyExistsError, ImageStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from imagestore.content.bucket import Bucket
    from imagestore.oci.digest import Digest
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)
_RENEWAL_SECONDS: Final = 60.0
_TOKEN_BYTES: Final = 6
#: Objects that are deleted at once, in requests at the same time: a service deletes those of one request in turn.
_DELETED_AT_ONCE: Final = 1000
_REQUESTS: Final = 4
#: Fewer go in one request.
_LEAST_SHARED: Final = 32


class StoredObject(Protocol):
    """Content in the bucket."""

    @property
    def digest(self) -> Digest:
        """Of the content."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def key(self) -> str:
        """The object's, below the bucket's prefix."""

    @property
    def stored_at(self) -> float:
        """Seconds since 1970."""


class Flight(Protocol):
    """That this process brings a digest, and others wait for it. A loss of it costs a second transfer, nothing else."""

    def end(self) -> None:
        """Let others go on; harmless when it ended already."""


class ObjectIndex(Protocol):
    """Content by digest, uploads under way, and objects to delete; shared by any number of machines. Thread-safe.

    Every call raises StoreError if the index can't be read or changed.
    """

    def find(self, digest: Digest) -> StoredObject | None:
        """Where content is, or None; reliable if the digest was leased before.

        If a collection is deciding about it, this waits for the decision. In a transaction (``exclusive()`` of
        the store's records) what was found stays until its end.
        """

    def find_all(self, digests: Collection[Digest]) -> Mapping[Digest, StoredObject]:
        """As find() for several, in one question; those that aren't here are left out."""

    def names(self) -> Iterator[str]:
        """Every content's digest in text form, in no particular order."""

    def walk(self) -> Iterator[StoredObject]:
        """Everything that is here, in no particular order."""

    def begin_upload(self, key: str) -> None:
        """Note an object before its first byte is sent, so that it is deleted if this process ends before publish()."""

    def renew_upload(self, key: str) -> None:
        """Say that an upload goes on; at least once in ten minutes.

        Raises:
            ContentUnavailableError: it was given up, since it was not renewed in time.
        """

    def publish(self, digest: Digest, size: int, key: str) -> bool:
        """Make an uploaded object the content of a digest.

        Args:
            digest: verified by the caller.
            key: of the object, as given to begin_upload().

        Returns:
            Whether it is. If another one came first, it is not, and this object is to be deleted.

        Raises:
            ContentUnavailableError: the upload was given up; its object is to be deleted.
        """

    def abandon_upload(self, key: str) -> None:
        """An upload failed, perhaps after it was given up; what there is of its object is to be deleted.

        An object that is content stays: publish() may have succeeded although its answer was lost.
        """

    def remove(self, texts: Sequence[str]) -> dict[str, int]:
        """Forget content, given by digests in text form; its objects are to be deleted once that is committed.

        Returns:
            Bytes of what was there, by digest in text form.
        """

    def remove_object(self, digest: Digest, key: str) -> bool:
        """As remove(), but only while this very object is the content; say whether it was."""

    def doomed(self, most: int) -> list[str]:
        """Keys of objects to delete, as many at most; those that are committed."""

    def forget_doomed(self, keys: Collection[str]) -> None:
        """Some objects are deleted."""

    def expire_uploads(self) -> int:
        """Give up uploads that were not renewed in time, and return how many; their objects are to be deleted."""

    def try_flight(self, digest: Digest) -> Flight | None:
        """Be the only machine that brings a digest; None while another one does.

        Behind a pooler of transactions that can't be known, and every caller gets a flight.
        """


class SharedObjects:
    """Brings objects to a bucket and deletes them; thread-safe.

    Args:
        clock: seconds; for renewing uploads.
    """

    def __init__(self, bucket: Bucket, index: ObjectIndex, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._index = index
        self._clock = clock

    def send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Bring a blob to the bucket under a new key and name it in the index; see ``staged_files.Send``.

        Raises:
            AlreadyExistsError: the blob is there, or another writer brought it first.
            StoreError: the bucket doesn't take it, or the index can't be changed; what was sent is to be deleted.
        """
        if self._index.find(digest) is not None:
            raise AlreadyExistsError(f"content {digest} is in the store already")
        key = f"{blob_key(digest)}/{secrets.token_hex(_TOKEN_BYTES)}"
        self._index.begin_upload(key)
        try:
            renewing = _Renewing(file, lambda: self._index.renew_upload(key), self._clock)
            self._bucket.put(digest, size, renewing, key=key, cancel=cancel)
            is_content = self._index.publish(digest, size, key)
        except BaseException:
            self._abandon(key)
            raise
        if not is_content:
            # It is doomed already; its bytes needn't wait for the next collection.
            self._try_to(lambda: self._bucket.delete_objects([key]))
            raise AlreadyExistsError(f"content {digest} is in the store already: another writer was first")

    def delete_doomed(self) -> None:
        """Delete the objects that the index gives up; a failure is logged, and the next collection tries again."""
        self._try_to(self._delete_doomed)

    def _delete_doomed(self) -> None:
        is_more = True
        while is_more:
            keys: Sequence[str] = self._index.doomed(_DELETED_AT_ONCE)
            if keys:
                self._delete(keys)
                self._index.forget_doomed(keys)
            is_more = len(keys) == _DELETED_AT_ONCE

    def _delete(self, keys: Sequence[str]) -> None:
        if len(keys) < _LEAST_SHARED:
            self._bucket.delete_objects(keys)
            return
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="imagestore-delete") as threads:
            for done in [
                threads.submit(self._bucket.delete_objects, keys[number::_REQUESTS]) for number in range(_REQUESTS)
            ]:
                done.result()

    def _abandon(self, key: str) -> None:
        """An upload failed, and its error is what the caller has to see."""
        try:
            self._index.abandon_upload(key)
        except ImageStoreError as error:
            # It is given up when it is no longer renewed.
            log.warning("an upload can't be abandoned: %s", error, extra={"key": key})

    def _try_to(self, delete: Callable[[], None]) -> None:
        try:
            delete()
        except ImageStoreError as error:
            log.warning("objects in the bucket aren't deleted now: %s", error)


class _Renewing:
    """A file that goes to the bucket; while it is read, the upload is renewed in the index."""

    def __init__(self, file: BinaryIO, renew: Callable[[], None], clock: Callable[[], float]) -> None:
        self._file = file
        self._renew = renew
        self._clock = clock
        self._due = clock() + _RENEWAL_SECONDS

    def read(self, count: int, /) -> bytes:
        """See io.RawIOBase."""
        if self._clock() >= self._due:
            self._renew()
            self._due = self._clock() + _RENEWAL_SECONDS
        return self._file.read(count)
