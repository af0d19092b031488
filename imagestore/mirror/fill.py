"""One blob on its way into the store: it comes once, and everybody who asks for it meanwhile reads along.

A thread fetches and writes; the event loop's tasks read what is written so far. The last bytes are held back until the
whole is verified, so that no client ever gets a complete body that is wrong: it is cut off instead, and asks again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, ImageStoreError, IntegrityError, SizeMismatchError, StoreError
from imagestore.store.pull.fetch_order import ingest_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import BinaryIO

    from imagestore.content.api import ContentStore, IngestWriter
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.registry import RegistryClient
    from imagestore.util.cancel import CancelToken

#: No body is complete without them.
HELD_BACK_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 256 * 1024


class RestartedError(Exception):
    """What was read came damaged, and is fetched again from its beginning."""


class Fill:
    """The state of one fetch, as readers see it. Methods are the event loop's, but for ``tell``.

    Args:
        descriptor: of the blob.
        loop: the readers'.
    """

    def __init__(self, descriptor: Descriptor, loop: asyncio.AbstractEventLoop) -> None:
        self.descriptor = descriptor
        #: Whether it is whole, verified and in the store.
        self.is_verified = False
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
        """It is in the store, or doesn't come."""
        self.is_verified, self.error = error is None, error

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
    def file(self) -> BinaryIO:
        """What is written so far; shared by all readers, so its position means nothing."""
        assert self._fill._file is not None
        return self._fill._file

    async def available(self, start: int) -> int:
        """Wait until bytes behind an offset may be given out; up to before which one.

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
            limit = fill._written if fill.is_verified else min(fill._written, fill.descriptor.size - HELD_BACK_BYTES)
            if limit > start:
                self._has_read = True
                return limit
            await fill._changed.wait()

    def close(self) -> None:
        """The client is served, or gone."""
        self._fill.release()


def fetch(
    fill: Fill,
    *,
    content: ContentStore,
    client: RegistryClient,
    reference: Reference,
    received: Callable[[int], None],
    cancel: CancelToken,
) -> None:
    """Fetch a blob into the store, in a thread; a lease must hold it already. What came before is resumed.

    Args:
        fill: hears of progress, and of the end.
        content: where it goes.
        client: whom to ask.
        reference: names the repository.
        received: called for the bytes of each piece; may wait.
        cancel: ends it.
    """
    descriptor = fill.descriptor
    try:
        ref = ingest_ref(descriptor)
        with content.writer(ref, expected=descriptor.digest, total=descriptor.size, cancel=cancel) as writer:
            transfer = _Transfer(fill, writer, client, reference, received, cancel)
            try:
                transfer.run()
            except IntegrityError:
                writer.abort()
                raise
    except AlreadyExistsError:
        fill.tell(fill.find_here)
    except ImageStoreError as error:
        failure = error
        fill.tell(lambda: fill.finish(failure))
    except BaseException as error:
        unforeseen = StoreError(f"fetching {descriptor.digest} failed: {error!r}")
        fill.tell(lambda: fill.finish(unforeseen))
        raise
    else:
        fill.tell(lambda: fill.finish(None))


class _Transfer:
    def __init__(
        self,
        fill: Fill,
        writer: IngestWriter,
        client: RegistryClient,
        reference: Reference,
        received: Callable[[int], None],
        cancel: CancelToken,
    ) -> None:
        self._fill = fill
        self._writer = writer
        self._client = client
        self._reference = reference
        self._received = received
        self._cancel = cancel

    def run(self) -> None:
        """Receive and commit; what came damaged is received once more, from another host if there is one."""
        descriptor = self._fill.descriptor
        hosts: Collection[str] = ()
        for is_last in (False, True):
            try:
                hosts = self._receive(hosts)
                self._writer.commit(descriptor.digest, descriptor.size)
                return
            except IntegrityError:
                if is_last:
                    raise
                self._restart()

    def _restart(self) -> None:
        self._writer.truncate()
        self._fill.tell(self._fill.restart)

    def _receive(self, avoid: Collection[str]) -> Collection[str]:
        fill, writer, size = self._fill, self._writer, self._fill.descriptor.size
        if writer.offset == size > 0:
            return avoid
        stream = self._client.blob(
            self._reference, fill.descriptor, offset=writer.offset, avoid=avoid, cancel=self._cancel
        )
        with stream:
            if stream.start != writer.offset:
                self._restart()
            file, start = writer.open_written(), writer.offset
            fill.tell(lambda: fill.begin(file, start))
            buffer = memoryview(bytearray(_PIECE_BYTES))
            while count := stream.readinto(buffer):
                if writer.offset + count > size:
                    raise SizeMismatchError(str(fill.descriptor.digest), expected=size, actual=writer.offset + count)
                writer.write(buffer[:count])
                self._tell_written(writer.offset)
                self._received(count)
            return stream.hosts

    def _tell_written(self, written: int) -> None:
        fill = self._fill
        fill.tell(lambda: fill.advance(written))
