"""The store for asynchronous programs, on asyncio or trio (through anyio)::

    import imagestore

    async with imagestore.aio.open("/var/lib/imagestore") as store:
        image = await store.pull("python:3", runtime_handler="kata")

        async with store.pulling("python:4") as pull:
            async for event in pull:
                ...
            image = await pull.result()

The methods are those of :class:`imagestore.ImageStore`, which runs in worker threads. When a task is cancelled, its
transfer is cancelled too, and the task waits until the transfer has released what it holds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from imagestore.registry.events import BlobAdvanced, LayerUnpacking
from imagestore.util.cancellable import run_cancellable

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterable
    from typing import Self

    from imagestore.config import Config
    from imagestore.oci.selection import Selection
    from imagestore.platforms import Platform
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.events import Event, Observer
    from imagestore.store.archive.exporting import ExportOptions, ExportReport
    from imagestore.store.archive.importing import ImportOptions, ImportReport
    from imagestore.store.copy.options import CopyOptions, CopyReport
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.image import Image
    from imagestore.store.image_store import ImageStore
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.store.unpack.unpack import UnpackReport
    from imagestore.util.cancel import CancelToken

T = TypeVar("T")

#: Transfers that run at the same time in one store; further ones wait.
_TRANSFERS: Final = 16


@asynccontextmanager
async def open(  # noqa: A001 - reads as aio.open(...)
    root: str | os.PathLike[str], *, config: Config | None = None, **given: Any
) -> AsyncIterator[AsyncImageStore]:
    """Open the store in a folder for a block.

    Args:
        root: the folder, made when missing.
        config: runtime handlers and their platforms; without one there is a single, default handler.
        given: further arguments of :class:`imagestore.ImageStore`.

    Raises:
        InvalidInputError, StoreError: as ImageStore.
    """
    from imagestore.store.image_store import ImageStore

    store = await anyio.to_thread.run_sync(partial(ImageStore, root, config=config, **given))
    try:
        yield AsyncImageStore(store)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(store.close)


class AsyncImageStore:
    """An open store. Several tasks may use it at the same time.

    Args:
        store: does the work; the caller closes it.
    """

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self._transfers = anyio.CapacityLimiter(_TRANSFERS)

    async def pull(
        self,
        reference: str,
        *,
        runtime_handler: str = "",
        platform: str | Platform | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
    ) -> Image:
        """Fetch an image for a runtime handler; see ImageStore.pull(). The observer is called from worker threads."""
        work = partial(
            self.store.pull,
            reference,
            runtime_handler=runtime_handler,
            platform=platform,
            credentials=credentials,
            observer=observer,
        )
        return await self._transfer(lambda token: work(cancel=token))

    @asynccontextmanager
    async def pulling(
        self,
        reference: str,
        *,
        runtime_handler: str = "",
        platform: str | Platform | None = None,
        credentials: CredentialLookup | None = None,
    ) -> AsyncIterator[Pulling]:
        """A pull whose events are iterated while it runs. Leaving the block before the pull has ended cancels it.

        Raises:
            ImageStoreError: the pull failed, and result() was not called.
        """
        pull = Pulling()
        failure: Exception | None = None

        async def _run_pull() -> None:
            try:
                pull.image = await self.pull(
                    reference,
                    runtime_handler=runtime_handler,
                    platform=platform,
                    credentials=credentials,
                    observer=pull.put,
                )
            except Exception as error:  # noqa: BLE001 - raised again by result(), or at the block's end
                pull.error = error
            finally:
                pull.end()

        async with anyio.create_task_group() as group:
            group.start_soon(_run_pull)
            try:
                yield pull
            except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
                failure = error
            group.cancel_scope.cancel()
        if failure is None and not pull.is_told:
            failure = pull.error
        if failure is not None:
            raise failure

    async def get(self, name: str, *, runtime_handler: str | None = None) -> Image:
        """One image; see ImageStore.get()."""
        return await self._look(partial(self.store.get, name, runtime_handler=runtime_handler))

    async def list(self, *, name: str | None = None, runtime_handler: str | None = None) -> list[Image]:
        """Images ordered by reference and handler; see ImageStore.list()."""
        return await self._look(lambda: list(self.store.list(name=name, runtime_handler=runtime_handler)))

    async def remove(
        self, name: str, *, runtime_handler: str | None = None, all_handlers: bool = False, only_name: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Remove records; see ImageStore.remove()."""
        remove = partial(self.store.remove, name, runtime_handler=runtime_handler)
        return await self._look(partial(remove, all_handlers=all_handlers, only_name=only_name))

    async def match(
        self, reference: str, *, runtime_handlers: Iterable[str] | None = None, offline: bool = False
    ) -> dict[str, Selection]:
        """Which manifest each handler would get, and why; see ImageStore.match()."""
        work = partial(self.store.match, reference, runtime_handlers=runtime_handlers, offline=offline)
        return await self._transfer(lambda token: work(cancel=token))

    async def export_images(
        self,
        names: Iterable[str],
        archive: str | os.PathLike[str],
        *,
        options: ExportOptions | None = None,
        observer: Observer | None = None,
    ) -> ExportReport:
        """Write images into an archive; see ImageStore.export_images()."""
        work = partial(self.store.export_images, names, archive, options=options, observer=observer)
        return await self._transfer(lambda token: work(cancel=token))

    async def import_images(
        self,
        archive: str | os.PathLike[str],
        *,
        options: ImportOptions | None = None,
        observer: Observer | None = None,
    ) -> ImportReport:
        """Bring images in from an archive; see ImageStore.import_images()."""
        work = partial(self.store.import_images, archive, options=options, observer=observer)
        return await self._transfer(lambda token: work(cancel=token))

    async def copy(
        self,
        source: str,
        destination: str,
        *,
        options: CopyOptions | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
    ) -> CopyReport:
        """Copy an image between registries, the store, layouts and archives; see ImageStore.copy()."""
        work = partial(
            self.store.copy, source, destination, options=options, credentials=credentials, observer=observer
        )
        return await self._transfer(lambda token: work(cancel=token))

    async def push(
        self,
        name: str,
        destination: str = "",
        *,
        options: CopyOptions | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
    ) -> CopyReport:
        """Copy an image of the store into a registry; see ImageStore.push()."""
        work = partial(self.store.push, name, destination, options=options, credentials=credentials, observer=observer)
        return await self._transfer(lambda token: work(cancel=token))

    async def unpack(
        self,
        name: str,
        folder: str | os.PathLike[str],
        *,
        runtime_handler: str | None = None,
        bundle: BundleOptions | None = None,
        is_rootless: bool = False,
        observer: Observer | None = None,
    ) -> UnpackReport:
        """Unpack an image; see ImageStore.unpack()."""
        work = partial(self.store.unpack, name, folder, runtime_handler=runtime_handler, bundle=bundle)
        return await self._transfer(lambda token: work(is_rootless=is_rootless, observer=observer, cancel=token))

    async def collect_garbage(self, *, dry_run: bool = False) -> GarbageReport:
        """Free what nothing keeps; see ImageStore.collect_garbage(). A cancelled task waits for its end."""
        return await self._look(partial(self.store.collect_garbage, dry_run=dry_run))

    async def _look(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

    async def _transfer(self, work: Callable[[CancelToken], T]) -> T:
        return await run_cancellable(work, self._transfers)


class Pulling:
    """A pull in progress: an asynchronous iterator of its events, and its result.

    A progress event of a blob that was not read yet is replaced by the next one of that blob; all other events are
    kept. So a slow reader neither delays the pull nor misses an event that matters.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: OrderedDict[object, Event] = OrderedDict()
        self._count = 0
        self._loop = anyio.lowlevel.current_token()
        self._has_come = anyio.Event()
        self._is_over = anyio.Event()
        #: The outcome, for result().
        self.image: Image | None = None
        self.error: Exception | None = None
        self.is_told = False

    def put(self, event: Event) -> None:
        """An observer: keep an event, and wake the task that waits for one. Called from worker threads."""
        with self._lock:
            self._count += 1
            key: object = self._count
            if isinstance(event, BlobAdvanced):
                key = (BlobAdvanced, event.digest)
            elif isinstance(event, LayerUnpacking):
                key = (LayerUnpacking, event.descriptor.digest)
            is_first = not self._pending
            self._pending[key] = event
        if is_first:
            anyio.from_thread.run_sync(self._wake, token=self._loop)

    def _wake(self) -> None:
        self._has_come.set()

    def end(self) -> None:
        """No further event follows. Called on the event loop."""
        self._is_over.set()
        self._has_come.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            with self._lock:
                if self._pending:
                    return self._pending.popitem(last=False)[1]
                if self._is_over.is_set():
                    raise StopAsyncIteration
                self._has_come = anyio.Event()
            await self._has_come.wait()

    async def result(self) -> Image:
        """The image, once the pull has ended.

        Raises:
            ImageStoreError: it failed.
        """
        await self._is_over.wait()
        self.is_told = True
        if self.error is not None:
            raise self.error
        assert self.image is not None
        return self.image
