"""Fetching: bytes from a registry into the content store, each blob once however many threads and processes want it.

The pull that holds a blob's ingest downloads it; the others wait for the ingest's lock and then find the blob. A dead
holder's ingest is continued at its offset. Damage is never kept: content that doesn't verify is thrown away, and if old
bytes were resumed, fetched once more from the start.

Names of blobs are durable only after ``make_names_durable()``, which is called once for all fetched blobs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    AlreadyExistsError,
    DigestMismatchError,
    IntegrityError,
    InvalidDigestError,
    ReferenceNotFoundError,
    SizeMismatchError,
    StoreFullError,
)
from imagestore.events import BlobAdvanced, BlobAwaited, BlobDone, BlobStarted, BlobVerifying, Noticed
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import Kind
from imagestore.store.pull.fetch_pipeline import PARALLEL_BLOBS, FetchPipeline, fetch_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from imagestore.content.api import BlobWriter, ContentStore, SmallBlobs
    from imagestore.events import Observer
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.store.pull.sources import Origin
    from imagestore.util.cancel import CancelToken

    #: Gets a document's verified bytes, or None if they are in the store.
    OnDocument = Callable[[bytes | None], object]

log = logging.getLogger(__name__)

_EVENT_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class _ReceivedBlob:
    """A received blob that is not verified yet.

    Attributes:
        received: number of bytes received over the network.
        is_at_hand: the caller gave the bytes, so they can't be fetched again.
    """

    descriptor: Descriptor
    writer: BlobWriter
    received: int
    hosts: Collection[str]
    is_at_hand: bool = False


#: Fetches blobs; made by Fetcher.pipeline().
BlobPipeline = FetchPipeline["Descriptor", _ReceivedBlob]


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches blobs of one reference into the store; a lease must hold them already.

    Attributes:
        keep_alive: called regularly while bytes arrive; renews the lease.
        parallel: blobs in flight at once.
    """

    content: ContentStore
    client: Origin
    reference: Reference
    observer: Observer
    keep_alive: Callable[[], None]
    small_blobs: SmallBlobs
    parallel: int = PARALLEL_BLOBS

    def check(self, descriptors: Iterable[Descriptor], here: Collection[Digest]) -> None:
        """Refuse blobs that can't be stored, before the first byte is fetched.

        Args:
            descriptors: of all blobs.
            here: what the store has of them.

        Raises:
            InvalidDigestError: content under an algorithm that can't be verified.
            StoreFullError: there is less space than the missing blobs need.
        """
        wanted = {descriptor.digest: descriptor for descriptor in descriptors}
        for digest in wanted:
            if not digest.is_verifiable:
                raise InvalidDigestError(f"{self.reference}: {digest}: this algorithm can't be verified")
        self.check_space(each for digest, each in wanted.items() if digest not in here)

    def check_space(self, missing: Iterable[Descriptor]) -> None:
        """Check that the missing blobs fit on the disk.

        Args:
            missing: descriptors of blobs that aren't in the store, each digest once.
        """
        offsets = {status.ref: status.offset for status in self.content.statuses()}
        needed = sum(
            descriptor.size - min(offsets.get(descriptor.ingest_ref, 0), descriptor.size)
            for descriptor in missing
            # An adopted blob may take no space. If it does take some, the disk reports that.
            if not self.content.is_at_source(descriptor.digest, descriptor.size)
        )
        free = self.content.free_bytes()
        if needed > free:
            raise StoreFullError(
                f"{self.reference}: needs {needed} bytes more, but {self.content.name} has room for {free}",
                hint="free space there, run 'imagestore gc', or choose another --root",
            )

    def fetch_all(self, descriptors: Iterable[Descriptor], *, cancel: CancelToken) -> None:
        """Fetch what is missing, several at once; the first failure stops the others."""
        with self.pipeline(cancel) as pipeline:
            pipeline.receive(fetch_order(descriptors))

    @contextlib.contextmanager
    def pipeline(
        self,
        cancel: CancelToken,
        *,
        document: Descriptor | None = None,
        on_document: OnDocument | None = None,
    ) -> Iterator[BlobPipeline]:
        """A pipeline that fetches several blobs in parallel, until the end of the block.

        Args:
            document: a blob that is needed as soon as it has arrived, while others are still fetched.
            on_document: called for it; may raise.
        """
        with (
            cancel.child() as part,
            FetchPipeline(
                receive=functools.partial(
                    self._receive_and_report, document=document, on_document=on_document, cancel=part
                ),
                commit=functools.partial(self._commit_or_refetch, cancel=part),
                parallel=self.parallel,
                cancel=part,
            ) as pipeline,
        ):
            yield pipeline

    def fetch(self, descriptor: Descriptor, *, cancel: CancelToken) -> int:
        """Fetch one blob, unless the store has it.

        Returns:
            Number of bytes received over the network.
        """
        blob = self._receive_blob(descriptor, cancel=cancel)
        return 0 if blob is None else self._commit_or_refetch(blob, cancel=cancel)

    def keep(
        self, descriptor: Descriptor, raw: bytes, *, cancel: CancelToken, pipeline: BlobPipeline | None = None
    ) -> None:
        """Store a document whose bytes the caller has; with a pipeline, in parallel with its other blobs."""
        while True:
            try:
                writer = self._writer(descriptor, len(raw), cancel)
                break
            except AlreadyExistsError:
                if self._is_present(descriptor):
                    self.observer(BlobDone(descriptor, 0))
                    return
        with self._ended_by_failure(writer, descriptor):
            writer.truncate()
            writer.write(raw)
        blob = _ReceivedBlob(descriptor, writer, len(raw), (), is_at_hand=True)
        if pipeline is None:
            self._commit_or_refetch(blob, cancel=cancel)
        else:
            pipeline.commit(blob)

    def _writer(self, descriptor: Descriptor, size: int, cancel: CancelToken) -> BlobWriter:
        return self.small_blobs.writer(
            descriptor.ingest_ref,
            expected=descriptor.digest,
            total=size,
            cancel=cancel,
            on_wait=lambda: self.observer(BlobAwaited(descriptor)),
        )

    def _receive_blob(self, descriptor: Descriptor, *, cancel: CancelToken) -> _ReceivedBlob | None:
        """Receive a blob; None if the store has it already."""
        if self._is_present(descriptor) or self._is_adopted(descriptor, cancel):
            self.observer(BlobDone(descriptor, 0))
            return None
        try:
            writer = self._writer(descriptor, descriptor.size, cancel)
        except AlreadyExistsError:
            self.observer(BlobDone(descriptor, 0))
            return None
        with self._ended_by_failure(writer, descriptor):
            received, hosts = self._receive(writer, descriptor, (), cancel)
        return _ReceivedBlob(descriptor, writer, received, hosts)

    def _receive_and_report(
        self,
        descriptor: Descriptor,
        *,
        document: Descriptor | None,
        on_document: OnDocument | None,
        cancel: CancelToken,
    ) -> _ReceivedBlob | None:
        """Receive a blob; None when there is nothing to commit."""
        blob = self._receive_blob(descriptor, cancel=cancel)
        if on_document is None or descriptor is not document:
            return blob
        raw = self._whole(blob)
        if blob is not None and raw is None:
            self._commit_or_refetch(blob, cancel=cancel)
            blob = None
        with contextlib.nullcontext() if blob is None else self._ended_by_failure(blob.writer, descriptor):
            on_document(raw)
        return blob

    def _whole(self, blob: _ReceivedBlob | None) -> bytes | None:
        """The received bytes if they are in memory and verified, else None."""
        raw = None if blob is None else blob.writer.held()
        if blob is None or raw is None:
            return None
        descriptor = blob.descriptor
        is_whole = len(raw) == descriptor.size and Digest.of(raw, descriptor.digest.algorithm) == descriptor.digest
        return raw if is_whole else None

    def _commit_or_refetch(self, blob: _ReceivedBlob, *, cancel: CancelToken) -> int:
        """Verify a received blob and make it visible; if it is damaged, receive it once more."""
        descriptor, writer, received = blob.descriptor, blob.writer, blob.received
        with self._ended_by_failure(writer, descriptor):
            try:
                self._commit(writer, descriptor)
            except IntegrityError as error:
                if blob.is_at_hand:
                    raise
                self._start_again(writer, descriptor, error)
                received += self._receive(writer, descriptor, blob.hosts, cancel)[0]
                self._commit(writer, descriptor)
        self.observer(BlobDone(descriptor, received))
        return received

    def _start_again(self, writer: BlobWriter, descriptor: Descriptor, error: IntegrityError) -> None:
        """Discard damaged bytes and receive the blob from the start, from another host if there is one."""
        log.warning("%s: fetching it again", error, extra={"digest": descriptor.digest})
        self.observer(Noticed(f"{descriptor.kind.value} {descriptor.digest.short} came damaged; fetching again"))
        writer.truncate()

    def _commit(self, writer: BlobWriter, descriptor: Descriptor) -> None:
        self.observer(BlobVerifying(descriptor))
        with contextlib.suppress(AlreadyExistsError):
            writer.commit(descriptor.digest, descriptor.size, has_durable_name=False)

    @contextlib.contextmanager
    def _ended_by_failure(self, writer: BlobWriter, descriptor: Descriptor) -> Iterator[None]:
        """On a failure, keep the bytes for resuming, unless they are damaged or the disk is full."""
        try:
            yield
        except DigestMismatchError as error:
            writer.abort()
            what = f"{self.reference}: {descriptor.kind.value} {descriptor.digest.short}"
            raise DigestMismatchError(what, expected=error.expected, actual=error.actual) from error
        except ReferenceNotFoundError as error:
            writer.abort()
            if descriptor.kind is Kind.FOREIGN_LAYER:
                raise self._foreign(descriptor, error) from error
            raise
        except (IntegrityError, StoreFullError):
            writer.abort()
            raise
        except BaseException:
            writer.close()
            raise

    def _receive(
        self, writer: BlobWriter, descriptor: Descriptor, avoid: Collection[str], cancel: CancelToken
    ) -> tuple[int, Collection[str]]:
        """Append the rest of a blob to its ingest; the number of received bytes, and the hosts that sent them."""
        if writer.offset == descriptor.size > 0:
            return 0, avoid
        if writer.offset > descriptor.size:  # an ingest takes a size of 0 for unknown
            writer.truncate()
        event_due = 0.0

        def _advanced(offset: int) -> None:
            nonlocal event_due
            cancel.check()
            if offset > descriptor.size:
                raise SizeMismatchError(str(descriptor.digest), expected=descriptor.size, actual=offset)
            if time.monotonic() >= event_due:
                event_due = time.monotonic() + _EVENT_SECONDS
                self.keep_alive()
                self.observer(BlobAdvanced(descriptor.digest, offset))

        blob = self.client.blob(self.reference, descriptor, offset=writer.offset, avoid=avoid, cancel=cancel)
        with blob as stream:
            if stream.start != writer.offset:
                writer.truncate()
            start = writer.offset
            self.observer(BlobStarted(descriptor, start))
            try:
                writer.fill(stream.readinto, advanced=_advanced)
            except IntegrityError as error:
                if avoid:
                    raise
                failure, hosts = error, stream.hosts
            else:
                return writer.offset - start, stream.hosts
        received = writer.offset - start
        self._start_again(writer, descriptor, failure)
        again, hosts = self._receive(writer, descriptor, hosts, cancel)
        return received + again, hosts

    def _foreign(self, descriptor: Descriptor, error: ReferenceNotFoundError) -> ReferenceNotFoundError:
        return ReferenceNotFoundError(
            f"{self.reference}: foreign layer {descriptor.digest} is not in the registry, and addresses named by an"
            " image are not followed",
            host=error.host,
            status=error.status,
            hint="copy the image with its foreign layers into a registry of yours, or allow their hosts with"
            " foreign_layer_hosts in the configuration",
        )

    def _is_present(self, descriptor: Descriptor) -> bool:
        """Whether the store has the whole blob. Removes a damaged file; refuses a descriptor with a wrong size."""
        info = self.content.find(descriptor.digest) if descriptor.digest.is_verifiable else None
        if info is None:
            return False
        if info.size == descriptor.size:
            return True
        if not self.content.delete_damaged(descriptor.digest):
            log.warning("content in the store is damaged, fetching it again", extra={"digest": descriptor.digest})
            return False
        actual = self.content.info(descriptor.digest).size
        if actual == descriptor.size:  # it was repaired since the first look
            return True
        raise SizeMismatchError(f"{self.reference}: {descriptor.digest}", expected=descriptor.size, actual=actual)

    def _is_adopted(self, descriptor: Descriptor, cancel: CancelToken) -> bool:
        how = self.content.adopt(descriptor.digest, descriptor.size, cancel=cancel)
        if how is not None:
            log.debug("adopted", extra={"digest": descriptor.digest, "how": how.value})
        return how is not None
