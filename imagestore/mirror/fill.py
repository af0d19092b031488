"""One blob on its way into the store: it comes once, and every client that asks for it until then reads along.

A thread fetches and writes; the event loop's tasks read what is written so far. The last bytes are held back until the
whole is verified, so that no client ever gets a complete body that is wrong: it is cut off instead, and asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import (
    AlreadyExistsError,
    ImageStoreError,
    IntegrityError,
    OperationCancelledError,
    ReferenceNotFoundError,
    RegistryError,
    SizeMismatchError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import BinaryIO

    from imagestore.content.api import ContentStore, IngestWriter
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.registry.blobs import Transfer
    from imagestore.util.cancel import CancelToken

#: No answer is complete without them.
HELD_BACK_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 256 * 1024


class RestartedError(Exception):
    """What was read came damaged, and is fetched again from its beginning."""


class Fill:
    """The state of one fetch, as readers see it. Methods are the event loop's, but for ``tell``.

    Args:
        descriptor: of the blob.
        loop: the readers'.
        line: names the line in which it waits.
    """

    def __init__(self, descriptor: Descriptor, loop: asyncio.AbstractEventLoop, line: str = "") -> None:
        self.descriptor = descriptor
        self.line = line
        #: Whether it is whole, verified and in the store.
        self.is_verified = False
        #: Whether it has left the queue of its upstream.
        self.is_started = False
        #: Whether nothing had to be fetched.
        self.was_here = False
        #: Why it doesn't come.
        self.error: ImageStoreError | None = None
        self._loop = loop
        self._file: BinaryIO | None = None
        self._written = 0
        #: How often it began anew.
        self._restarts = 0
        self._changed = asyncio.Event()
        self._readers = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.is_verified or self.error is not None

    def tell(self, change: Callable[[], None]) -> None:
        """Change the state, from the fetching thread; readers hear of it."""

        def told() -> None:
            change()
            self._changed.set()
            self._changed = asyncio.Event()
            if self.is_over:
                self._let_go()

        self._loop.call_soon_threadsafe(told)

    def start(self) -> None:
        """It is its turn."""
        self.is_started = True

    def begin(self, file: BinaryIO, written: int) -> None:
        """The upstream sends; so much is here already."""
        if self._file is None:
            self._file = file
        else:
            file.close()
        self._written = written

    def advance(self, written: int) -> None:
        """So much is written."""
        self._written = written

    def restart(self) -> None:
        """What was written is thrown away."""
        self._written = 0
        self._restarts += 1

    def find_here(self) -> None:
        """It was in the store already; another fetch, or another process, has brought it."""
        self.was_here = self.is_verified = True

    def finish(self, error: ImageStoreError | None) -> None:
        """It is in the store, or doesn't come; what came first counts."""
        if not self.is_over:
            self.is_verified, self.error = error is None, error

    async def started(self) -> None:
        """Wait for its turn."""
        while not self.is_started and not self.is_over:
            await self._changed.wait()

    async def begun(self) -> None:
        """Wait until bytes come.

        Raises:
            ImageStoreError: they don't.
        """
        while self._file is None and not self.is_over:
            await self._changed.wait()
        if self.error is not None:
            raise self.error

    async def ended(self) -> None:
        """Wait until nothing more comes."""
        while not self.is_over:
            await self._changed.wait()

    def reader(self) -> FillReader:
        """For one client; close it. Only once it has begun."""
        self._readers += 1
        return FillReader(self)

    def release(self) -> None:
        """A reader is closed."""
        self._readers -= 1
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None and self.is_over and not self._readers:
            self._file.close()
            self._file = None


class FillReader:
    """One client's view of a fill."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._restarts = fill._restarts
        self._has_read = False

    @property
    def descriptor(self) -> Descriptor:
        """Of the blob."""
        return self._fill.descriptor

    @property
    def file(self) -> BinaryIO:
        """What is written so far; shared by all readers, so its position means nothing."""
        assert self._fill._file is not None
        return self._fill._file

    async def available(self, start: int, end: int) -> int:
        """Wait until bytes behind an offset may be given out; up to before which one.

        The last bytes of every answer are held back until the whole blob is verified.

        Raises:
            ImageStoreError: they don't come.
            RestartedError: what was read before is no good.
        """
        fill = self._fill
        while True:
            if fill.error is not None:
                raise fill.error
            if fill._restarts != self._restarts:
                if self._has_read:
                    raise RestartedError
                self._restarts = fill._restarts
            limit = end if fill.is_verified else min(fill._written, end - HELD_BACK_BYTES)
            if limit > start:
                self._has_read = True
                return limit
            await fill._changed.wait()

    def close(self) -> None:
        """The client is served, or gone."""
        self._fill.release()


class Opener(Protocol):
    """Opens blobs, as a registry's client does."""

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int = 0,
        avoid: Collection[str] = (),
        cancel: CancelToken,
    ) -> Transfer:
        """A blob's bytes from an offset on, or from its beginning."""


@dataclass(frozen=True, slots=True)
class Source:
    """Whom to ask for a blob.

    Attributes:
        client: asks.
        received: hears of the bytes of each piece, and may wait.
        opening_seconds: until the first byte; None for the client's own limits.
        failed: hears that it didn't help.
        before: called before it is asked; may wait.
    """

    client: Opener
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
) -> bool:
    """Fetch a blob into the store, in a thread; a lease must hold it already. What came before is resumed.

    Args:
        fill: hears of progress, and of the end.
        ref: name of its ingest, which no other upstream's fetch has: what one has sent is of no use to another before
            it is verified.
        content: where it goes.
        sources: asked in this order; one that breaks off is followed by the next, where it stopped.
        reference: names the repository.
        cancel: ends it.

    Returns:
        Whether it was fetched; False if it was here already.

    Raises:
        ImageStoreError: it doesn't come.
    """
    descriptor = fill.descriptor
    try:
        with content.writer(ref, expected=descriptor.digest, total=descriptor.size, cancel=cancel) as writer:
            try:
                _Transfer(fill, writer, reference, cancel).run(sources)
            except IntegrityError:
                writer.abort()
                raise
    except AlreadyExistsError:
        return False
    return True


class _Transfer:
    def __init__(self, fill: Fill, writer: IngestWriter, reference: Reference, cancel: CancelToken) -> None:
        self._fill = fill
        self._writer = writer
        self._reference = reference
        self._cancel = cancel

    def run(self, sources: Sequence[Source]) -> None:
        """Receive and commit, from one source or the next."""
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
        """What comes damaged from the last source is received once more, from another host if there is one."""
        descriptor = self._fill.descriptor
        hosts: Collection[str] = ()
        source.before()
        for is_again in (False, True):
            try:
                hosts = self._receive(source, hosts)
                self._writer.commit(descriptor.digest, descriptor.size)
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
                self._tell_begun()
                buffer = memoryview(bytearray(_PIECE_BYTES))
                while count := stream.readinto(buffer):
                    if writer.offset + count > size:
                        raise SizeMismatchError(str(blob.digest), expected=size, actual=writer.offset + count)
                    writer.write(buffer[:count])
                    self._tell_written(writer.offset)
                    source.received(count)
                return stream.hosts

    def _tell_begun(self) -> None:
        fill, file, start = self._fill, self._writer.open_written(), self._writer.offset
        fill.tell(lambda: fill.begin(file, start))

    def _tell_written(self, written: int) -> None:
        fill = self._fill
        fill.tell(lambda: fill.advance(written))


@contextlib.contextmanager
def _cancelled_after(seconds: float | None, token: CancelToken) -> Iterator[Callable[[], None]]:
    """Cancel a token unless what is given is called in time."""
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
