"""A publisher for asynchronous programs, on asyncio or trio: :class:`imagestore.publish.Publisher` in worker threads.

When a task is cancelled, it stops waiting; what has begun goes on until the publisher is closed.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from imagestore.util.async_threads import in_thread, run_cancellable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from imagestore.events import Observer
    from imagestore.publish.model import PublisherStatus, ReconcileReport
    from imagestore.publish.publisher import Publisher
    from imagestore.store import ImageStore


@asynccontextmanager
async def open_publisher(store: ImageStore, address: str, **given: Any) -> AsyncIterator[AsyncPublisher]:
    """A publisher for a block; it is closed at its end.

    Args:
        store: an embedded one; of an AsyncImageStore its ``store``.
        address: of containerd's socket.
        given: further arguments of Publisher.

    Raises:
        InvalidInputError, PreconditionError: as Publisher.
    """
    from imagestore.publish.publisher import Publisher

    publisher = Publisher(store, address, **given)  # asks nobody yet
    try:
        yield AsyncPublisher(publisher)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(publisher.close)


class AsyncPublisher:
    """A publisher. Several tasks may use it at the same time.

    Args:
        publisher: does the work; the caller closes it.
    """

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher

    async def reconcile(self, *, observer: Observer | None = None) -> ReconcileReport:
        """Publish what is wanted; see Publisher.reconcile(). The observer is called from a worker thread."""
        given = {} if observer is None else {"observer": observer}
        return await run_cancellable(lambda token: self.publisher.reconcile(cancel=token, **given))

    async def publish(self, name: str, *, runtime_handler: str | None = None) -> str:
        """Publish one image; see Publisher.publish()."""
        work = partial(self.publisher.publish, name, runtime_handler=runtime_handler)
        return await run_cancellable(lambda token: work(cancel=token))

    async def status(self, name: str | None = None, *, runtime_handler: str | None = None) -> PublisherStatus:
        """How publishing stands; see Publisher.status()."""
        work = partial(self.publisher.status, name, runtime_handler=runtime_handler)
        return await in_thread(work)

    async def unpublish_all(self) -> tuple[str, ...]:
        """Take everything away from containerd; see Publisher.unpublish_all(). A cancelled task waits for its end."""
        return await in_thread(self.publisher.unpublish_all)
