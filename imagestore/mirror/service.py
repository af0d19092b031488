"""What a mirror does for its clients: one fetch of each thing, however many ask, and an answer in time.

Everything that blocks runs in threads of its own, so that transfers never hold up quick answers, nor the services that
share the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.content.locks import FileLock
from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    ContentNotFoundError,
    ImageStoreError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    StoreBusyError,
)
from imagestore.mirror.bodies import StoredBlob
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.documents import DocumentSource
from imagestore.mirror.fill import Fill, fetch
from imagestore.mirror.keeping import Keeper
from imagestore.mirror.numbers import MirrorNumbers
from imagestore.mirror.prefetch import wanted_manifests
from imagestore.mirror.upstreams import Upstreams
from imagestore.oci.media_types import Kind
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from imagestore.config import Config
    from imagestore.mirror.documents import ServedDocument
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry import Referrers
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Where the root has what the catalogue remembers, and where dead hosts are remembered.
CATALOGUE: Final = "mirror.db"
STATE_FOLDER: Final = "hosts"
LOCK: Final = "mirror"
_FETCH_THREADS: Final = 64
_ASK_THREADS: Final = 32
#: A document that takes longer is given up; clients were told no long before.
_ASK_SECONDS: Final = 60.0
#: How exactly it is known when a document was served last.
_USE_SECONDS: Final = 60.0
_MOST_USES: Final = 10_000
#: Lists of tags and of referrers that are remembered, for their upstream's freshness.
_MOST_LISTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Listed:
    listed_at: float
    value: Any


class Mirror:
    """Serves one table of upstreams from one store; its methods are the event loop's. Close it.

    Args:
        workers: lends the store.
    """

    def __init__(self, workers: StoreWorkers) -> None:
        self.numbers = MirrorNumbers()
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._token = CancelToken()
        self._fetchers = ThreadPoolExecutor(_FETCH_THREADS, "mirror-fetch")
        self._askers = ThreadPoolExecutor(_ASK_THREADS, "mirror-ask")
        self._fills: dict[tuple[Digest, str], Fill] = {}
        self._asked: dict[tuple[str, ...], asyncio.Task[Any]] = {}
        self._lists: dict[tuple[str, ...], _Listed] = {}
        self._uses: dict[tuple[str, Digest], float] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.upstreams: Upstreams

    async def start(self) -> None:
        """Open what is remembered.

        Raises:
            StoreError: it can't be opened; StoreBusyError where another mirror has it open.
        """

        def opened(store: ImageStore) -> None:
            self._lock = FileLock(str(store.root / "locks" / LOCK))
            if not self._lock.try_acquire():
                raise StoreBusyError(
                    f"{store.root}: another mirror serves this store", hint="give this one a --root of its own"
                )
            self._catalogue = Catalogue(store.root / CATALOGUE)
            self._keeper = Keeper(self._catalogue, self.numbers)
            self._keeper.adjust(store, store.config.settings.mirror.upstreams)
            self._documents = DocumentSource(self._catalogue, self._keeper, self.numbers)
            self.upstreams = Upstreams(store.config, str(store.root / STATE_FOLDER))

        await self._workers.quick(opened)

    async def reload(self, config: Config) -> None:
        """Serve another table from now on; fetches that are under way end as they began."""
        if config.settings.mirror == self.upstreams.settings:
            return
        before = self.upstreams
        self.upstreams = await self._workers.quick(lambda store: Upstreams(config, str(store.root / STATE_FOLDER)))
        self._lists.clear()
        fills = [each for each in self._fills.values() if not each.is_over]
        self._spawn(self._close_later(before, fills))

    async def document(self, repository: Repository, reference: Reference, *, is_for_replica: bool) -> ServedDocument:
        """An index or a manifest; asked for once, however many want it.

        Raises:
            ImageStoreError: as DocumentSource.find(); RegistryUnavailableError where it takes too long.
        """
        upstreams = self.upstreams

        def find(store: ImageStore, token: CancelToken) -> ServedDocument:
            return self._documents.find(
                store, upstreams, repository, reference, is_for_replica=is_for_replica, cancel=token
            )

        key = ("document", str(reference), upstreams.owner(_thing(reference), is_for_replica=is_for_replica))
        is_joined = key in self._asked
        try:
            found = await self._once(key, find)
        except ImageStoreError as error:
            self.numbers.count_request(repository.upstream.name, "manifest", _result_of(error))
            raise
        result = "stale" if found.is_stale else "hit" if not found.is_new else "joined" if is_joined else "fetched"
        self.numbers.count_request(repository.upstream.name, "manifest", result)
        await self._note_served(repository, found.descriptor.digest)
        selects = repository.upstream.handlers or repository.upstream.platforms
        if found.is_new and not is_joined and selects and not is_for_replica and reference.digest is None:
            self._spawn(self._prefetch(repository, reference, found))
        return found

    async def blob(self, repository: Repository, digest: Digest, *, is_for_replica: bool) -> StoredBlob | Fill:
        """A blob of a repository: open in the store, or on its way and begun.

        Raises:
            ImageStoreError: it isn't there, or can't be had in time.
        """
        name = repository.upstream.name
        try:
            known, stored = await self._workers.quick(functools.partial(self._look, repository, digest))
            if known is None:
                known = await self._found_upstream(repository, digest, is_for_replica=is_for_replica)
                stored = await self._workers.quick(lambda store: _open(store, known))
            if stored is not None:
                self.numbers.count_request(name, "blob", "hit")
                return stored
            self._refuse_offline(str(digest))
            fill, is_joined = await self._begun(repository, known, is_for_replica=is_for_replica)
        except ImageStoreError as error:
            self.numbers.count_request(name, "blob", _result_of(error))
            raise
        result = "hit" if fill.was_here else "joined" if is_joined else "fetched"
        self.numbers.count_request(name, "blob", result)
        if not fill.is_verified:
            return fill
        stored = await self._workers.quick(lambda store: _open(store, known))
        if stored is None:
            raise ReferenceNotFoundError(f"{digest}: was evicted at once")
        return stored

    async def find_blob(self, repository: Repository, digest: Digest, *, is_for_replica: bool) -> Descriptor:
        """Whether a repository has a blob, and its size; nothing is fetched.

        Raises:
            ImageStoreError: it isn't there, or that can't be told in time.
        """
        known, stored = await self._workers.quick(functools.partial(self._look, repository, digest))
        if stored is not None:
            stored.close()
        if known is not None and (stored is not None or not self.upstreams.settings.is_offline):
            return known
        return await self._found_upstream(repository, digest, is_for_replica=is_for_replica)

    async def tags(self, repository: Repository) -> tuple[str, ...]:
        """The tags of a repository: its upstream's, or those that are here where it can't be asked.

        Raises:
            ImageStoreError: it can't be asked, and none are here.
        """
        upstreams, reference = self.upstreams, repository.reference("latest")

        def ask(_: ImageStore, token: CancelToken) -> tuple[str, ...]:
            upstreams.admit(repository.upstream, cancel=token)
            client = upstreams.client(repository.upstream, repository.name, is_for_replica=True)
            return client.tags(reference, cancel=token)

        try:
            self._refuse_offline(repository.name)
            return await self._listed(("tags", repository.name), repository, ask)
        except ImageStoreError as error:
            here = await self._workers.quick(lambda _: self._catalogue.tags(repository.name))
            may_serve = repository.upstream.serves_stale or self.upstreams.settings.is_offline
            if not here or not may_serve or _is_no(error, self.upstreams.settings.is_offline):
                raise
            return here

    async def referrers(self, repository: Repository, digest: Digest, artifact_type: str) -> Referrers:
        """What refers to a document.

        Raises:
            ImageStoreError: its upstream can't be asked.
        """
        upstreams, reference = self.upstreams, repository.reference(str(digest))

        def ask(_: ImageStore, token: CancelToken) -> Referrers:
            upstreams.admit(repository.upstream, cancel=token)
            client = upstreams.client(repository.upstream, repository.name, is_for_replica=True)
            return client.referrers(reference, digest, artifact_type=artifact_type, cancel=token)

        self._refuse_offline(str(reference))
        return await self._listed(("referrers", str(reference), artifact_type), repository, ask)

    async def names(self) -> tuple[str, ...]:
        """The repositories that have something here."""
        return await self._workers.quick(lambda _: self._catalogue.names())

    def usage(self) -> dict[str, tuple[int, int | None]]:
        """What each upstream's content takes, and may take, in bytes; from any thread."""
        table = self.upstreams.settings.upstreams
        names = {*table, *self._catalogue.upstreams()}
        return {
            name: (self._catalogue.used_bytes(name), table[name].quota_bytes if name in table else None)
            for name in names
        }

    async def close(self) -> None:
        """End what is under way; unfinished fetches stay on disk and are resumed."""
        self._token.cancel("the mirror stops")
        tasks = [*self._background, *self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._askers.shutdown()
        self._fetchers.shutdown()
        self.upstreams.close()
        self._catalogue.close()
        self._lock.release()

    def _refuse_offline(self, what: str) -> None:
        if self.upstreams.settings.is_offline:
            raise ReferenceNotFoundError(f"{what}: is not here, and this mirror is offline")

    def _look(
        self, repository: Repository, digest: Digest, store: ImageStore
    ) -> tuple[Descriptor | None, StoredBlob | None]:
        known = self._catalogue.member(repository.name, digest)
        return known, None if known is None else _open(store, known)

    async def _found_upstream(self, repository: Repository, digest: Digest, *, is_for_replica: bool) -> Descriptor:
        """A blob of which no document here says anything: its upstream says whether the repository has it."""
        self._refuse_offline(str(digest))
        upstreams, reference = self.upstreams, repository.reference(str(digest))

        def ask(store: ImageStore, token: CancelToken) -> Descriptor:
            upstreams.admit(repository.upstream, cancel=token)
            client = upstreams.client(repository.upstream, str(digest), is_for_replica=is_for_replica)
            found = client.find_blob(reference, digest, cancel=token)
            self._keeper.hold(store, repository.upstream.name, [digest])
            self._catalogue.put_document(repository.upstream.name, repository.name, found, ())
            return found

        owner = upstreams.owner(str(digest), is_for_replica=is_for_replica)
        return await self._once(("blob", repository.name, str(digest), owner), ask)

    async def _begun(self, repository: Repository, blob: Descriptor, *, is_for_replica: bool) -> tuple[Fill, bool]:
        fill, is_joined = self._fill(repository, blob, is_for_replica=is_for_replica)
        try:
            await self._in_time(fill.begun(), str(blob.digest))
        except (ReferenceNotFoundError, AccessDeniedError, AuthenticationError):
            if not is_joined:
                raise
            # Another repository was asked for it, which doesn't have it or doesn't show it.
            fill, _ = self._fill(repository, blob, is_for_replica=is_for_replica)
            await self._in_time(fill.begun(), str(blob.digest))
        return fill, is_joined

    def _fill(self, repository: Repository, blob: Descriptor, *, is_for_replica: bool) -> tuple[Fill, bool]:
        """The fetch of a blob, and whether it was going on already. By digest: repositories share it."""
        # One that waits for another replica is none for that replica to wait for.
        key = (blob.digest, self.upstreams.owner(str(blob.digest), is_for_replica=is_for_replica))
        fill = self._fills.get(key)
        if fill is not None and not fill.is_over:
            return fill, True
        fill = self._fills[key] = Fill(blob, self._loop)
        work = functools.partial(self._fetch, fill, repository, self.upstreams, is_for_replica)
        future = self._loop.run_in_executor(self._fetchers, work)
        future.add_done_callback(functools.partial(self._fetched, key, fill))
        return fill, False

    def _fetched(self, key: tuple[Digest, str], fill: Fill, future: asyncio.Future[None]) -> None:
        if self._fills.get(key) is fill:
            del self._fills[key]
        if not future.cancelled() and (error := future.exception()) is not None:
            _log.error("a fetch failed", exc_info=error)

    def _fetch(self, fill: Fill, repository: Repository, upstreams: Upstreams, is_for_replica: bool) -> None:
        upstream, blob = repository.upstream, fill.descriptor
        with self._workers.lend() as store, self._token.child() as token:
            try:
                self._keeper.reserve(store, upstream, blob)
            except ImageStoreError as error:
                failure = error
                fill.tell(lambda: fill.finish(failure))
                return
            try:
                self._keeper.hold(store, upstream.name, [blob.digest])
                upstreams.admit(upstream, cancel=token)

                def received(count: int) -> None:
                    self.numbers.count_fetched(upstream.name, count)
                    upstreams.throttle(upstream, count, cancel=token)

                fetch(
                    fill,
                    content=store.content,
                    client=upstreams.client(upstream, str(blob.digest), is_for_replica=is_for_replica),
                    reference=repository.reference(str(blob.digest)),
                    received=received,
                    cancel=token,
                )
                if store.content.exists(blob.digest):
                    self._catalogue.put_blob(upstream.name, blob)
            except ImageStoreError as error:
                failure = error
                fill.tell(lambda: fill.finish(failure))
            finally:
                self._keeper.give_back(upstream.name, blob)

    async def _prefetch(self, repository: Repository, reference: Reference, index: ServedDocument) -> None:
        """Fetch what the table's handlers and platforms choose of an index."""
        upstreams = self.upstreams

        def choose(store: ImageStore, token: CancelToken) -> tuple[Descriptor, ...]:
            client = upstreams.client(repository.upstream, str(reference), is_for_replica=False)
            return wanted_manifests(store, repository.upstream, reference, index, client, token)

        try:
            for manifest in await self._once(("prefetch", str(index.descriptor.digest), str(reference)), choose):
                by_digest = repository.reference(str(manifest.digest))
                found = await self.document(repository, by_digest, is_for_replica=False)
                for part in await asyncio.to_thread(self._documents.parts, found):
                    if part.kind is not Kind.FOREIGN_LAYER:
                        here = await self.blob(repository, part.digest, is_for_replica=False)
                        if isinstance(here, StoredBlob):
                            here.close()
        except ImageStoreError as error:
            _log.warning("prefetch failed: %s", error, extra={"reference": str(reference)})

    async def _listed(
        self, key: tuple[str, ...], repository: Repository, ask: Callable[[ImageStore, CancelToken], T]
    ) -> T:
        """A list, asked for again when it isn't fresh."""
        listed = self._lists.get(key)
        if listed is not None and time.monotonic() - listed.listed_at < repository.upstream.fresh_seconds:
            value: T = listed.value
            return value
        value = await self._once(key, ask)
        if len(self._lists) >= _MOST_LISTS:
            self._lists.clear()
        self._lists[key] = _Listed(time.monotonic(), value)
        return value

    async def _once(self, key: tuple[str, ...], ask: Callable[[ImageStore, CancelToken], T]) -> T:
        """Run blocking work in a thread, shared by all who want the same meanwhile.

        Raises:
            ImageStoreError: the work's; RegistryUnavailableError where it takes too long. It goes on then.
        """
        task: asyncio.Task[T] | None = self._asked.get(key)
        if task is None:
            task = self._asked[key] = self._loop.create_task(self._run(ask))
            task.add_done_callback(functools.partial(self._answered, key))
        return await self._in_time(asyncio.shield(task), key[1])

    def _answered(self, key: tuple[str, ...], task: asyncio.Task[Any]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # whoever waited has it

    async def _run(self, ask: Callable[[ImageStore, CancelToken], T]) -> T:
        def run() -> T:
            with self._workers.lend() as store, self._token.child(deadline_seconds=_ASK_SECONDS) as token:
                return ask(store, token)

        return await self._loop.run_in_executor(self._askers, run)

    async def _in_time(self, wanted: Coroutine[Any, Any, T] | asyncio.Future[T], what: str) -> T:
        seconds = self.upstreams.settings.answer_seconds
        try:
            async with asyncio.timeout(seconds):
                return await wanted
        except TimeoutError:
            raise RegistryUnavailableError(f"{what}: no answer from upstream within {seconds:g} s") from None

    async def _note_served(self, repository: Repository, digest: Digest) -> None:
        now, key = time.monotonic(), (repository.name, digest)
        if now - self._uses.get(key, -_USE_SECONDS) < _USE_SECONDS:
            return
        if len(self._uses) >= _MOST_USES:
            self._uses.clear()
        self._uses[key] = now
        await self._workers.quick(lambda _: self._catalogue.note_served(repository.name, digest))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _close_later(self, upstreams: Upstreams, fills: list[Fill]) -> None:
        for fill in fills:
            with contextlib.suppress(ImageStoreError):
                await fill.ended()
        await asyncio.to_thread(upstreams.close)


def _open(store: ImageStore, blob: Descriptor) -> StoredBlob | None:
    """A blob that is here, whole; one of another size is damaged, and thrown away."""
    try:
        file = store.content.open(blob.digest)
    except ContentNotFoundError:
        return None
    if os.fstat(file.fileno()).st_size == blob.size:
        return StoredBlob(file, blob)
    file.close()
    store.content.delete_damaged(blob.digest)
    return None


def _thing(reference: Reference) -> str:
    """What a reference's owner is found by."""
    return str(reference.digest or reference)


def _is_no(error: ImageStoreError, is_offline: bool) -> bool:
    return isinstance(error, ReferenceNotFoundError) and not is_offline


def _result_of(error: ImageStoreError) -> str:
    return "missing" if isinstance(error, ReferenceNotFoundError) else "failed"
