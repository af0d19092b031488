"""What a mirror does for its clients: one fetch of each thing, however many ask, and an answer in time.

Everything that blocks runs in threads of its own, so that transfers never hold up quick answers, nor the services that
share the process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.content.locks import FileLock
from imagestore.errors import (
    ContentNotFoundError,
    ImageStoreError,
    IntegrityError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    ServerError,
    SizeMismatchError,
    StoreBusyError,
)
from imagestore.mirror.bodies import BlobSource, StoredBlob
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.documents import DocumentSource
from imagestore.mirror.fill import Fill, Source, fetch
from imagestore.mirror.keeping import Keeper
from imagestore.mirror.numbers import MirrorNumbers
from imagestore.mirror.prefetch import wanted_manifests
from imagestore.mirror.upstreams import Upstreams
from imagestore.oci.media_types import Kind
from imagestore.util.cancel import CancelGroup, CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from imagestore.config.model import Upstream
    from imagestore.mirror.documents import ServedDocument
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry import Referrers, RegistryClient
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Where the root has what the catalogue remembers, and where dead hosts are remembered.
CATALOGUE: Final = "mirror.db"
STATE_FOLDER: Final = "hosts"
LOCK: Final = "mirror"
#: Questions under way at one upstream; more wait for these.
_ASK_THREADS: Final = 8
#: What takes longer is given up, the time in line included; clients were told no long before.
_ASK_SECONDS: Final = 60.0
#: A blob may wait so long for others of its upstream; its own first byte then has an answer's time.
_LINE_SECONDS: Final = 60.0
#: An upstream that gave no answer is left alone for so long, where something stale can be served.
_REST_SECONDS: Final = 10.0
#: Content that an upstream sent wrong isn't asked for again for so long.
_DISTRUST_SECONDS: Final = 30.0
#: How exactly it is known when a document was served last.
_USE_SECONDS: Final = 60.0
_MOST_USES: Final = 10_000
#: Lists of tags and of referrers that are remembered, for their upstream's freshness.
_MOST_LISTS: Final = 1_000
#: For fetches to end when the mirror does.
_PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Listed:
    listed_at: float
    value: Any


@dataclass(frozen=True, slots=True)
class _Lane:
    """The threads that work for one upstream, so that one that hangs holds up no other."""

    askers: ThreadPoolExecutor
    fetchers: ThreadPoolExecutor

    def close(self) -> None:
        """Wait for what is under way."""
        self.askers.shutdown(cancel_futures=True)
        self.fetchers.shutdown(cancel_futures=True)


class Mirror:
    """Serves one table of upstreams from one store; its methods are the event loop's. Close it.

    Args:
        workers: lends the store.
    """

    def __init__(self, workers: StoreWorkers) -> None:
        self.numbers = MirrorNumbers()
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._operations = CancelGroup()
        self._lanes: dict[str, _Lane] = {}
        self._fills: dict[tuple[str, Digest, int, str], Fill] = {}
        self._asked: dict[tuple[str, ...], asyncio.Task[Any]] = {}
        self._lists: dict[tuple[str, ...], _Listed] = {}
        self._uses: dict[tuple[str, Digest], float] = {}
        self._resting: dict[str, float] = {}
        self._distrusted: dict[tuple[str, Digest, int], float] = {}
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
            self._documents = DocumentSource(self._catalogue, self._keeper, self.numbers)
            self._open_table(store)

        await self._workers.quick(opened)

    def _open_table(self, store: ImageStore) -> None:
        self._keeper.adjust(store, store.config.settings.mirror.upstreams)
        self.upstreams = Upstreams(store.config, str(store.root / STATE_FOLDER))

    async def reload(self) -> None:
        """Serve the table of the store's configuration from now on; fetches under way end as they began.

        Raises:
            StoreError: leases can't be changed.
        """
        before, fills = self.upstreams, [each for each in self._fills.values() if not each.is_over]
        await self._workers.quick(self._open_table)
        self._lists.clear()
        self._resting.clear()
        self._spawn(self._close_later(before, fills))

    async def document(self, repository: Repository, reference: Reference, *, is_for_replica: bool) -> ServedDocument:
        """An index or a manifest; asked for once, however many want it.

        Raises:
            ImageStoreError: it isn't there, or can't be had in time.
        """
        name = repository.upstream.name
        try:
            found, result = await self._found_document(repository, reference, is_for_replica=is_for_replica)
        except ImageStoreError as error:
            self.numbers.count_request(name, "manifest", _result_of(error))
            raise
        self.numbers.count_request(name, "manifest", result)
        await self._note_served(repository, found.descriptor.digest)
        selects = repository.upstream.handlers or repository.upstream.platforms
        if result == "fetched" and selects and not is_for_replica and reference.digest is None:
            self._spawn(self._prefetch(repository, reference, found))
        return found

    async def _found_document(
        self, repository: Repository, reference: Reference, *, is_for_replica: bool
    ) -> tuple[ServedDocument, str]:
        """A document, and what became of the request."""
        upstreams, upstream = self.upstreams, repository.upstream
        cached = await self._workers.quick(
            lambda store: self._documents.cached(store, upstreams.settings, repository, reference)
        )
        if cached is not None and cached.is_fresh:
            return cached.document, "hit"
        self._refuse_offline(str(reference))
        stale = cached.document if cached is not None and upstream.serves_stale else None
        if stale is not None and self._loop.time() < self._resting.get(upstream.name, 0.0):
            return replace(stale, is_stale=True), "stale"
        owner = upstreams.owner(str(reference.digest or reference), is_for_replica=is_for_replica)
        known = cached.document.descriptor if cached is not None else None

        def ask(store: ImageStore, token: CancelToken) -> ServedDocument:
            return self._documents.ask(store, upstreams, repository, reference, owner=owner, known=known, cancel=token)

        key = ("document", str(reference), owner)
        is_joined = key in self._asked
        # Who has something to serve needn't wait as long as who has nothing.
        share = 1.0 if stale is None else 0.5
        try:
            found = await self._once(key, upstream, ask, share=share)
        except ReferenceNotFoundError:
            raise
        except ImageStoreError as error:
            self._resting[upstream.name] = self._loop.time() + _REST_SECONDS
            if stale is None:
                raise
            log.warning("%s is stale: %s", reference, error, extra={"upstream": upstream.name})
            return replace(stale, is_stale=True), "stale"
        self._resting.pop(upstream.name, None)
        return found, "hit" if not found.is_new else "joined" if is_joined else "fetched"

    async def blob(self, repository: Repository, digest: Digest, *, is_for_replica: bool) -> BlobSource:
        """A blob of a repository: open in the store, or on its way and begun; close it.

        Raises:
            ImageStoreError: it isn't there, or can't be had in time.
        """
        name = repository.upstream.name
        try:
            found, result = await self._found_blob(repository, digest, is_for_replica=is_for_replica)
        except ImageStoreError as error:
            self.numbers.count_request(name, "blob", _result_of(error))
            raise
        self.numbers.count_request(name, "blob", result)
        try:
            await self._note_served(repository, digest)
        except BaseException:
            found.close()
            raise
        return found

    async def _found_blob(
        self, repository: Repository, digest: Digest, *, is_for_replica: bool
    ) -> tuple[BlobSource, str]:
        """A blob, and what became of the request."""
        known, stored = await self._workers.quick(functools.partial(self._look, repository, digest))
        if known is None:
            known = await self._ask_for_size(repository, digest, is_for_replica=is_for_replica)
            known, stored = await self._workers.quick(functools.partial(self._look, repository, digest))
            if known is None:
                raise ReferenceNotFoundError(f"{digest}: was forgotten at once")
        if stored is not None:
            return stored, "hit"
        self._refuse_offline(str(digest))
        self._refuse_distrusted(repository.upstream, known)
        fill, is_joined = self._fill(repository, known, is_for_replica=is_for_replica)
        await self._begun(fill)
        if not fill.is_verified:
            # At once: a fill that ends without readers lets its file go.
            return fill.reader(), "joined" if is_joined else "fetched"
        if fill.was_here:
            # Another upstream's, or a pull's: whether this one has it too is for itself to say.
            await self._ask_for_size(repository, digest, is_for_replica=is_for_replica)
        _, stored = await self._workers.quick(functools.partial(self._look, repository, digest))
        if stored is None:
            raise ReferenceNotFoundError(f"{digest}: was evicted at once")
        return stored, "hit" if fill.was_here else "joined" if is_joined else "fetched"

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
        return await self._ask_for_size(repository, digest, is_for_replica=is_for_replica)

    async def tags(self, repository: Repository) -> tuple[str, ...]:
        """The tags of a repository: its upstream's, or those that are here where it can't be asked.

        Raises:
            ImageStoreError: it can't be asked, and none are here.
        """
        reference, is_offline = repository.reference("latest"), self.upstreams.settings.is_offline

        def ask(client: RegistryClient, token: CancelToken) -> tuple[str, ...]:
            return client.tags(reference, cancel=token)

        try:
            self._refuse_offline(repository.name)
            return await self._listed(("tags", repository.name), repository, ask)
        except ImageStoreError as error:
            here = await self._workers.quick(lambda _: self._catalogue.tags(repository.name))
            is_no = isinstance(error, ReferenceNotFoundError) and not is_offline
            if not here or is_no or not (repository.upstream.serves_stale or is_offline):
                raise
            return here

    async def referrers(self, repository: Repository, digest: Digest, artifact_type: str) -> Referrers:
        """What refers to a document.

        Raises:
            ImageStoreError: its upstream can't be asked.
        """
        reference = repository.reference(str(digest))

        def ask(client: RegistryClient, token: CancelToken) -> Referrers:
            return client.referrers(reference, digest, artifact_type=artifact_type, cancel=token)

        self._refuse_offline(str(reference))
        return await self._listed(("referrers", str(reference), artifact_type), repository, ask)

    async def names(self, *, with_private: bool) -> tuple[str, ...]:
        """The repositories that have something here, those of private upstreams only where they may be told."""
        shown = [
            each.name for each in self.upstreams.settings.upstreams.values() if with_private or not each.is_private
        ]
        found = await self._workers.quick(lambda _: [name for each in shown for name in self._catalogue.names(each)])
        return tuple(sorted(found))

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
        tasks = [*self._background, *self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(self._operations.end, "the mirror stops", patience_seconds=_PATIENCE_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        self.upstreams.close()
        self._catalogue.close()
        self._lock.release()

    def _refuse_offline(self, what: str) -> None:
        if self.upstreams.settings.is_offline:
            raise ReferenceNotFoundError(f"{what}: is not here, and this mirror is offline")

    def _refuse_distrusted(self, upstream: Upstream, blob: Descriptor) -> None:
        if self._loop.time() < self._distrusted.get((upstream.name, blob.digest, blob.size), 0.0):
            raise ReferenceNotFoundError(f"{blob.digest}: its upstream sent something else a moment ago")

    def _look(
        self, repository: Repository, digest: Digest, store: ImageStore
    ) -> tuple[Descriptor | None, StoredBlob | None]:
        """What is known of a blob, and the blob where it is here, whole, and its upstream has it."""
        known = self._catalogue.member(repository.name, digest)
        if known is None or not self._catalogue.is_earned(repository.upstream.name, digest):
            return known, None
        try:
            file = store.content.open(digest)
        except ContentNotFoundError:
            self._catalogue.forget_content(digest)
            return known, None
        if os.fstat(file.fileno()).st_size == known.size:
            return known, StoredBlob(file, known)
        # Damaged, or wrongly described: a fetch finds out which.
        file.close()
        self._catalogue.forget_content(digest)
        return known, None

    async def _ask_for_size(self, repository: Repository, digest: Digest, *, is_for_replica: bool) -> Descriptor:
        """Whether a blob's upstream has it, by its own word; what is known of it is noted."""
        self._refuse_offline(str(digest))
        upstreams, upstream, reference = self.upstreams, repository.upstream, repository.reference(str(digest))
        owner = upstreams.owner(str(digest), is_for_replica=is_for_replica)

        def ask(store: ImageStore, token: CancelToken) -> Descriptor:
            def find(client: RegistryClient, part: CancelToken) -> Descriptor:
                return client.find_blob(reference, digest, cancel=part)

            found = upstreams.ask(upstream, owner, find, cancel=token)
            self._keeper.hold(store, upstream.name, [digest])
            here = store.content.find(digest)
            is_here = here is not None and here.size == found.size
            self._catalogue.put_document(upstream.name, repository.name, found, (), is_here=is_here)
            return found

        return await self._once(("blob", repository.name, str(digest), owner), upstream, ask)

    def _fill(self, repository: Repository, blob: Descriptor, *, is_for_replica: bool) -> tuple[Fill, bool]:
        """The fetch of a blob from its upstream, and whether it was going on already; repositories share it."""
        upstreams, upstream = self.upstreams, repository.upstream
        # One that waits for another replica is none for that replica to wait for.
        owner = upstreams.owner(str(blob.digest), is_for_replica=is_for_replica)
        key = (upstream.name, blob.digest, blob.size, owner)
        fill = self._fills.get(key)
        if fill is not None and not fill.is_over:
            return fill, True
        fill = self._fills[key] = Fill(blob, self._loop)
        work = functools.partial(self._fetch, fill, repository, upstreams, owner)
        future = self._loop.run_in_executor(self._lane(upstream).fetchers, work)
        future.add_done_callback(functools.partial(self._fetched, key, fill))
        return fill, False

    def _fetched(
        self, key: tuple[str, Digest, int, str], fill: Fill, future: asyncio.Future[ImageStoreError | None]
    ) -> None:
        if self._fills.get(key) is fill:
            del self._fills[key]
        if not future.cancelled() and isinstance(future.result(), IntegrityError):
            if len(self._distrusted) >= _MOST_USES:
                self._distrusted.clear()
            self._distrusted[key[:3]] = self._loop.time() + _DISTRUST_SECONDS

    async def _begun(self, fill: Fill) -> None:
        """Wait until a blob comes: in line for others, and then an answer's time.

        Raises:
            ImageStoreError: it doesn't.
        """
        try:
            async with asyncio.timeout(_LINE_SECONDS):
                await fill.started()
        except TimeoutError:
            raise RegistryUnavailableError(f"{fill.descriptor.digest}: its upstream is busy with others") from None
        await self._in_time(fill.begun(), str(fill.descriptor.digest))

    def _fetch(self, fill: Fill, repository: Repository, upstreams: Upstreams, owner: str) -> ImageStoreError | None:
        """Fetch a blob, in a thread; readers hear of its failure, which is returned."""
        fill.tell(fill.start)
        failure: ImageStoreError
        try:
            with self._workers.lend() as store, self._operations.joined(None) as token:
                self._fetch_into(store, fill, repository, upstreams, owner, token)
            return None
        except ImageStoreError as error:
            failure = error
        except Exception as error:
            log.exception("a fetch failed")
            failure = ServerError(f"fetching {fill.descriptor.digest} failed: {error!r}")
        fill.tell(lambda: fill.finish(failure))
        return failure

    def _fetch_into(
        self,
        store: ImageStore,
        fill: Fill,
        repository: Repository,
        upstreams: Upstreams,
        owner: str,
        token: CancelToken,
    ) -> None:
        upstream, blob = repository.upstream, fill.descriptor
        self._keeper.reserve(store, upstream, blob)
        try:
            self._keeper.hold(store, upstream.name, [blob.digest])
            here = store.content.find(blob.digest)
            if here is not None and here.size != blob.size and store.content.delete_damaged(blob.digest):
                raise SizeMismatchError(str(blob.digest), expected=blob.size, actual=here.size)
            sources = self._sources(upstreams, upstream, owner, token)
            reference = repository.reference(str(blob.digest))
            if fetch(fill, content=store.content, sources=sources, reference=reference, cancel=token):
                self._catalogue.put_blob(upstream.name, repository.name, blob)
                fill.tell(lambda: fill.finish(None))
            else:
                fill.tell(fill.find_here)
        except IntegrityError:
            self._catalogue.distrust(repository.name, blob.digest)
            raise
        finally:
            self._keeper.give_back(upstream.name, blob)

    def _sources(self, upstreams: Upstreams, upstream: Upstream, owner: str, token: CancelToken) -> list[Source]:
        """Whom to ask for a blob: its owner first, where that is another replica."""

        def received(count: int) -> None:
            self.numbers.count_fetched(upstream.name, count, is_from_replica=False)
            upstreams.throttle(upstream, count, cancel=token)

        def replicated(count: int) -> None:
            self.numbers.count_fetched(upstream.name, count, is_from_replica=True)

        found = []
        if owner:
            client, seconds = upstreams.client(upstream, owner), upstreams.owner_seconds
            found.append(Source(client, replicated, seconds, lambda: upstreams.rest(owner)))
        admit = functools.partial(upstreams.admit, upstream, cancel=token)
        return [*found, Source(upstreams.client(upstream, ""), received, before=admit)]

    async def _prefetch(self, repository: Repository, reference: Reference, index: ServedDocument) -> None:
        """Fetch what the table's handlers and platforms choose of an index."""
        upstreams, upstream = self.upstreams, repository.upstream

        def choose(store: ImageStore, token: CancelToken) -> tuple[Descriptor, ...]:
            return wanted_manifests(store, upstream, reference, index, upstreams.client(upstream, ""), token)

        try:
            for manifest in await self._once(("prefetch", str(reference)), upstream, choose):
                by_digest = repository.reference(str(manifest.digest))
                found = await self.document(repository, by_digest, is_for_replica=False)
                for part in await asyncio.to_thread(self._documents.parts, found):
                    if part.kind is not Kind.FOREIGN_LAYER:
                        (await self.blob(repository, part.digest, is_for_replica=False)).close()
        except ImageStoreError as error:
            log.warning("prefetch failed: %s", error, extra={"reference": str(reference)})

    async def _listed(
        self, key: tuple[str, ...], repository: Repository, ask: Callable[[RegistryClient, CancelToken], T]
    ) -> T:
        """A list, asked for again when it isn't fresh."""
        upstreams, upstream = self.upstreams, repository.upstream
        listed = self._lists.get(key)
        if listed is not None and self._loop.time() - listed.listed_at < upstream.fresh_seconds:
            value: T = listed.value
            return value
        value = await self._once(key, upstream, lambda _, token: upstreams.ask(upstream, "", ask, cancel=token))
        if len(self._lists) >= _MOST_LISTS:
            self._lists.clear()
        self._lists[key] = _Listed(self._loop.time(), value)
        return value

    async def _once(
        self,
        key: tuple[str, ...],
        upstream: Upstream,
        ask: Callable[[ImageStore, CancelToken], T],
        *,
        share: float = 1.0,
    ) -> T:
        """Run blocking work in a thread, shared by all who want the same meanwhile.

        Raises:
            ImageStoreError: the work's; RegistryUnavailableError where it takes too long. It goes on then.
        """
        task: asyncio.Task[T] | None = self._asked.get(key)
        if task is None:
            task = self._asked[key] = self._loop.create_task(self._run(upstream, ask))
            task.add_done_callback(functools.partial(self._answered, key))
        return await self._in_time(asyncio.shield(task), key[1], share=share)

    def _answered(self, key: tuple[str, ...], task: asyncio.Task[Any]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # who waited has it

    async def _run(self, upstream: Upstream, ask: Callable[[ImageStore, CancelToken], T]) -> T:
        until = time.monotonic() + _ASK_SECONDS

        def run() -> T:
            in_line = CancelToken(max(0.0, until - time.monotonic()))
            with self._workers.lend() as store, self._operations.joined(in_line) as token:
                token.check()
                return ask(store, token)

        return await self._loop.run_in_executor(self._lane(upstream).askers, run)

    def _lane(self, upstream: Upstream) -> _Lane:
        lane = self._lanes.get(upstream.name)
        if lane is None:
            askers = ThreadPoolExecutor(_ASK_THREADS, f"ask-{upstream.name}")
            fetchers = ThreadPoolExecutor(upstream.max_connections, f"fetch-{upstream.name}")
            lane = self._lanes[upstream.name] = _Lane(askers, fetchers)
        return lane

    async def _in_time(self, wanted: Coroutine[Any, Any, T] | asyncio.Future[T], what: str, *, share: float = 1.0) -> T:
        seconds = self.upstreams.settings.answer_seconds * share
        try:
            async with asyncio.timeout(seconds):
                return await wanted
        except TimeoutError:
            raise RegistryUnavailableError(f"{what}: no answer from upstream within {seconds:g} s") from None

    async def _note_served(self, repository: Repository, digest: Digest) -> None:
        now, key = self._loop.time(), (repository.name, digest)
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
            await fill.ended()
        await asyncio.to_thread(upstreams.close)


def _result_of(error: ImageStoreError) -> str:
    return "missing" if isinstance(error, ReferenceNotFoundError) else "failed"
