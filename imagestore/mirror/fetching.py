"""Fetches blobs for a mirror: each once, from its owner, the bucket or the upstream, within quotas."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ImageStoreError,
    IntegrityError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    ServerError,
    SizeMismatchError,
)
from imagestore.mirror.fill import Fill
from imagestore.mirror.transfer import Source, fetch

if TYPE_CHECKING:
    from imagestore.mirror.blobs import StoreBlobs
    from imagestore.mirror.bucket import MirrorBucket
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.confirmations import Confirmations
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.mirror.retention import Retention
    from imagestore.mirror.settings import Upstream
    from imagestore.mirror.sharing import SharedWork
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci import Descriptor, Digest
    from imagestore.store import ImageStore, StoreWorkers
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

#: A blob may be queued so long behind others of its upstream that make progress.
_QUEUE_SECONDS: Final = 60.0
#: An upstream that hasn't begun to send by then is given up, so that the next blob gets its turn.
_OPENING_SECONDS: Final = 30.0
#: Content of which an upstream sent wrong bytes isn't asked for again for so long.
_DISTRUST_SECONDS: Final = 30.0
_MOST_DISTRUSTED: Final = 10_000

#: Upstream, digest and size of a blob, and the replica that is asked first.
_Key = tuple[str, "Digest", int, str]


class BlobFetcher:
    """Fetches blobs, each once at a time; its methods are the event loop's."""

    def __init__(
        self,
        workers: StoreWorkers,
        shared: SharedWork,
        catalogue: Catalogue,
        confirmations: Confirmations,
        retention: Retention,
        counters: MirrorCounters,
        stored: StoreBlobs,
        bucket: MirrorBucket | None,
    ) -> None:
        self._workers = workers
        self._shared = shared
        self._catalogue = catalogue
        self._confirmations = confirmations
        self._retention = retention
        self._counters = counters
        self._stored = stored
        self._bucket = bucket
        self._loop = asyncio.get_running_loop()
        self._fills: dict[_Key, Fill] = {}
        #: When bytes last came to a queue, in the loop's time; written by the fetching threads.
        self._advanced: dict[str, float] = {}
        self._distrusted: dict[tuple[str, Digest, int], float] = {}

    def under_way(self) -> list[Fill]:
        """The fetches that aren't over."""
        return [fill for fill in self._fills.values() if not fill.is_over]

    def is_of_another(self, repository: Repository, blob: Descriptor) -> bool:
        """Whether ``begun`` would give the fetch of another repository: only a confirmed one may read along."""
        return any(fill.repository != repository.name for fill in self._live(repository, blob).values())

    def _live(self, repository: Repository, blob: Descriptor) -> dict[_Key, Fill]:
        key = (repository.upstream.name, blob.digest, blob.size)
        return {each: fill for each, fill in self._fills.items() if each[:3] == key and not fill.is_over}

    async def begun(self, repository: Repository, blob: Descriptor) -> tuple[Fill, bool]:
        """The fetch of a blob, once its source sends, and whether it was under way already; repositories share it.

        Either the repository's registry is known to have the blob, or not ``is_of_another``.

        Raises:
            ImageStoreError: it failed, or didn't begin in time.
        """
        self._refuse_distrusted(repository.upstream, blob)
        fill, is_joined = self._fill(repository, blob, self._live(repository, blob))
        try:
            await self._begun(fill)
        except ImageStoreError:
            if fill.error is None or fill.repository == repository.name:
                raise
            # The other repository doesn't have the blob, which says nothing about this one.
            live = {
                key: each for key, each in self._live(repository, blob).items() if each.repository == repository.name
            }
            fill, is_joined = self._fill(repository, blob, live)
            await self._begun(fill)
        return fill, is_joined

    def _refuse_distrusted(self, upstream: Upstream, blob: Descriptor) -> None:
        if self._loop.time() < self._distrusted.get((upstream.name, blob.digest, blob.size), 0.0):
            raise ReferenceNotFoundError(f"{blob.digest}: its upstream sent wrong content a moment ago")

    def _fill(self, repository: Repository, blob: Descriptor, live: dict[_Key, Fill]) -> tuple[Fill, bool]:
        """One of the live fetches, or a new one; and whether it is joined."""
        upstream = repository.upstream
        # A fetch for another replica doesn't join one that waits for a replica: both would wait for each other.
        owner = repository.owner(str(blob.digest))
        key = (upstream.name, blob.digest, blob.size, owner)
        joined = live.get(key) or (None if repository.is_for_replica else next(iter(live.values()), None))
        if joined is not None:
            return joined, True
        fill = self._fills[key] = Fill(blob, self._loop, _queue_of(upstream, owner), repository.name)
        work = functools.partial(self._fetch, fill, repository, owner)
        threads = self._shared.threads(upstream)
        future = self._loop.run_in_executor(threads.replica_fetchers if owner else threads.fetchers, work)
        future.add_done_callback(functools.partial(self._ended, key, fill))
        return fill, False

    def _ended(self, key: _Key, fill: Fill, future: asyncio.Future[ImageStoreError | None]) -> None:
        if self._fills.get(key) is fill:
            del self._fills[key]
        if not future.cancelled() and isinstance(future.result(), IntegrityError):
            if len(self._distrusted) >= _MOST_DISTRUSTED:
                self._distrusted.clear()
            self._distrusted[key[:3]] = self._loop.time() + _DISTRUST_SECONDS

    async def _begun(self, fill: Fill) -> None:
        """Wait in the queue as long as others in it make progress, then an answer's time for the first byte.

        Raises:
            ImageStoreError: it failed, or didn't begin in time.
        """
        since, patience = self._loop.time(), self._shared.answer_seconds()
        while not fill.is_started and not fill.is_over:
            until = min(since + _QUEUE_SECONDS, max(since, self._advanced.get(fill.queue, since)) + patience)
            if self._loop.time() >= until:
                raise RegistryUnavailableError(f"{fill.descriptor.digest}: its upstream is busy with other blobs")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await fill.started()
        await self._shared.in_time(fill.begun(), str(fill.descriptor.digest))

    def _fetch(self, fill: Fill, repository: Repository, owner: str) -> ImageStoreError | None:
        """Fetch a blob, in a thread; a failure is returned, and raised in the readers."""
        fill.tell(fill.start)
        failure: ImageStoreError
        try:
            with self._workers.lend() as store, self._shared.operations.joined(None) as token:
                self._fetch_into(store, fill, repository, owner, token)
            return None
        except ImageStoreError as error:
            failure = error
        except Exception as error:
            log.exception("a fetch failed")
            failure = ServerError(f"fetching {fill.descriptor.digest} failed: {error!r}")
        fill.tell(fill.finish, failure)
        return failure

    def _fetch_into(
        self, store: ImageStore, fill: Fill, repository: Repository, owner: str, token: CancelToken
    ) -> None:
        upstream, blob = repository.upstream, fill.descriptor
        self._retention.hold(store, upstream.name, [blob.digest])
        try:
            with self._retention.room(store, upstream, blob, is_here=store.content.exists(blob.digest)):
                is_here = self._is_here(store, repository, blob, owner, token)
                is_new = not is_here and self._fetched(store, fill, repository, owner, token)
                # Another fetch may have brought it since the look.
                if not (is_here or is_new or self._is_here(store, repository, blob, owner, token)):
                    raise ReferenceNotFoundError(f"{blob.digest}: was evicted during the request")
                self._catalogue.put_blob(upstream.name, repository.name, blob, now=time.time())
        except IntegrityError:
            self._catalogue.distrust(repository.name, blob.digest)
            raise
        finally:
            # If it failed, or what names it was evicted before it was leased.
            self._retention.release_unwanted(store, upstream.name, [blob.digest])
        if is_new:
            if self._bucket is not None:
                self._bucket.publish(upstream.name, blob)
            fill.tell(fill.finish, None)
        else:
            fill.tell(fill.find_here)

    def _is_here(
        self, store: ImageStore, repository: Repository, blob: Descriptor, owner: str, token: CancelToken
    ) -> bool:
        """Whether a blob of the repository is in the store already; a damaged one is deleted.

        Raises:
            RegistryError: something of this digest is in the store, and the repository's registry doesn't have it.
            SizeMismatchError: the blob in the store has another size.
        """
        here = store.content.find(blob.digest)
        if here is None:
            return False
        # Before anything is said of it, its size included.
        self._confirmations.ensure(store, repository, blob.digest, owner=owner, cancel=token)
        if here.size == blob.size:
            return True
        if store.content.delete_damaged(blob.digest):
            raise SizeMismatchError(str(blob.digest), expected=blob.size, actual=here.size)
        self._catalogue.forget_content(blob.digest, lambda: not store.content.exists(blob.digest))
        return False

    def _fetched(self, store: ImageStore, fill: Fill, repository: Repository, owner: str, token: CancelToken) -> bool:
        """Fetch a blob; False if another fetch brought it."""
        blob = fill.descriptor
        # Unverified bytes of one repository aren't shared with another one. An ingest from a replica has its own name,
        # or two replicas would wait for each other's ingests.
        ref = f"mirror/{repository.name}/{'replica' if owner else 'upstream'}/{blob.size}/{blob.digest}"
        sources = self._sources(store, repository, blob, owner, token)
        # Again: before it was reserved, an eviction might have taken it from the lease.
        self._retention.hold(store, repository.upstream.name, [blob.digest])
        return fetch(
            fill,
            ref=ref,
            content=store.content,
            sources=sources,
            reference=repository.reference(str(blob.digest)),
            cancel=token,
            keep=functools.partial(self._stored.keep, blob),
        )

    def _sources(
        self, store: ImageStore, repository: Repository, blob: Descriptor, owner: str, token: CancelToken
    ) -> list[Source]:
        """Its owner, if that is another replica; the bucket, if the upstream has the blob; the upstream."""
        upstreams, upstream = repository.table, repository.upstream
        queue = _queue_of(upstream, owner)

        def _received(count: int) -> None:
            self._advanced[queue] = self._loop.time()
            self._counters.count("fetched_bytes", upstream.name, count)
            upstreams.throttle(upstream, count, cancel=token)

        def _replicated(count: int) -> None:
            self._advanced[queue] = self._loop.time()
            upstreams.note_success(owner)
            self._counters.count("replicated_bytes", upstream.name, count)

        def _read(count: int) -> None:
            self._advanced[queue] = self._loop.time()
            self._counters.count("bucket_read_bytes", upstream.name, count)

        def _confirm() -> None:
            with token.child(deadline_seconds=_OPENING_SECONDS) as part:
                self._confirmations.ensure(store, repository, blob.digest, owner="", cancel=part)

        found = []
        if owner:
            client, seconds = upstreams.client(upstream, owner), upstreams.owner_seconds
            found.append(Source(client, _replicated, seconds, lambda: upstreams.note_failure(owner)))
        if self._bucket is not None:
            found.append(Source(self._bucket, _read, before=_confirm))
        admit = functools.partial(upstreams.admit, upstream, cancel=token)
        client = upstreams.client(upstream, "")
        return [*found, Source(client, _received, opening_seconds=_OPENING_SECONDS, before=admit)]


def _queue_of(upstream: Upstream, owner: str) -> str:
    return f"{upstream.name} {'replicas' if owner else ''}"
