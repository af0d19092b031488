"""The store for asynchronous programs, on asyncio or trio (through anyio)::

    import imagestore

    async with imagestore.aio.open("/var/lib/imagestore") as store:
        image = await store.pull("python:3", runtime_handler="kata")

        async with store.pulling("python:4") as pull:
            async for event in pull:
                ...
            image = await pull.result()

The methods are those of :class:`imagestore.ImageStore`, which runs in worker threads. When a task is cancelled, in
whatever way, its transfer is cancelled too, and the task waits until the thread has released what it holds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import asynccontextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.lowlevel

from imagestore.events import BlobAdvanced, LayerUnpacking
from imagestore.store.image_store import ImageStore
from imagestore.util.async_threads import in_thread
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
    from typing import Self

    from imagestore.config import Config
    from imagestore.events import Event
    from imagestore.platforms import Platform
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.image import Image

P = ParamSpec("P")
T = TypeVar("T")

#: Transfers that run at the same time in one store, and other calls; further ones wait.
_TRANSFERS: Final = 16
_LOOKS: Final = 16


@asynccontextmanager
async def open(  # noqa: A001 - reads as aio.open(...)
    root: str | os.PathLike[str], *, config: Config | None = None, **given: Any
) -> AsyncIterator[AsyncImageStore]:
    """Open the store in a folder for a block. It is closed at the end, also if the task is cancelled while it opens.

    Args:
        root: the folder, made when missing.
        config: runtime handlers and their platforms; without one there is a single, default handler.
        given: further arguments of :class:`imagestore.ImageStore`.

    Raises:
        InvalidInputError, StoreError: as ImageStore.
    """
    stores: list[ImageStore] = []
    try:
        await in_thread(lambda: stores.append(ImageStore(root, config=config, **given)))
        yield AsyncImageStore(stores[0])
    finally:
        with anyio.CancelScope(shield=True):
            for store in stores:
                await in_thread(store.close)


def _look(
    method: Callable[Concatenate[ImageStore, P], T],
) -> Callable[Concatenate[AsyncImageStore, P], Coroutine[Any, Any, T]]:
    """A method in a thread, whose end a cancelled task waits for."""

    @wraps(method)
    async def _call(self: AsyncImageStore, /, *args: P.args, **given: P.kwargs) -> T:
        async with self.looks:
            return await in_thread(partial(method, self.store, *args, **given))

    return _call


def _transfer(
    method: Callable[Concatenate[ImageStore, P], T],
) -> Callable[Concatenate[AsyncImageStore, P], Coroutine[Any, Any, T]]:
    """A method with a token in a thread: a cancelled task cancels the token, then waits for the thread's end."""

    @wraps(method)
    async def _call(self: AsyncImageStore, /, *args: P.args, **given: P.kwargs) -> T:
        outer = cast("CancelToken | None", given.get("cancel"))
        async with self.transfers:
            with outer.child() if outer is not None else nullcontext(CancelToken()) as token:
                given["cancel"] = token
                work = partial(method, self.store, *args, **given)
                return await in_thread(work, stop=partial(token.cancel, "the task was cancelled"))

    return _call


def _all(method: Callable[Concatenate[ImageStore, P], Iterable[T]]) -> Callable[Concatenate[ImageStore, P], list[T]]:
    """A method whose iterator is read to its end, in the same thread."""

    @wraps(method)
    def _call(store: ImageStore, /, *args: P.args, **given: P.kwargs) -> list[T]:
        return [*method(store, *args, **given)]

    return _call


class AsyncImageStore:
    """An open store. Several tasks may use it at the same time.

    Parameters, results and errors are those of the methods of :class:`imagestore.ImageStore`; callbacks, as observers,
    are called from worker threads. A cancelled task ends ``pull``, ``pull_sandbox_image``, ``plan``, ``match``,
    ``import_images``, ``export_images``, ``push``, ``copy``, ``unpack``, ``tag``, ``check`` and ``repair``, as a
    ``cancel`` token does. It waits for the end of ``get``, ``list``, ``images_by_id``, ``image_group``, ``remove``,
    ``pin``, ``unpin``, ``untag``, ``touch``, ``note_in_use``, ``usage``, ``why``, ``evict``, ``collect_garbage``,
    ``sweep_strays`` and ``backup``.

    Args:
        store: does the work; the caller closes it.

    Attributes:
        transfers, looks: limit how many calls of each kind run at the same time.
    """

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self.transfers = anyio.CapacityLimiter(_TRANSFERS)
        self.looks = anyio.CapacityLimiter(_LOOKS)

    pull = _transfer(ImageStore.pull)
    pull_sandbox_image = _transfer(ImageStore.pull_sandbox_image)
    plan = _transfer(ImageStore.plan)
    match = _transfer(ImageStore.match)
    import_images = _transfer(ImageStore.import_images)
    export_images = _transfer(ImageStore.export_images)
    push = _transfer(ImageStore.push)
    copy = _transfer(ImageStore.copy)
    unpack = _transfer(ImageStore.unpack)
    tag = _transfer(ImageStore.tag)
    check = _transfer(ImageStore.check)
    repair = _transfer(ImageStore.repair)

    get = _look(ImageStore.get)
    list = _look(_all(ImageStore.list))
    remove = _look(ImageStore.remove)
    pin = _look(ImageStore.pin)
    unpin = _look(ImageStore.unpin)
    untag = _look(ImageStore.untag)
    touch = _look(ImageStore.touch)
    note_in_use = _look(ImageStore.note_in_use)
    images_by_id = _look(ImageStore.images_by_id)
    image_group = _look(ImageStore.image_group)
    usage = _look(ImageStore.usage)
    why = _look(ImageStore.why)
    evict = _look(ImageStore.evict)
    collect_garbage = _look(ImageStore.collect_garbage)
    sweep_strays = _look(ImageStore.sweep_strays)
    backup = _look(ImageStore.backup)

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
