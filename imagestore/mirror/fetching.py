"""Fetches blobs for a mirror: each once, from the replica that owns it or from its upstream, within quotas."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
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
    from imagestore.config.model import Upstream
    from imagestore.mirror.blobs import StoreBlobs
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.keeping import Keeper
    from imagestore.mirror.numbers import MirrorNumbers
    from imagestore.mirror.second_tier import SecondTier
    from imagestore.mirror.sharing import SharedWork
    from imagestore.mirror.upstreams import Repository, Upstreams
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

#: A blob may wait so long for others of its upstream that do come; its own first byte then has an answer's time.
_LINE_SECONDS: Final = 60.0
#: An upstream that hasn't begun to send by then is given up, so that the next blob can try.
_OPENING_SECONDS: Final = 30.0
#: Content that an upstream sent wrong isn't asked for again for so long.
_DISTRUST_SECONDS: Final = 30.0
_MOST_DISTRUSTED: Final = 10_000

#: Upstream, digest and size of a blob, and the replica that is asked first.
_Key = tuple[str, "Digest", int, str]


class BlobFetcher:
    """Fetches, and knows what is on its way; its methods are the event loop's.

    Args:
        workers: lends the store.
        shared: has the threads.
        catalogue: hears of what came.
        keeper: holds it, and makes room.
        numbers: hears of bytes.
        stored: hears of what came into the store.
        second: the bucket behind the disk; None for none.
    """

    def __init__(
        self,
        workers: StoreWorkers,
        shared: SharedWork,
        catalogue: Catalogue,
        keeper: Keeper,
        numbers: MirrorNumbers,
        stored: StoreBlobs,
        second: SecondTier | None,
    ) -> None:
        self._workers = workers
        self._shared = shared
        self._catalogue = catalogue
        self._keeper = keeper
        self._numbers = numbers
        self._stored = stored
        self._second = second
        self._loop = asyncio.get_running_loop()
        self._fills: dict[_Key, Fill] = {}
        #: When something last came to a line, in the loop's time; written by the fetching threads.
        self._advanced: dict[str, float] = {}
        self._distrusted: dict[tuple[str, Digest, int], float] = {}

    def under_way(self) -> list[Fill]:
        """What is being fetched."""
        return [fill for fill in self._fills.values() if not fill.is_over]

    async def begun(
        self, upstreams: Upstreams, repository: Repository, blob: Descriptor, *, is_for_replica: bool
    ) -> tuple[Fill, bool]:
        """The fetch of a blob, once its bytes come, and whether it was going on already; repositories share it.

        Raises:
            ImageStoreError: it doesn't come, or not in time.
        """
        self._refuse_distrusted(repository.upstream, blob)
        fill, is_joined = self._fill(upstreams, repository, blob, is_for_replica=is_for_replica)
        await self._begun(fill)
        return fill, is_joined

    def _refuse_distrusted(self, upstream: Upstream, blob: Descriptor) -> None:
        if self._loop.time() < self._distrusted.get((upstream.name, blob.digest, blob.size), 0.0):
            raise ReferenceNotFoundError(f"{blob.digest}: its upstream sent something else a moment ago")

    def _fill(
        self, upstreams: Upstreams, repository: Repository, blob: Descriptor, *, is_for_replica: bool
    ) -> tuple[Fill, bool]:
        upstream = repository.upstream
        # One that waits for another replica is none for that replica to wait for.
        owner = upstreams.owner(str(blob.digest), is_for_replica=is_for_replica)
        key = (upstream.name, blob.digest, blob.size, owner)
        live = {each: fill for each, fill in self._fills.items() if each[:3] == key[:3] and not fill.is_over}
        joined = live.get(key) or (None if is_for_replica else next(iter(live.values()), None))
        if joined is not None:
            return joined, True
        fill = self._fills[key] = Fill(blob, self._loop, _line(upstream, owner))
        work = functools.partial(self._fetch, fill, repository, upstreams, owner)
        lane = self._shared.lane(upstream)
        future = self._loop.run_in_executor(lane.replica_fetchers if owner else lane.fetchers, work)
        future.add_done_callback(functools.partial(self._fetched, key, fill))
        return fill, False

    def _fetched(self, key: _Key, fill: Fill, future: asyncio.Future[ImageStoreError | None]) -> None:
        if self._fills.get(key) is fill:
            del self._fills[key]
        if not future.cancelled() and isinstance(future.result(), IntegrityError):
            if len(self._distrusted) >= _MOST_DISTRUSTED:
                self._distrusted.clear()
            self._distrusted[key[:3]] = self._loop.time() + _DISTRUST_SECONDS

    async def _begun(self, fill: Fill) -> None:
        """Wait until a blob comes: in line for others as long as these come, and then an answer's time.

        Raises:
            ImageStoreError: it doesn't.
        """
        since, patience = self._loop.time(), self._shared.answer_seconds()
        while not fill.is_started and not fill.is_over:
            until = min(since + _LINE_SECONDS, max(since, self._advanced.get(fill.line, since)) + patience)
            if self._loop.time() >= until:
                raise RegistryUnavailableError(f"{fill.descriptor.digest}: its upstream is busy with others")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await fill.started()
        await self._shared.in_time(fill.begun(), str(fill.descriptor.digest))

    def _fetch(self, fill: Fill, repository: Repository, upstreams: Upstreams, owner: str) -> ImageStoreError | None:
        """Fetch a blob, in a thread; readers hear of its failure, which is returned."""
        fill.tell(fill.start)
        failure: ImageStoreError
        try:
            with self._workers.lend() as store, self._shared.operations.joined(None) as token:
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
        self._keeper.hold(store, upstream.name, [blob.digest])
        with contextlib.ExitStack() as reserved:
            try:
                is_new = not self._is_here(store, upstream, blob) and self._fetched_new(
                    store, fill, repository, upstreams, owner, token, reserved
                )
            except IntegrityError:
                self._catalogue.distrust(repository.name, blob.digest)
                raise
            if is_new:
                self._catalogue.put_blob(upstream.name, repository.name, blob)
        if is_new:
            if self._second is not None:
                self._second.publish(upstream.name, blob)
            fill.tell(lambda: fill.finish(None))
        else:
            fill.tell(fill.find_here)

    def _is_here(self, store: ImageStore, upstream: Upstream, blob: Descriptor) -> bool:
        """Whether a blob is in the store already; a damaged one is thrown away.

        Raises:
            SizeMismatchError: it is, and has another size.
            StoreFullError: it is, and the upstream's quota has no room for it.
        """
        here = store.content.find(blob.digest)
        if here is None:
            return False
        if here.size == blob.size:
            # It is going to count, where another upstream has brought it.
            self._keeper.give_back(self._keeper.reserve(store, upstream, blob, is_here=True))
            return True
        if store.content.delete_damaged(blob.digest):
            raise SizeMismatchError(str(blob.digest), expected=blob.size, actual=here.size)
        self._catalogue.forget_content(blob.digest, lambda: not store.content.exists(blob.digest))
        return False

    def _fetched_new(
        self,
        store: ImageStore,
        fill: Fill,
        repository: Repository,
        upstreams: Upstreams,
        owner: str,
        token: CancelToken,
        reserved: contextlib.ExitStack,
    ) -> bool:
        """Make room for a blob until ``reserved`` ends, and fetch it; False where another fetch has brought it."""
        upstream, blob = repository.upstream, fill.descriptor
        # What one upstream has sent is no other's before it is verified. A replica's part is apart too: two replicas
        # that wait for each other's would wait for ever.
        ref = f"mirror/{upstream.name}/{'replica' if owner else 'upstream'}/{blob.size}/{blob.digest}"
        reference, sources = repository.reference(str(blob.digest)), self._sources(upstreams, upstream, owner, token)
        reserved.callback(self._keeper.give_back, self._keeper.reserve(store, upstream, blob))
        # Again: until it was reserved, an eviction might have let go of it.
        self._keeper.hold(store, upstream.name, [blob.digest])
        return fetch(
            fill,
            ref=ref,
            content=store.content,
            sources=sources,
            reference=reference,
            cancel=token,
            keep=functools.partial(self._stored.keep, blob),
        )

    def _sources(self, upstreams: Upstreams, upstream: Upstream, owner: str, token: CancelToken) -> list[Source]:
        """Whom to ask for a blob: its owner first, where that is another replica."""

        line = _line(upstream, owner)

        def received(count: int) -> None:
            self._advanced[line] = self._loop.time()
            self._numbers.count_fetched(upstream.name, count, is_from_replica=False)
            upstreams.throttle(upstream, count, cancel=token)

        def replicated(count: int) -> None:
            self._advanced[line] = self._loop.time()
            upstreams.praise(owner)
            self._numbers.count_fetched(upstream.name, count, is_from_replica=True)

        def read(count: int) -> None:
            self._advanced[line] = self._loop.time()
            self._numbers.count_from_bucket(upstream.name, count)

        found = []
        if owner:
            client, seconds = upstreams.client(upstream, owner), upstreams.owner_seconds
            found.append(Source(client, replicated, seconds, lambda: upstreams.blame(owner)))
        if self._second is not None:
            found.append(Source(self._second, read))
        admit = functools.partial(upstreams.admit, upstream, cancel=token)
        client = upstreams.client(upstream, "")
        return [*found, Source(client, received, opening_seconds=_OPENING_SECONDS, before=admit)]


def _line(upstream: Upstream, owner: str) -> str:
    return f"{upstream.name} {'replicas' if owner else ''}"
