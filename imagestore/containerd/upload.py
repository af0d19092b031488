"""One write of content, from its first message to its end: containerd's state machine (services/content, Write).

- The first message names the ingest, which stays locked until the stream ends. An existing ingest is continued.
- An offset above 0 must be the end of the ingest. **Offset 0 discards existing bytes**, also on a commit.
- A later total or expected digest replaces an earlier one. A digest that the owner has ends the write: ALREADY_EXISTS.
- A blob that is in the store, but not among the owner's, is *shared*: the write is complete from the start, and a
  commit only makes the owner's record. Appending to it makes a copy first.
- A failed commit leaves the ingest unchanged; it can be continued.
- The records of owner and lease are made before the blob becomes visible, so that no collection can come in between.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.containerd.calls import checked_key
from imagestore.content.api import IngestStatus
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    InvalidInputError,
    LeaseNotFoundError,
    OutOfRangeError,
    PreconditionError,
    StoreError,
)
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.containerd.content_view import ContentView
    from imagestore.content.api import IngestWriter
    from imagestore.store.image_store import ImageStore
    from imagestore.util.cancel import CancelToken

_COPY_BYTES: Final = 1024 * 1024
_DEFAULT_ALGORITHM: Final = "sha256"


@dataclass(frozen=True, slots=True)
class UploadPart:
    """One message of a write.

    Attributes:
        ref: the owner's name of the ingest; in the first message.
        total: size in bytes; 0 if unknown.
        expected: digest of the content; empty if unknown.
        offset: of the data.
        data: to append.
    """

    ref: str = ""
    total: int = 0
    expected: str = ""
    offset: int = 0
    data: bytes = b""


class Upload:
    """The write of one stream, for the owner of ``view``; calls come one after another, each from any thread."""

    def __init__(self, view: ContentView, lease: str) -> None:
        self._view = view
        self._lease = view.lease_key(lease)
        # A cancelled call's thread may still be running when the stream is closed.
        self._lock = threading.Lock()
        self._is_closed = False
        self._writer: IngestWriter | None = None
        #: A blob of the store that the owner doesn't have yet, and its size.
        self._shared: tuple[Digest, int] | None = None
        self.ref = ""
        self.total = 0
        self.expected: Digest | None = None

    @property
    def offset(self) -> int:
        """The number of bytes."""
        if self._shared is not None:
            return self._shared[1]
        return self._writer.offset if self._writer is not None else 0

    @property
    def digest(self) -> Digest:
        """The digest of the bytes."""
        if self._shared is not None:
            return self._shared[0]
        assert self._writer is not None
        return self._writer.digest

    def status(self, store: ImageStore) -> IngestStatus:
        """Times and total of the ingest; a shared blob's are those of its file."""
        with self._lock:
            found = self._view.status(store, self.ref)
            if self._shared is None and found is not None:
                return found
            try:
                moment = store.content.info(self.digest).modified_at
            except ContentNotFoundError:
                moment = 0.0
            return IngestStatus(self.ref, self.offset, self.offset, moment, moment)

    def open(self, store: ImageStore, piece: UploadPart) -> None:
        """Process the first message, and lock the ingest.

        Raises:
            InvalidInputError: the ref is missing or too long.
            IngestLockedError: another writer has it; call again with the same message.
            AlreadyExistsError: the owner has the expected content.
            LeaseNotFoundError: there is no such lease.
            PreconditionError: the stream has ended.
        """
        with self._lock:
            # The stream may have been closed while this message waited for a thread; nothing would close it again.
            self._refuse_closed()
            if not piece.ref:
                raise InvalidInputError("the first message of a write needs a ref")
            checked_key(f"ref {piece.ref[:100]!r}", piece.ref)
            self.ref = piece.ref
            self._note(piece)
            if self._lease and store.metadata.leases.get(self._lease) is None:
                raise LeaseNotFoundError(f"lease {self._lease!r} does not exist")
            self._refuse_known(store)
            if self.expected is not None and not self._view.is_proxy:
                # One call, because the blob may be collected between two.
                with contextlib.suppress(ContentNotFoundError):
                    self._shared = (self.expected, store.content.info(self.expected).size)
                    return
            self._open_ingest(store)

    def _open_ingest(self, store: ImageStore) -> None:
        on_disk = self._view.ref_on_disk(self.ref)
        algorithm = self.expected.algorithm if self.expected is not None else _DEFAULT_ALGORITHM
        self._writer = store.content.try_writer(on_disk, algorithm=algorithm, total=self.total)
        store.metadata.namespaces.put_ingest(self._view.owner, on_disk, expected=self.expected, lease=self._lease)

    def check(self, store: ImageStore, piece: UploadPart) -> None:
        """Process the total and the expected digest of a message.

        Raises:
            InvalidInputError: the digest can't be read, or the total is negative.
            AlreadyExistsError: the owner has that content; the ingest is gone.
        """
        with self._lock:
            if piece.total or piece.expected:
                self._note(piece)
                self._refuse_known(store)

    def _note(self, piece: UploadPart) -> None:
        if piece.total < 0:
            raise InvalidInputError(f"write {self.ref!r}: total {piece.total} is negative")
        if piece.total:
            self.total = piece.total
        if piece.expected:
            self.expected = Digest.parse(piece.expected)

    def _refuse_known(self, store: ImageStore) -> None:
        if self.expected is None or self._view.find(store, self.expected) is None:
            return
        if self._lease:
            store.metadata.leases.add_content(self._lease, [self.expected])
        self._drop(store)
        raise AlreadyExistsError(f"content {self.expected} exists already")

    def write(self, store: ImageStore, piece: UploadPart, cancel: CancelToken) -> None:
        """Append a message's data.

        Raises:
            OutOfRangeError: its offset isn't the end of the ingest.
            StoreFullError: no space is left.
        """
        with self._lock:
            self._refuse_closed()
            if piece.offset and piece.offset != self.offset:
                raise OutOfRangeError(f"write {self.ref!r}: expected offset {self.offset}, not {piece.offset}")
            if piece.offset == 0 and self.offset:
                self._materialize(store, None)
                assert self._writer is not None
                self._writer.truncate()
            if piece.data:
                self._materialize(store, cancel)
                assert self._writer is not None
                self._writer.write(piece.data)

    def _materialize(self, store: ImageStore, cancel: CancelToken | None) -> None:
        """Turn a shared blob into an ingest with a copy of its bytes; without a token, into an empty one."""
        if self._shared is None:
            return
        digest, _ = self._shared
        self._open_ingest(store)
        assert self._writer is not None
        self._writer.truncate()
        if cancel is not None:
            with store.content.open(digest) as blob:
                while chunk := blob.read(_COPY_BYTES):
                    cancel.check()
                    self._writer.write(chunk)
        self._shared = None

    def commit(self, store: ImageStore, labels: Mapping[str, str]) -> None:
        """Verify the content and make it the owner's.

        Raises:
            PreconditionError: wrong size or digest; the ingest stays.
            AlreadyExistsError: the owner has it; the ingest is deleted.
            ContentNotFoundError: shared content was collected in between; write it again.
        """
        with self._lock:
            self._refuse_closed()
            self._refuse_wrong()
            digest, size = self.digest, self.offset
            on_disk = self._view.ref_on_disk(self.ref)
            if self._view.find(store, digest) is not None:
                self.expected = digest
                self._refuse_known(store)
            self._record(store, digest, size, labels)
            self._publish(store, digest, size)
            store.metadata.namespaces.forget_ingest(self._view.owner, on_disk)

    def _refuse_wrong(self) -> None:
        if self.total and self.total != self.offset:
            raise PreconditionError(f"{self.ref!r} failed size validation: {self.offset} != {self.total}")
        if self._writer is not None and self.expected is not None:
            self._writer.hash_with(self.expected.algorithm)
        if self.expected is not None and self.digest != self.expected:
            raise PreconditionError(f"{self.ref!r}: unexpected commit digest {self.digest}, expected {self.expected}")

    def _record(self, store: ImageStore, digest: Digest, size: int, labels: Mapping[str, str]) -> None:
        metadata = store.metadata
        with metadata.exclusive():
            if self._lease:
                metadata.leases.add_content(self._lease, [digest])
            if self._writer is not None:
                # Until the blob is visible, this keeps a sweep from deleting the record.
                on_disk = self._view.ref_on_disk(self.ref)
                metadata.namespaces.put_ingest(self._view.owner, on_disk, expected=digest, lease=self._lease)
            metadata.namespaces.record_content(self._view.owner, digest, size)
            if labels:
                self._view.set_labels(store, digest, labels)

    def _publish(self, store: ImageStore, digest: Digest, size: int) -> None:
        if self._shared is not None:
            if not store.content.exists(digest):
                store.metadata.namespaces.forget_record(self._view.owner, digest)
                raise ContentNotFoundError(f"content {digest} was collected since then", hint="write it again")
            store.content.make_durable({digest.algorithm})
            return
        assert self._writer is not None
        try:
            self._writer.commit(digest, size)
        except AlreadyExistsError:
            # Another owner has it too. Its writer may have died before the name was durable.
            store.content.make_durable({digest.algorithm})
        except StoreError:
            store.metadata.namespaces.forget_record(self._view.owner, digest)
            raise

    def _drop(self, store: ImageStore) -> None:
        if self._writer is not None:
            self._writer.abort()
            store.metadata.namespaces.forget_ingest(self._view.owner, self._view.ref_on_disk(self.ref))

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise PreconditionError(f"write {self.ref!r} is closed")

    def close(self) -> None:
        """Unlock the ingest; an uncommitted one stays and can be continued."""
        with self._lock:
            self._is_closed = True
            if self._writer is not None:
                self._writer.close()
