"""What a mirror does for its clients: one fetch of each thing, however many ask, and an answer in time.

Everything that blocks runs in threads of its own, so that transfers never hold up quick answers, nor the services that
share the process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import (
    ContentNotFoundError,
    ImageStoreError,
    IntegrityError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
)
from imagestore.mirror.backing import open_backing
from imagestore.mirror.catalogue import RESERVED_SECONDS
from imagestore.mirror.documents import DocumentSource
from imagestore.mirror.fetching import BlobFetcher
from imagestore.mirror.keeping import Keeper
from imagestore.mirror.lists import ListSource
from imagestore.mirror.numbers import MirrorNumbers
from imagestore.mirror.prefetch import wanted_manifests
from imagestore.mirror.sharing import SharedWork
from imagestore.mirror.upstreams import Upstreams
from imagestore.mirror.uses import RecentUses
from imagestore.oci.media_types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from imagestore.mirror.backing import Backing
    from imagestore.mirror.bodies import BlobSource
    from imagestore.mirror.documents import ServedDocument
    from imagestore.mirror.fill import Fill
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry import Referrers, RegistryClient
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

    Opener = Callable[[ImageStore, StoreWorkers, MirrorNumbers, asyncio.AbstractEventLoop], Backing]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Where the root remembers dead hosts.
STATE_FOLDER: Final = "hosts"
#: A reference that brought no answer isn't asked for again for so long, where something stale can be served.
_REST_SECONDS: Final = 10.0
_MOST_RESTING: Final = 10_000
#: Several times before other replicas take this one for dead.
_RENEWAL_SECONDS: Final = RESERVED_SECONDS / 5


class Mirror:
    """Serves one table of upstreams from one store; its methods are the event loop's. Close it.

    Args:
        workers: lends the store.
        opener: opens what the mirror stands on, in a thread; gets the store, who lends it, who counts, and the clients'
            event loop. By default what goes with the store.
    """

    def __init__(
        self,
        workers: StoreWorkers,
        *,
        opener: Opener | None = None,
    ) -> None:
        self._opener = opener
        self.numbers = MirrorNumbers()
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._shared = SharedWork(workers, lambda: self.upstreams.settings.answer_seconds)
        self._resting: dict[str, float] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.upstreams: Upstreams

    async def start(self) -> None:
        """Open what is remembered.

        Raises:
            StoreError: it can't be opened; StoreBusyError where another mirror has it open.
        """
        backing = await self._workers.quick(
            lambda store: (self._opener or _opener_of(store))(store, self._workers, self.numbers, self._loop)
        )
        try:
            self._backing, self._catalogue, self._stored = backing, backing.catalogue, backing.stored
            self._keeper = Keeper(self._catalogue, self.numbers)
            self._documents = DocumentSource(self._catalogue, self._keeper, self.numbers, self._stored)
            self._lists = ListSource(self._workers, self._shared, self._catalogue)
            self._uses = RecentUses(self._workers, self._catalogue)
            await self._workers.quick(self._open_table)
            await self._workers.quick(self._keeper.adjust if backing.is_alone else self._keeper.release_all)
        except BaseException:
            await asyncio.to_thread(backing.close)
            raise
        self._blobs = BlobFetcher(
            self._workers, self._shared, self._catalogue, self._keeper, self.numbers, self._stored, backing.second
        )
        self._spawn(self._renew())

    def _open_table(self, store: ImageStore) -> None:
        # Other replicas may serve, for a while yet, what this one's new table lacks.
        if self._backing.is_alone:
            self._keeper.let_go(store, store.config.settings.mirror.upstreams)
        self.upstreams = Upstreams(store.config, str(store.root / STATE_FOLDER))

    async def reload(self) -> None:
        """Serve the table of the store's configuration from now on; fetches under way end as they began.

        Raises:
            StoreError: leases can't be changed.
        """
        before, fills = self.upstreams, self._blobs.under_way()
        await self._workers.quick(self._open_table)
        self._lists.forget()
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
        self._spawn(self._uses.note(repository.name, found.descriptor.digest))
        selects = repository.upstream.handlers or repository.upstream.platforms
        if result == "fetched" and selects and not is_for_replica and reference.digest is None:
            self._spawn(self._prefetch(repository, reference, found))
        return found

    async def _found_document(
        self, repository: Repository, reference: Reference, *, is_for_replica: bool
    ) -> tuple[ServedDocument, str]:
        """A document, and what became of the request."""
        upstreams, upstream = self.upstreams, repository.upstream
        cached = await self._quick(
            lambda store: self._documents.cached(store, upstreams.settings, repository, reference), str(reference)
        )
        if cached is not None and cached.is_fresh:
            return cached.document, "hit"
        self.upstreams.refuse_offline(str(reference))
        stale = cached.document if cached is not None and upstream.serves_stale else None
        if stale is not None and self._loop.time() < self._resting.get(str(reference), 0.0):
            return replace(stale, is_stale=True), "stale"
        owner = upstreams.owner(str(reference.digest or reference), is_for_replica=is_for_replica)
        known = cached.document.descriptor if cached is not None else None

        def ask(store: ImageStore, token: CancelToken) -> ServedDocument:
            return self._documents.ask(store, upstreams, repository, reference, owner=owner, known=known, cancel=token)

        key = ("document", str(reference), owner)
        is_joined = self._shared.is_asked(key)
        # Who has something to serve needn't wait as long as who has nothing.
        share = 1.0 if stale is None else 0.5
        try:
            found = await self._shared.once(key, upstream, ask, owner=owner, share=share)
        except ReferenceNotFoundError:
            raise
        except ImageStoreError as error:
            if stale is None:
                raise
            if isinstance(error, RegistryUnavailableError | RateLimitedError):
                self._rest(reference)
            log.warning("%s is stale: %s", reference, error, extra={"upstream": upstream.name})
            return replace(stale, is_stale=True), "stale"
        self._resting.pop(str(reference), None)
        return found, "hit" if not found.is_new else "joined" if is_joined else "fetched"

    def _rest(self, reference: Reference) -> None:
        if len(self._resting) >= _MOST_RESTING:
            self._resting.clear()
        self._resting[str(reference)] = self._loop.time() + _REST_SECONDS

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
            self._spawn(self._uses.note(repository.name, digest))
        except BaseException:
            found.close()
            raise
        return found

    async def _found_blob(
        self, repository: Repository, digest: Digest, *, is_for_replica: bool
    ) -> tuple[BlobSource, str]:
        """A blob, and what became of the request."""
        known, stored = await self._looked(repository, digest)
        if known is None:
            known = await self._ask_for_size(repository, digest, is_for_replica=is_for_replica)
            known, stored = await self._looked(repository, digest)
            if known is None:
                raise ReferenceNotFoundError(f"{digest}: was forgotten at once")
        if stored is not None and await self._has_begun(stored):
            return stored, "hit"
        self.upstreams.refuse_offline(str(digest))
        fill, is_joined = await self._blobs.begun(self.upstreams, repository, known, is_for_replica=is_for_replica)
        if not fill.is_verified:
            # At once: a fill that ends without readers lets its file go.
            return fill.reader(), "joined" if is_joined else "fetched"
        if fill.was_here:
            # Another upstream's, or a pull's: whether this one has it too is for itself to say.
            await self._ask_for_size(repository, digest, is_for_replica=is_for_replica)
        _, stored = await self._looked(repository, digest)
        if stored is None or not await self._has_begun(stored):
            raise ReferenceNotFoundError(f"{digest}: was evicted at once")
        return stored, "hit" if fill.was_here else "joined" if is_joined else "fetched"

    async def _has_begun(self, stored: BlobSource) -> bool:
        """Wait until bytes come of what the store has; False where it is gone since, or damaged, and has to be fetched.

        Raises:
            ImageStoreError: they don't, or not in time.
        """
        try:
            await self._shared.in_time(stored.begun(), str(stored.descriptor.digest))
        except (ContentNotFoundError, IntegrityError):
            stored.close()
            return False
        except BaseException:
            stored.close()
            raise
        return True

    async def location(self, repository: Repository, digest: Digest) -> str:
        """A URL of the bucket to send a client to for a blob; empty where the mirror has to answer itself."""
        if not self._stored.redirects:
            return ""

        def look(_: ImageStore) -> str:
            known = self._catalogue.known(repository.upstream.name, repository.name, digest)
            return self._stored.location(known.descriptor) if known is not None and known.is_earned else ""

        found = await self._quick(look, str(digest))
        if found:
            self.numbers.count_request(repository.upstream.name, "blob", "redirected")
            self._spawn(self._uses.note(repository.name, digest))
        return found

    async def find_blob(self, repository: Repository, digest: Digest, *, is_for_replica: bool) -> Descriptor:
        """Whether a repository has a blob, and its size; nothing is fetched.

        Raises:
            ImageStoreError: it isn't there, or that can't be told in time.
        """

        def look(store: ImageStore) -> tuple[Descriptor | None, bool]:
            known = self._catalogue.known(repository.upstream.name, repository.name, digest)
            if known is None:
                return None, False
            return known.descriptor, known.is_earned and self._stored.has(store, known.descriptor)

        known, is_here = await self._quick(look, str(digest))
        if known is not None and (is_here or not self.upstreams.settings.is_offline):
            return known
        return await self._ask_for_size(repository, digest, is_for_replica=is_for_replica)

    async def tags(self, repository: Repository) -> tuple[str, ...]:
        """See ListSource.tags()."""
        return await self._lists.tags(self.upstreams, repository)

    async def referrers(self, repository: Repository, digest: Digest, artifact_type: str) -> Referrers:
        """See ListSource.referrers()."""
        return await self._lists.referrers(self.upstreams, repository, digest, artifact_type)

    async def names(self, *, with_private: bool) -> tuple[str, ...]:
        """The repositories that have something here, those of private upstreams only where they may be told."""
        shown = [
            each.name for each in self.upstreams.settings.upstreams.values() if with_private or not each.is_private
        ]
        found = await self._quick(
            lambda _: [name for each in shown for name in self._catalogue.names(each)], "the catalogue"
        )
        return tuple(sorted(found))

    def usage(self) -> dict[str, tuple[int, int | None]]:
        """What each upstream's content takes, and may take, in bytes; from any thread."""
        table = self.upstreams.settings.upstreams
        used = self._catalogue.used_bytes()
        return {
            name: (used.get(name, 0), table[name].quota_bytes if name in table else None) for name in {*table, *used}
        }

    async def close(self) -> None:
        """End what is under way; unfinished fetches stay on disk and are resumed."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await self._shared.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.upstreams.close)
        await asyncio.to_thread(self._backing.close)

    def _look(
        self, repository: Repository, digest: Digest, store: ImageStore
    ) -> tuple[Descriptor | None, BlobSource | None]:
        """What is known of a blob, and the blob where it is here, whole, and its upstream has it."""
        known = self._catalogue.known(repository.upstream.name, repository.name, digest)
        if known is None or not known.is_earned:
            return known.descriptor if known is not None else None, None
        try:
            # None: damaged, or wrongly described. A fetch finds out which.
            return known.descriptor, self._stored.open(store, known.descriptor)
        except ContentNotFoundError:
            self._catalogue.forget_content(digest, lambda: not store.content.exists(digest))
            return known.descriptor, None

    async def _ask_for_size(self, repository: Repository, digest: Digest, *, is_for_replica: bool) -> Descriptor:
        """Whether a blob's upstream has it, by its own word; what is known of it is noted."""
        self.upstreams.refuse_offline(str(digest))
        upstreams, upstream, reference = self.upstreams, repository.upstream, repository.reference(str(digest))
        owner = upstreams.owner(str(digest), is_for_replica=is_for_replica)

        def ask(store: ImageStore, token: CancelToken) -> Descriptor:
            def find(client: RegistryClient, part: CancelToken) -> Descriptor:
                return client.find_blob(reference, digest, cancel=part)

            found, _ = upstreams.ask(upstream, owner, find, cancel=token)
            self._catalogue.put_document(upstream.name, repository.name, found, (), is_here=False)
            self._keeper.hold(store, upstream.name, [digest])
            here = store.content.find(digest)
            if here is not None and here.size == found.size:
                self._catalogue.put_document(upstream.name, repository.name, found, ())
            return found

        return await self._shared.once(("blob", repository.name, str(digest), owner), upstream, ask, owner=owner)

    async def _prefetch(self, repository: Repository, reference: Reference, index: ServedDocument) -> None:
        """Fetch what the table's handlers and platforms choose of an index."""
        upstreams, upstream = self.upstreams, repository.upstream

        def choose(store: ImageStore, token: CancelToken) -> tuple[Descriptor, ...]:
            return wanted_manifests(store, upstream, reference, index, upstreams.client(upstream, ""), token)

        try:
            for manifest in await self._shared.once(("prefetch", str(reference)), upstream, choose):
                by_digest = repository.reference(str(manifest.digest))
                found, _ = await self._found_document(repository, by_digest, is_for_replica=False)
                for part in await asyncio.to_thread(self._documents.parts, found):
                    if part.kind is not Kind.FOREIGN_LAYER:
                        blob, _ = await self._found_blob(repository, part.digest, is_for_replica=False)
                        blob.close()
        except ImageStoreError as error:
            log.warning("prefetch failed: %s", error, extra={"reference": str(reference)})

    async def _looked(self, repository: Repository, digest: Digest) -> tuple[Descriptor | None, BlobSource | None]:
        """See _look(); what comes too late is closed."""
        looking = self._loop.create_task(self._workers.quick(functools.partial(self._look, repository, digest)))
        try:
            return await self._shared.in_time(asyncio.shield(looking), str(digest))
        except BaseException:
            looking.add_done_callback(_close_found)
            raise

    async def _quick(self, work: Callable[[ImageStore], T], what: str) -> T:
        """Ask what is remembered and what is here, no longer than an answer may take: a database may stand still."""
        return await self._shared.in_time(self._workers.quick(work), what)

    async def _renew(self) -> None:
        """Keep what is reserved, for as long as this runs."""
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            try:
                await self._workers.quick(lambda _: self._keeper.renew())
            except ImageStoreError as error:
                log.warning("what is reserved can't be renewed: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _close_later(self, upstreams: Upstreams, fills: list[Fill]) -> None:
        for fill in fills:
            await fill.ended()
        await asyncio.to_thread(upstreams.close)


def _close_found(looking: asyncio.Task[tuple[Descriptor | None, BlobSource | None]]) -> None:
    if not looking.cancelled() and looking.exception() is None:
        _, stored = looking.result()
        if stored is not None:
            stored.close()


def _opener_of(store: ImageStore) -> Opener:
    if not store.is_shared:
        return open_backing
    # Its libraries are extras, which most mirrors don't have.
    from imagestore.mirror.shared_backing import open_shared_backing

    return open_shared_backing


def _result_of(error: ImageStoreError) -> str:
    return "missing" if isinstance(error, ReferenceNotFoundError) else "failed"
