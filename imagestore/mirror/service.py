"""A mirror: opens its state, serves one table of upstreams, and answers requests for documents.

A client gets its answer in time, and each thing is fetched once for all clients. Blocking work runs in threads, so
transfers delay neither quick answers nor the other services of the process.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, RateLimitedError, ReferenceNotFoundError, RegistryUnavailableError
from imagestore.mirror.backing import open_backing
from imagestore.mirror.blob_requests import BlobRequests, result_of
from imagestore.mirror.confirmations import Confirmations
from imagestore.mirror.counters import MirrorCounters
from imagestore.mirror.documents import DocumentSource, named_by, wanted_manifests
from imagestore.mirror.fetching import BlobFetcher
from imagestore.mirror.lists import ListSource
from imagestore.mirror.retention import RESERVED_SECONDS, RecentUses, Retention
from imagestore.mirror.settings import MIRROR_PLUGIN
from imagestore.mirror.sharing import SharedWork
from imagestore.mirror.upstreams import Upstreams
from imagestore.oci import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from imagestore.mirror.backing import Backing
    from imagestore.mirror.documents import ServedDocument
    from imagestore.mirror.fill import Fill
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci import Descriptor, Digest, Reference
    from imagestore.store import ImageStore, StoreWorkers
    from imagestore.util.cancel import CancelToken

    Opener = Callable[[ImageStore, StoreWorkers, MirrorCounters, asyncio.AbstractEventLoop], Backing]

log = logging.getLogger(__name__)

#: Where the root remembers hosts that don't answer.
STATE_FOLDER: Final = "hosts"
#: An upstream that didn't answer for a reference isn't asked again for so long, if a stale document can be served.
_REST_SECONDS: Final = 10.0
_MOST_RESTING: Final = 10_000
#: Several renewals before other replicas take this one for dead.
_RENEWAL_SECONDS: Final = RESERVED_SECONDS / 5


class Mirror:
    """Serves one table of upstreams from one store; its methods are the event loop's. Close it.

    Args:
        workers: lends the store.
        opener: opens the mirror's state, in a thread; by default what fits the store.

    Attributes:
        upstreams: the table.
        counters: for metrics.
        blobs: answers requests for blobs.
        lists: answers requests for tags and referrers.
    """

    def __init__(self, workers: StoreWorkers, *, opener: Opener | None = None) -> None:
        self.upstreams: Upstreams
        self.blobs: BlobRequests
        self.lists: ListSource
        self.counters = MirrorCounters()
        self._opener = opener
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._shared = SharedWork(workers, lambda: self.upstreams.settings.answer_seconds)
        self._resting: dict[str, float] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the mirror's state.

        Raises:
            StoreError: it can't be opened; StoreBusyError if another mirror has it open.
        """
        self._backing = backing = await self._workers.quick(
            lambda store: (self._opener or _opener_of(store))(store, self._workers, self.counters, self._loop)
        )
        try:
            self._catalogue = backing.catalogue
            # A replica that shares its catalogue has a new name at each start: what it reserved before ends by itself.
            owner = "" if backing.is_alone else secrets.token_hex(8)
            self._retention = Retention(self._catalogue, self.counters, owner=owner)
            self._documents = DocumentSource(self._catalogue, self._retention, self.counters, backing.stored)
            self._uses = RecentUses(self._workers, self._catalogue)
            self.lists = ListSource(self._shared, self._catalogue)
            await self._workers.quick(self._open_table)
            await self._workers.quick(lambda store: self._retention.start(store, is_alone=backing.is_alone))
        except BaseException:
            await asyncio.to_thread(backing.close)
            raise
        confirmations = Confirmations(self._catalogue, self._retention)
        common = (self._workers, self._shared, self._catalogue, confirmations)
        self._fetcher = BlobFetcher(*common, self._retention, self.counters, backing.stored, backing.bucket)
        self.blobs = BlobRequests(*common, self.counters, backing.stored, self._fetcher, self._note_use)
        self._spawn(self._renew())

    def _open_table(self, store: ImageStore) -> None:
        # Other replicas may still serve upstreams that this one's new table lacks.
        if self._backing.is_alone:
            self._retention.forget_others(store, store.config.plugin(MIRROR_PLUGIN).upstreams)
        self.upstreams = Upstreams(store.config, str(store.root / STATE_FOLDER))

    async def reload(self) -> None:
        """Serve the table of the store's configuration from now on; fetches under way end as they began.

        Raises:
            StoreError: leases can't be changed.
        """
        before, fills = self.upstreams, self._fetcher.under_way()
        await self._workers.quick(self._open_table)
        before.replace_by(self.upstreams)
        self.lists.forget()
        self._resting.clear()
        self._spawn(self._close_later(before, fills))

    async def document(self, repository: Repository, reference: Reference) -> ServedDocument:
        """An index or a manifest.

        Raises:
            ImageStoreError: the upstream doesn't have it, or didn't answer in time.
        """
        name = repository.upstream.name
        try:
            found, result = await self._found_document(repository, reference)
        except ImageStoreError as error:
            self.counters.count_request(name, "manifest", result_of(error))
            raise
        self.counters.count_request(name, "manifest", result)
        self._note_use(repository, found.descriptor.digest)
        selects = repository.upstream.handlers or repository.upstream.platforms
        if result == "fetched" and selects and not repository.is_for_replica and reference.digest is None:
            self._spawn(self._prefetch(repository, reference, found))
        return found

    async def _found_document(self, repository: Repository, reference: Reference) -> tuple[ServedDocument, str]:
        """A document, and the result to count."""
        upstream, text = repository.upstream, str(reference)
        cached = await self._shared.quick(lambda store: self._documents.cached(store, repository, reference), text)
        if cached is not None and not cached.freshness.is_stale:
            return cached, "hit"
        repository.table.refuse_offline(text)
        stale = cached if upstream.serve_stale else None
        if stale is not None and self._loop.time() < self._resting.get(text, 0.0):
            return stale, "stale"
        owner = repository.owner(str(reference.digest or reference))
        known = cached.descriptor if cached is not None else None

        def _ask(store: ImageStore, token: CancelToken) -> ServedDocument:
            return self._documents.ask(store, repository, reference, owner=owner, known=known, cancel=token)

        key = ("document", text, owner)
        is_joined = self._shared.is_asked(key)
        # With a stale document to serve, a client needn't wait the whole answer time. A replica waits half of it.
        share = 1.0 if stale is None else 0.25 if repository.is_for_replica else 0.5
        try:
            found = await self._shared.once(key, upstream, _ask, owner=owner, share=share)
        except ReferenceNotFoundError:
            raise
        except ImageStoreError as error:
            if stale is None:
                raise
            if isinstance(error, RegistryUnavailableError | RateLimitedError):
                self._rest(text)
            log.warning("%s is stale: %s", reference, error, extra={"upstream": upstream.name})
            return stale, "stale"
        self._resting.pop(text, None)
        if found.freshness.is_stale:
            stale = stale or found
            return min(stale, found, key=lambda each: each.freshness.age_seconds), "stale"
        return found, "hit" if not found.is_new else "joined" if is_joined else "fetched"

    def _rest(self, reference: str) -> None:
        if len(self._resting) >= _MOST_RESTING:
            self._resting.clear()
        self._resting[reference] = self._loop.time() + _REST_SECONDS

    async def names(self, *, with_private: bool) -> tuple[str, ...]:
        """The repositories that have content here; those of private upstreams only if asked for."""
        table = self.upstreams.settings.upstreams.values()
        shown = [each.name for each in table if with_private or not each.private]
        found = await self._shared.quick(
            lambda _: [name for each in shown for name in self._catalogue.names(each)], "the catalogue"
        )
        return tuple(sorted(found))

    def usage(self) -> dict[str, tuple[int, int | None]]:
        """The size of each upstream's content, and its quota or None, in bytes; callable from any thread."""
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

    async def _prefetch(self, repository: Repository, reference: Reference, index: ServedDocument) -> None:
        """Fetch the manifests that the upstream's handlers and platforms choose of an index, and their blobs."""
        upstream = repository.upstream

        def _choose(store: ImageStore, token: CancelToken) -> tuple[Descriptor, ...]:
            return wanted_manifests(store, upstream, reference, index, repository.table.client(upstream, ""), token)

        try:
            for manifest in await self._shared.once(("prefetch", str(reference)), upstream, _choose):
                by_digest = repository.reference(str(manifest.digest))
                found, _ = await self._found_document(repository, by_digest)
                for part in await asyncio.to_thread(named_by, found.descriptor, found.raw):
                    if part.kind is not Kind.FOREIGN_LAYER:
                        blob, _ = await self.blobs.open_uncounted(repository, part.digest)
                        blob.close()
        except ImageStoreError as error:
            log.warning("prefetch failed: %s", error, extra={"reference": str(reference)})

    async def _renew(self) -> None:
        """Renew reservations for as long as the mirror runs."""
        while True:
            await asyncio.sleep(_RENEWAL_SECONDS)
            try:
                await self._workers.quick(lambda _: self._retention.renew_reservations())
            except ImageStoreError as error:
                log.warning("reservations can't be renewed: %s", error)

    def _note_use(self, repository: Repository, digest: Digest) -> None:
        self._spawn(self._uses.note(repository.name, digest))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _close_later(self, upstreams: Upstreams, fills: list[Fill]) -> None:
        for fill in fills:
            await fill.ended()
        await asyncio.to_thread(upstreams.close)


def _opener_of(store: ImageStore) -> Opener:
    if not store.is_shared:
        return open_backing
    # Its libraries are extras, which most mirrors don't have.
    from imagestore.mirror.shared_backing import open_shared_backing

    return open_shared_backing
