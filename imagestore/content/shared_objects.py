"""Objects of a bucket that machines share: brought under a key of their own, named in the index, deleted once doomed.

An object is noted in the index before its first byte is sent and named there once it is whole. So a machine that dies
in between leaves a note, by which another one deletes what there is of the object.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Final

from imagestore.content.bucket import blob_key
from imagestore.errors import AlreadyExistsError, ImageStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from imagestore.content.bucket import Bucket
    from imagestore.content.object_index import ObjectIndex
    from imagestore.oci.digest import Digest
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

_RENEWAL_SECONDS: Final = 60.0
_TOKEN_BYTES: Final = 6
#: Of one request; S3 takes 1,000.
_DELETED_AT_ONCE: Final = 500


class SharedObjects:
    """Brings objects to a bucket and deletes them; thread-safe.

    Args:
        bucket: the bucket.
        index: says which object is which content.
        clock: seconds; for renewing uploads.
    """

    def __init__(self, bucket: Bucket, index: ObjectIndex, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._index = index
        self._clock = clock

    def send(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Bring a blob to the bucket under a new key and name it in the index; see ``bucket_files.Send``.

        Raises:
            AlreadyExistsError: the blob is there, or was brought by another one meanwhile.
            IntegrityError: the file has other bytes.
            StoreError: the bucket doesn't take it, or the index can't be changed; what was sent is to be deleted.
            OperationCancelledError: cancelled.
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
                self._bucket.delete_objects(keys)
                self._index.forget_doomed(keys)
            is_more = len(keys) == _DELETED_AT_ONCE

    def _abandon(self, key: str) -> None:
        """An upload failed, and its error is what the caller has to see."""
        try:
            self._index.abandon_upload(key)
        except ImageStoreError as error:
            # It is given up when nothing was heard of it for too long.
            log.warning("an upload can't be abandoned: %s", error, extra={"key": key})

    def _try_to(self, delete: Callable[[], None]) -> None:
        try:
            delete()
        except ImageStoreError as error:
            log.warning("objects in the bucket aren't deleted now: %s", error)


class _Renewing:
    """A file that goes to the bucket; while it is read, the index hears that the upload goes on."""

    def __init__(self, file: BinaryIO, renew: Callable[[], None], clock: Callable[[], float]) -> None:
        self._file = file
        self._renew = renew
        self._clock = clock
        self._due = clock() + _RENEWAL_SECONDS

    def read(self, count: int, /) -> bytes:
        if self._clock() >= self._due:
            self._renew()
            self._due = self._clock() + _RENEWAL_SECONDS
        return self._file.read(count)
