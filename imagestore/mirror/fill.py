"""A cache fill: one transfer of a blob, which every client that asks for the blob reads while it is written.

A thread fetches and writes; tasks of the event loop read what is written so far. The last bytes are held back until the
blob is verified, so no client gets a complete body that is wrong: it is disconnected instead, and asks again.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from imagestore.errors import ImageStoreError
    from imagestore.oci import Descriptor

P = ParamSpec("P")

#: The last bytes of every answer.
HELD_BACK_BYTES: Final = 64 * 1024


class RestartedError(Exception):
    """The bytes read so far are damaged, and the blob is fetched again from its beginning."""

    def __str__(self) -> str:
        return "what was sent of it is damaged"


class Fill:
    """The state of one fetch, as readers see it. Methods are the event loop's, but for ``tell``.

    Args:
        descriptor: of the blob.
        loop: the readers'.
        queue: names the queue in which it waits.
        repository: names the repository for which it is fetched.
    """

    def __init__(
        self, descriptor: Descriptor, loop: asyncio.AbstractEventLoop, queue: str = "", repository: str = ""
    ) -> None:
        self.descriptor = descriptor
        self.queue = queue
        self.repository = repository
        #: The blob is whole, verified and in the store.
        self.is_verified = False
        #: It has left the queue.
        self.is_started = False
        #: The blob was in the store already.
        self.was_here = False
        #: Why the fetch failed.
        self.error: ImageStoreError | None = None
        self._loop = loop
        self._file: BinaryIO | None = None
        self._has_begun = False
        self._written = 0
        self._restarts = 0
        self._changed = asyncio.Event()
        self._readers = 0

    @property
    def is_over(self) -> bool:
        """Whether the fetch ended."""
        return self.is_verified or self.error is not None

    def tell(self, change: Callable[P, None], *values: P.args, **named: P.kwargs) -> None:
        """Call one of the methods below from the fetching thread, and wake the readers."""
        self._loop.call_soon_threadsafe(self._told, functools.partial(change, *values, **named))

    def _told(self, change: Callable[[], None]) -> None:
        change()
        self._changed.set()
        self._changed = asyncio.Event()
        if self.is_over:
            self._let_go()

    def start(self) -> None:
        """Note that the fetch has left the queue."""
        self.is_started = True

    def begin(self, file: BinaryIO | None, written: int) -> None:
        """Note that the source sends, and how much is written already. Without a file, readers open their own."""
        if self._file is None:
            self._file = file
        elif file is not None:
            file.close()
        self._has_begun = True
        self._written = written

    def advance(self, written: int) -> None:
        """Note how much is written."""
        self._written = written

    def restart(self) -> None:
        """Note that what was written is discarded."""
        self._written = 0
        self._restarts += 1

    def find_here(self) -> None:
        """Note that the blob was in the store already, from another fetch or another process."""
        self.was_here = self.is_verified = True

    def finish(self, error: ImageStoreError | None) -> None:
        """Note the end: success, or an error. Only the first end counts."""
        if not self.is_over:
            self.is_verified, self.error = error is None, error

    async def started(self) -> None:
        """Wait until the fetch has left the queue."""
        while not self.is_started and not self.is_over:
            await self._changed.wait()

    async def begun(self) -> None:
        """Wait until the source sends.

        Raises:
            ImageStoreError: the fetch failed.
        """
        while not self._has_begun and not self.is_over:
            await self._changed.wait()
        if self.error is not None:
            raise self.error

    async def ended(self) -> None:
        """Wait until the fetch is over."""
        while not self.is_over:
            await self._changed.wait()

    def reader(self) -> FillReader:
        """A reader for one client, once the fetch has begun; close it."""
        self._readers += 1
        return FillReader(self)

    def release(self) -> None:
        """Note that a reader is closed."""
        self._readers -= 1
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None and self.is_over and not self._readers:
            self._file.close()
            self._file = None


class FillReader:
    """A blobs.BlobSource over a fill. ``own`` is the growing file, opened for this client; None for the fill's file."""

    def __init__(self, fill: Fill, own: BinaryIO | None = None) -> None:
        self._fill = fill
        self._own = own
        self._restarts = fill._restarts
        self._has_read = False

    @property
    def descriptor(self) -> Descriptor:
        """Of the blob."""
        return self._fill.descriptor

    @property
    def file(self) -> BinaryIO:
        """The growing file."""
        found = self._own or self._fill._file
        assert found is not None
        return found

    async def begun(self) -> None:
        """Wait until the source sends, or raise why the fetch failed."""
        await self._fill.begun()

    async def available(self, start: int, end: int) -> int:
        """See BlobSource; the last bytes of every answer are held back until the blob is verified."""
        fill = self._fill
        while True:
            if fill.error is not None:
                raise fill.error
            if fill._restarts != self._restarts:
                if self._has_read:
                    raise RestartedError
                self._restarts = fill._restarts
            if fill.is_verified:
                return end
            limit = min(fill._written, end - HELD_BACK_BYTES)
            if limit > start:
                self._has_read = True
                return limit
            await fill._changed.wait()

    def close(self) -> None:
        """Let the file be closed, if no other reader uses it."""
        if self._own is not None:
            self._own.close()
        else:
            self._fill.release()
