"""Answers requests for blobs: from the store if the repository's registry has the blob, else by one fetch for all."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from imagestore.errors import ContentNotFoundError, ImageStoreError, IntegrityError, ReferenceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.mirror.blobs import BlobSource, StoreBlobs
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.catalogue_values import KnownContent
    from imagestore.mirror.confirmations import Confirmations
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.mirror.fetching import BlobFetcher
    from imagestore.mirror.sharing import SharedWork
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci import Descriptor, Digest
    from imagestore.store import ImageStore, StoreWorkers
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
        confirmations: that registries have it.
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
        confirmations: Confirmations,
        counters: MirrorCounters,
        stored: StoreBlobs,
        fetcher: BlobFetcher,
        note_use: Callable[[Repository, Digest], None],
    ) -> None:
        self._workers = workers
        self._shared = shared
        self._catalogue = catalogue
        self._confirmations = confirmations
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
        if not known.is_confirmed and self._fetcher.is_of_another(repository, known.descriptor):
            await self._confirmed(repository, digest)
        fill, is_joined = await self._fetcher.begun(repository, known.descriptor)
        if not fill.is_verified:
            # Without an await in between: a fill that ends without readers closes its file.
            return fill.reader(), "joined" if is_joined else "fetched"
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

        def _look(store: ImageStore) -> Descriptor | None:
            known = self._catalogue.known(repository.upstream.name, repository.name, digest)
            if known is None or not known.is_confirmed:
                return None
            is_online = not repository.table.settings.offline
            return known.descriptor if is_online or self._stored.has(store, known.descriptor) else None

        found = await self._shared.quick(_look, str(digest))
        if found is None:
            await self._confirmed(repository, digest)
            found = await self._shared.quick(_look, str(digest))
        if found is None:
            raise ReferenceNotFoundError(f"{digest}: was removed from the catalogue during the request")
        return found

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

    async def _looked(self, repository: Repository, digest: Digest) -> tuple[KnownContent | None, BlobSource | None]:
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
    ) -> tuple[KnownContent | None, BlobSource | None]:
        """What is known of a blob, and the open blob if the repository's registry has it, and it is here and whole."""
        known = self._catalogue.known(repository.upstream.name, repository.name, digest)
        if known is None or not (known.is_confirmed and known.is_here):
            return known, None
        try:
            # None if it is damaged. A fetch repairs it.
            return known, self._stored.open(store, known.descriptor)
        except ContentNotFoundError:
            self._catalogue.forget_content(digest, lambda: not store.content.exists(digest))
            return known, None

    async def _confirmed(self, repository: Repository, digest: Digest) -> None:
        """Ask the repository's registry whether it has a blob, and note its answer.

        Raises:
            ImageStoreError: it doesn't have it, or didn't answer in time.
        """
        repository.table.refuse_offline(str(digest))
        owner = repository.owner(str(digest))

        def _ask(store: ImageStore, token: CancelToken) -> None:
            self._confirmations.ensure(store, repository, digest, owner=owner, cancel=token)

        key = ("blob", repository.name, str(digest), owner)
        await self._shared.once(key, repository.upstream, _ask, owner=owner)


def _close_found(looking: asyncio.Task[tuple[KnownContent | None, BlobSource | None]]) -> None:
    if not looking.cancelled() and looking.exception() is None:
        _, stored = looking.result()
        if stored is not None:
            stored.close()
