"""Answers requests for blobs: from the store if the upstream confirmed the blob, else by one fetch for all clients."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING

from imagestore.errors import ContentNotFoundError, ImageStoreError, IntegrityError, ReferenceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.mirror.blobs import BlobSource, StoreBlobs
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.mirror.fetching import BlobFetcher
    from imagestore.mirror.retention import Retention
    from imagestore.mirror.sharing import SharedWork
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.registry import RegistryClient
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken


def result_of(error: ImageStoreError) -> str:
    """What a failed request is counted as."""
    return "missing" if isinstance(error, ReferenceNotFoundError) else "failed"


class BlobRequests:
    """Finds blobs for clients; its methods are the event loop's.

    Args:
        workers: lends the store.
        shared: asks upstreams.
        catalogue: knows what is here.
        retention: leases it.
        counters: of requests.
        stored: opens blobs of the store.
        fetcher: fetches the others.
        note_use: called for each blob of a repository that is served.
    """

    def __init__(
        self,
        workers: StoreWorkers,
        shared: SharedWork,
        catalogue: Catalogue,
        retention: Retention,
        counters: MirrorCounters,
        stored: StoreBlobs,
        fetcher: BlobFetcher,
        note_use: Callable[[Repository, Digest], None],
    ) -> None:
        self._workers = workers
        self._shared = shared
        self._catalogue = catalogue
        self._retention = retention
        self._counters = counters
        self._stored = stored
        self._fetcher = fetcher
        self._note_use = note_use

    async def open(self, repository: Repository, digest: Digest) -> BlobSource:
        """A blob of a repository, open in the store or being fetched; close it.

        Raises:
            ImageStoreError: the upstream doesn't have it, or it didn't come in time.
        """
        name = repository.upstream.name
        try:
            found, result = await self.open_uncounted(repository, digest)
        except ImageStoreError as error:
            self._counters.count_request(name, "blob", result_of(error))
            raise
        self._counters.count_request(name, "blob", result)
        self._note_use(repository, digest)
        return found

    async def open_uncounted(self, repository: Repository, digest: Digest) -> tuple[BlobSource, str]:
        """As ``open``, with the result to count."""
        known, stored = await self._looked(repository, digest)
        if known is None:
            await self._confirmed(repository, digest)
            known, stored = await self._looked(repository, digest)
            if known is None:
                raise ReferenceNotFoundError(f"{digest}: was removed from the catalogue during the request")
        if stored is not None and await self._has_begun(stored):
            return stored, "hit"
        repository.table.refuse_offline(str(digest))
        fill, is_joined = await self._fetcher.begun(repository, known)
        if not fill.is_verified:
            # Without an await in between: a fill that ends without readers closes its file.
            return fill.reader(), "joined" if is_joined else "fetched"
        if fill.was_here:
            # Another upstream or a pull brought it; whether this upstream has it too, only the upstream can say.
            await self._confirmed(repository, digest)
        _, stored = await self._looked(repository, digest)
        if stored is None or not await self._has_begun(stored):
            raise ReferenceNotFoundError(f"{digest}: was evicted during the request")
        return stored, "hit" if fill.was_here else "joined" if is_joined else "fetched"

    async def location(self, repository: Repository, digest: Digest) -> str:
        """A URL of the bucket to redirect a client to; empty if the mirror has to answer itself."""
        if not self._stored.redirects:
            return ""

        def _look(_: ImageStore) -> str:
            upstream = repository.upstream.name
            known = self._catalogue.known(upstream, repository.name, digest)
            is_confirmed = known is not None and known.is_confirmed
            return self._stored.location(upstream, known.descriptor) if known is not None and is_confirmed else ""

        found = await self._shared.quick(_look, str(digest))
        if found:
            self._counters.count_request(repository.upstream.name, "blob", "redirected")
            self._note_use(repository, digest)
        return found

    async def find(self, repository: Repository, digest: Digest) -> Descriptor:
        """The size of a blob, for HEAD; nothing is fetched.

        Raises:
            ImageStoreError: the upstream doesn't have it, or didn't answer in time.
        """

        def _look(store: ImageStore) -> tuple[Descriptor | None, bool]:
            known = self._catalogue.known(repository.upstream.name, repository.name, digest)
            if known is None:
                return None, False
            return known.descriptor, known.is_confirmed and self._stored.has(store, known.descriptor)

        known, is_here = await self._shared.quick(_look, str(digest))
        if known is not None and (is_here or not repository.table.settings.is_offline):
            return known
        return await self._confirmed(repository, digest)

    async def _has_begun(self, stored: BlobSource) -> bool:
        """Wait until a blob of the store can be sent; False if it is gone or damaged, and has to be fetched.

        Raises:
            ImageStoreError: it can't be read, or not in time.
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

    async def _looked(self, repository: Repository, digest: Digest) -> tuple[Descriptor | None, BlobSource | None]:
        """See _look(); a blob that is opened too late is closed."""
        work = functools.partial(self._look, repository, digest)
        looking = asyncio.get_running_loop().create_task(self._workers.quick(work))
        try:
            return await self._shared.in_time(asyncio.shield(looking), str(digest))
        except BaseException:
            looking.add_done_callback(_close_found)
            raise

    def _look(
        self, repository: Repository, digest: Digest, store: ImageStore
    ) -> tuple[Descriptor | None, BlobSource | None]:
        """What is known of a blob, and the open blob if it is here, whole, and confirmed by its upstream."""
        known = self._catalogue.known(repository.upstream.name, repository.name, digest)
        if known is None or not known.is_confirmed:
            return known.descriptor if known is not None else None, None
        try:
            # None if it is damaged, or its size was stated wrongly. A fetch finds out which.
            return known.descriptor, self._stored.open(store, known.descriptor)
        except ContentNotFoundError:
            self._catalogue.forget_content(digest, lambda: not store.content.exists(digest))
            return known.descriptor, None

    async def _confirmed(self, repository: Repository, digest: Digest) -> Descriptor:
        """Ask the upstream whether it has a blob, and note its answer."""
        repository.table.refuse_offline(str(digest))
        upstream, reference = repository.upstream, repository.reference(str(digest))
        owner = repository.owner(str(digest))

        def _find(client: RegistryClient, part: CancelToken) -> Descriptor:
            return client.find_blob(reference, digest, cancel=part)

        def _ask(store: ImageStore, token: CancelToken) -> Descriptor:
            found, _ = repository.table.ask(upstream, owner, _find, cancel=token)
            put = functools.partial(
                self._catalogue.put_document, upstream.name, repository.name, found, (), now=time.time()
            )
            put(is_here=False)
            self._retention.hold(store, upstream.name, [digest])
            here = store.content.find(digest)
            if here is not None and here.size == found.size:
                put(is_here=True)
                # Again: since it was leased, an eviction might have taken it from the lease.
                self._retention.hold(store, upstream.name, [digest])
            self._retention.release_unwanted(store, upstream.name, [digest])
            return found

        return await self._shared.once(("blob", repository.name, str(digest), owner), upstream, _ask, owner=owner)


def _close_found(looking: asyncio.Task[tuple[Descriptor | None, BlobSource | None]]) -> None:
    if not looking.cancelled() and looking.exception() is None:
        _, stored = looking.result()
        if stored is not None:
            stored.close()
