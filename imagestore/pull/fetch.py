"""Fetching: bytes from a registry into the content store, each blob once however many threads and processes want it.

Whoever holds a blob's ingest downloads it; the others wait for the ingest's lock and then find the blob. A dead
holder's ingest is continued at its offset. Damage is never kept: content that doesn't verify is thrown away, and if old
bytes were resumed, fetched once more from the start.

Names of blobs are durable only after ``settle()``, once for all that were fetched.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from imagestore.digest import Verifier
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
    IntegrityError,
    InvalidDigestError,
    ReferenceNotFoundError,
    SizeMismatchError,
    StoreFullError,
)
from imagestore.media_types import Kind
from imagestore.observe import BlobAdvanced, BlobAwaited, BlobDone, BlobStarted, BlobVerifying, Noticed
from imagestore.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from imagestore.cancel import CancelToken
    from imagestore.content.api import IngestWriter
    from imagestore.content.local import LocalContentStore
    from imagestore.content.small import Gathering
    from imagestore.descriptor import Descriptor
    from imagestore.observe import Observer
    from imagestore.pull.origin import Origin
    from imagestore.reference import Reference

log = logging.getLogger(__name__)

#: Blobs of one pull in flight at once; the default of containerd's max_concurrent_downloads.
PARALLEL_BLOBS: Final = 3
#: However many the configuration allows.
MOST_PARALLEL_BLOBS: Final = 64
_EVENT_SECONDS: Final = 0.05
_REHASH_BYTES: Final = 1024 * 1024
_INGEST_PREFIX: Final = {
    Kind.INDEX: "index",
    Kind.MANIFEST: "manifest",
    Kind.CONFIG: "config",
    Kind.LAYER: "layer",
    Kind.FOREIGN_LAYER: "layer",
}


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Brings blobs of one reference into the store; a lease must hold them already.

    Attributes:
        content: where they go.
        client: where they come from.
        reference: names the repository.
        observer: hears of progress.
        keep_alive: called now and then while bytes come; renews the lease.
        gathering: for small blobs.
        parallel: blobs in flight at once.
    """

    content: LocalContentStore
    client: Origin
    reference: Reference
    observer: Observer
    keep_alive: Callable[[], None]
    gathering: Gathering
    parallel: int = PARALLEL_BLOBS

    def check(self, descriptors: Iterable[Descriptor]) -> None:
        """Refuse what can't succeed, before the first byte.

        Raises:
            InvalidDigestError: content under an algorithm that can't be verified.
            StoreFullError: there is less space than the missing blobs need.
        """
        wanted = {descriptor.digest: descriptor for descriptor in descriptors}
        for digest in wanted:
            if not digest.is_verifiable:
                raise InvalidDigestError(f"{self.reference}: {digest}: this algorithm can't be verified")
        self._check_space(wanted.values())

    def fetch_all(self, descriptors: Iterable[Descriptor], *, cancel: CancelToken) -> int:
        """Fetch what is missing, several at once; the first failure stops the others.

        Returns:
            Bytes that came over the network.

        Raises:
            RegistryError, IntegrityError, StoreError, OperationCancelledError: as each blob.
        """
        wanted = {descriptor.digest: descriptor for descriptor in descriptors}
        # Largest first: the longest download decides when the pull ends.
        ordered = sorted(wanted.values(), key=lambda descriptor: -descriptor.size)
        with cancel.child() as part, ThreadPoolExecutor(self.parallel, "imagestore-fetch") as pool:
            jobs = [pool.submit(self.fetch, descriptor, cancel=part) for descriptor in ordered]
            try:
                done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
                failed = next((job for job in done if job.exception() is not None), None)
                if failed is not None:
                    failed.result()
            except BaseException:
                part.cancel("another part of the pull failed")
                pool.shutdown(cancel_futures=True)
                raise
            return sum(job.result() for job in jobs)

    def fetch(self, descriptor: Descriptor, *, cancel: CancelToken) -> int:
        """Fetch one blob unless it is here.

        Returns:
            Bytes that came over the network.
        """
        if self._is_present(descriptor) or self._is_adopted(descriptor, cancel):
            self.observer(BlobDone(descriptor, 0))
            return 0
        try:
            writer = self._writer(descriptor, descriptor.size, cancel)
        except AlreadyExistsError:
            self.observer(BlobDone(descriptor, 0))
            return 0
        with writer:
            received = self._fill(writer, descriptor, cancel)
        self.observer(BlobDone(descriptor, received))
        return received

    def keep(self, descriptor: Descriptor, raw: bytes, *, cancel: CancelToken) -> None:
        """Store a document whose bytes are at hand."""
        try:
            with self._writer(descriptor, len(raw), cancel) as writer:
                writer.truncate()
                writer.write(raw)
                writer.commit(descriptor.digest, len(raw), has_durable_name=False)
        except AlreadyExistsError:
            self.observer(BlobDone(descriptor, 0))
            return
        self.observer(BlobDone(descriptor, len(raw)))

    def _writer(self, descriptor: Descriptor, size: int, cancel: CancelToken) -> IngestWriter:
        return self.content.gathering_writer(
            self.gathering,
            ingest_ref(descriptor),
            expected=descriptor.digest,
            total=size,
            cancel=cancel,
            on_wait=lambda: self.observer(BlobAwaited(descriptor)),
        )

    def _fill(self, writer: IngestWriter, descriptor: Descriptor, cancel: CancelToken) -> int:
        received = 0
        avoid: Collection[str] = ()
        try:
            for is_last in (False, True):
                more, avoid = self._receive(writer, descriptor, avoid, cancel)
                received += more
                self.observer(BlobVerifying(descriptor))
                try:
                    writer.commit(descriptor.digest, descriptor.size, has_durable_name=False)
                    return received
                except IntegrityError as error:
                    if is_last:
                        raise
                    # Once more from the start, and from another host if there is one: nothing of this can be trusted.
                    log.warning("%s: fetching it again", error, extra={"digest": descriptor.digest})
                    self.observer(
                        Noticed(f"{descriptor.kind.value} {descriptor.digest.short} came damaged; fetching again")
                    )
                    writer.truncate()
        except AlreadyExistsError:
            return received
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
            # Damage must not be resumed, and a full disk needs the space.
            writer.abort()
            raise
        raise AssertionError("unreachable")

    def _receive(
        self, writer: IngestWriter, descriptor: Descriptor, avoid: Collection[str], cancel: CancelToken
    ) -> tuple[int, Collection[str]]:
        """Append the rest of a blob to its ingest; the bytes that came, and the hosts they came from."""
        if writer.offset == descriptor.size > 0:
            return 0, avoid
        event_due = 0.0

        def advanced(offset: int) -> None:
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
            writer.fill(stream.readinto, advanced=advanced)
            return writer.offset - start, stream.hosts

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
        """Whether the blob is here and whole; a damaged file is removed, a wrong descriptor refused."""
        try:
            info = self.content.info(descriptor.digest)
        except ContentNotFoundError:
            return False
        if info.size == descriptor.size:
            return True
        verifier = Verifier(descriptor.digest)
        try:
            with self.content.open(descriptor.digest) as blob:
                while chunk := blob.read(_REHASH_BYTES):
                    verifier.update(chunk)
            verifier.finish()
        except IntegrityError:
            log.warning("content in the store is damaged, fetching it again", extra={"digest": descriptor.digest})
            self.content.delete(descriptor.digest)
            return False
        raise SizeMismatchError(
            f"{self.reference}: {descriptor.digest}", expected=descriptor.size, actual=verifier.received
        )

    def _is_adopted(self, descriptor: Descriptor, cancel: CancelToken) -> bool:
        how = self.content.adopt(descriptor.digest, descriptor.size, cancel=cancel)
        if how is not None:
            log.debug("adopted", extra={"digest": descriptor.digest, "how": how.value})
        return how is not None

    def _check_space(self, descriptors: Iterable[Descriptor]) -> None:
        offsets = {status.ref: status.offset for status in self.content.statuses()}
        needed = sum(
            descriptor.size - min(offsets.get(ingest_ref(descriptor), 0), descriptor.size)
            for descriptor in descriptors
            if not self.content.exists(descriptor.digest)
            # What may be adopted may take no space; if it does, the disk says so.
            and not self.content.is_at_source(descriptor.digest, descriptor.size)
        )
        free = self.content.free_bytes()
        if needed > free:
            raise StoreFullError(
                f"{self.reference}: needs {needed} bytes more, but {self.content.root} has {free} free",
                hint="free space there, run 'imagestore gc', or choose another --root",
            )


def ingest_ref(descriptor: Descriptor) -> str:
    """The ingest's name for fetched content, in containerd's form: kind, hyphen, digest."""
    return f"{_INGEST_PREFIX.get(descriptor.kind, 'unknown')}-{descriptor.digest}"
