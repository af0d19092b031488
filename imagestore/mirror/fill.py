"""One blob on its way: it comes once, and every client that asks for it until then reads along.

A thread fetches and writes; the event loop's tasks read what is written so far. The last bytes are held back until the
whole is verified, so that no client ever gets a complete body that is wrong: it is cut off instead, and asks again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from imagestore.errors import ImageStoreError
    from imagestore.oci.descriptor import Descriptor

#: No answer is complete without them.
HELD_BACK_BYTES: Final = 64 * 1024


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
        self._has_begun = False
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

    def begin(self, file: BinaryIO | None, written: int) -> None:
        """The source sends; so much is here already. Without a file, readers have files of their own."""
        if self._file is None:
            self._file = file
        elif file is not None:
            file.close()
        self._has_begun = True
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
        while not self._has_begun and not self.is_over:
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
    """One client's view of a fill; close it.

    Args:
        fill: what is read along.
        own: what is written so far, opened for this client alone; None for the fill's own file.
    """

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
        """What is written so far; other readers may share it, so its position means nothing."""
        found = self._own or self._fill._file
        assert found is not None
        return found

    async def begun(self) -> None:
        """Wait until bytes come.

        Raises:
            ImageStoreError: they don't.
        """
        await self._fill.begun()

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
        if self._own is not None:
            self._own.close()
        else:
            self._fill.release()
