"""One transfer of a blob into the store: from the first source that has it; the next one resumes where it broke off."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import (
    AlreadyExistsError,
    IntegrityError,
    OperationCancelledError,
    ReferenceNotFoundError,
    RegistryError,
    SizeMismatchError,
    StoreFullError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import BinaryIO

    from imagestore.content import ContentStore, IngestWriter
    from imagestore.mirror.fill import Fill
    from imagestore.oci import Descriptor, Reference
    from imagestore.registry import Transfer
    from imagestore.util.cancel import CancelToken

_PIECE_BYTES: Final = 256 * 1024


class BlobClient(Protocol):
    """Opens blobs: a registry's client, or ``bucket.MirrorBucket``."""

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int = 0,
        avoid: Collection[str] = (),
        cancel: CancelToken,
    ) -> Transfer:
        """Open a blob at an offset, or at its beginning."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a blob.

    Attributes:
        client: opens it.
        received: called with the size of each piece; may wait.
        opening_seconds: until the first byte; None for the client's own limits.
        failed: called when it failed, but not when it doesn't have the blob.
        before: called before it is asked; may wait.
    """

    client: BlobClient
    received: Callable[[int], None]
    opening_seconds: float | None = None
    failed: Callable[[], None] = lambda: None
    before: Callable[[], None] = lambda: None


def fetch(
    fill: Fill,
    *,
    ref: str,
    content: ContentStore,
    sources: Sequence[Source],
    reference: Reference,
    cancel: CancelToken,
    keep: Callable[[BinaryIO], None],
) -> bool:
    """Fetch a blob into the store, in a thread; a lease must hold it already. An interrupted ingest is resumed.

    Args:
        fill: gets the progress.
        ref: name of the ingest, its own for each upstream: unverified bytes of one must not be mixed with another's.
        content: where the blob is written.
        sources: asked in this order; if one breaks off, the next continues where it stopped.
        reference: names the repository.
        cancel: ends it.
        keep: called with the written file, open for reading, once the blob is in the store.

    Returns:
        Whether it was fetched; False if it was in the store already.

    Raises:
        ImageStoreError: the fetch failed.
    """
    descriptor = fill.descriptor
    try:
        with content.writer(ref, expected=descriptor.digest, total=descriptor.size, cancel=cancel) as writer:
            try:
                _Transfer(fill, writer, reference, cancel, keep).run(sources)
            except (IntegrityError, StoreFullError):
                # Wrong, or in the way of what others fetch.
                writer.abort()
                raise
    except AlreadyExistsError:
        return False
    return True


class _Transfer:
    def __init__(
        self,
        fill: Fill,
        writer: IngestWriter,
        reference: Reference,
        cancel: CancelToken,
        keep: Callable[[BinaryIO], None],
    ) -> None:
        self._fill = fill
        self._writer = writer
        self._reference = reference
        self._cancel = cancel
        self._keep = keep

    def run(self, sources: Sequence[Source]) -> None:
        """Receive and commit, from the first source that doesn't fail."""
        for number, source in enumerate(sources, 1):
            try:
                self._run(source, is_last=number == len(sources))
                return
            except (RegistryError, IntegrityError, OperationCancelledError) as error:
                self._cancel.check()
                if number == len(sources):
                    raise
                if not isinstance(error, ReferenceNotFoundError):
                    source.failed()
                if isinstance(error, IntegrityError):
                    self._restart()

    def _run(self, source: Source, *, is_last: bool) -> None:
        """Receive from a source; damaged bytes of the last one are received again, if possible from another host."""
        descriptor = self._fill.descriptor
        hosts: Collection[str] = ()
        source.before()
        for is_again in (False, True):
            try:
                hosts = self._receive(source, hosts)
                with self._writer.open_written() as file:
                    self._writer.commit(descriptor.digest, descriptor.size)
                    self._keep(file)
                return
            except IntegrityError:
                if is_again or not is_last:
                    raise
                self._restart()

    def _restart(self) -> None:
        self._writer.truncate()
        self._fill.tell(self._fill.restart)

    def _receive(self, source: Source, avoid: Collection[str]) -> Collection[str]:
        fill, writer, size = self._fill, self._writer, self._fill.descriptor.size
        if writer.offset == size > 0:
            return avoid
        with self._cancel.child() as part, _cancelled_after(source.opening_seconds, part) as opened:
            blob, offset = fill.descriptor, writer.offset
            stream = source.client.blob(self._reference, blob, offset=offset, avoid=avoid, cancel=part)
            opened()
            with stream:
                if stream.start != offset:
                    self._restart()
                fill.tell(fill.begin, writer.open_written(), writer.offset)
                buffer = memoryview(bytearray(_PIECE_BYTES))
                while count := stream.readinto(buffer):
                    if writer.offset + count > size:
                        raise SizeMismatchError(str(blob.digest), expected=size, actual=writer.offset + count)
                    writer.write(buffer[:count])
                    fill.tell(fill.advance, writer.offset)
                    source.received(count)
                return stream.hosts


@contextlib.contextmanager
def _cancelled_after(seconds: float | None, token: CancelToken) -> Iterator[Callable[[], None]]:
    """Cancel a token unless the yielded function is called in time."""
    if seconds is None:
        yield lambda: None
        return
    timer = threading.Timer(seconds, token.cancel, ["there was no answer in time"])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()
