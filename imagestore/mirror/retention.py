"""What keeps a mirror's content from being collected, and what evicts it.

Each upstream has one lease. It holds all content that the upstream's documents name, in the store or not, so a client
that got a manifest here finds its blobs here too. A quota is counted from the catalogue's rows. Content that it can't
hold, whatever is evicted, is refused before it is fetched. Content that came, and is verified, makes room for itself:
the documents served least recently are evicted first, those served within some minutes never. So a fetch that fails,
or a size that is a lie, evicts nothing.

Replicas may share the catalogue and the lease. So content is noted in the catalogue before it is leased. Evicted
content is taken from the lease first, and leased again if the catalogue has it again by then. After content was leased,
the catalogue is asked once more, since the content may have been evicted in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, ImageStoreError, LeaseNotFoundError, StoreFullError
from imagestore.mirror.catalogue_values import Reservation
from imagestore.mirror.settings import MIRROR_PLUGIN
from imagestore.store import sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.catalogue_values import EvictedContent
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.mirror.settings import Upstream
    from imagestore.oci import Descriptor, Digest
    from imagestore.store import ImageStore, StoreWorkers

log = logging.getLogger(__name__)

#: A client that was given a manifest asks for its blobs within this time.
SPARED_SECONDS: Final = 600.0
#: A replica that renewed nothing for so long is dead, and what it reserved is free again.
RESERVED_SECONDS: Final = 600.0
_FOR_EVER_SECONDS: Final = 100 * 365 * 24 * 3600.0
#: How exactly times of use are noted.
_USE_SECONDS: Final = 60.0
_MOST_USES: Final = 10_000


def lease_of(upstream: str) -> str:
    """The id of the lease that holds an upstream's content."""
    return f"mirror/{upstream}"


class Retention:
    """Leases content, reserves room for it, and evicts; thread-safe.

    Args:
        catalogue: knows what is here.
        counters: of evictions and refusals.
        owner: names this replica among those that share the catalogue.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        counters: MirrorCounters,
        *,
        owner: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._catalogue = catalogue
        self._counters = counters
        self._owner = owner
        self._clock = clock

    def start(self, store: ImageStore, *, is_alone: bool) -> None:
        """End what this replica reserved before a restart, and finish evictions that a killed process began.

        A replica that has the catalogue alone also makes the leases agree with it.
        """
        self._catalogue.end_reservations(self._owner)
        if is_alone:
            self._adjust(store)
            return
        for upstream in store.config.plugin(MIRROR_PLUGIN).upstreams:
            self._release_evicted(store, upstream)

    def forget_others(self, store: ImageStore, served: Collection[str]) -> None:
        """Forget content of all upstreams but the served ones; the next collection deletes it."""
        for name in self._catalogue.used_bytes():
            if name not in served:
                log.warning("an upstream is no longer in the table; its content is released", extra={"upstream": name})
                self._catalogue.forget_upstream(name)
        kept = {lease_of(name) for name in served}
        for lease in list(store.metadata.leases.find()):
            if lease.id.startswith(lease_of("")) and lease.id not in kept:
                store.metadata.leases.delete(lease.id)

    def hold(self, store: ImageStore, upstream: str, digests: Collection[Digest]) -> None:
        """Put content under the upstream's lease: after it was noted, and before the store is searched for it."""
        lease_id = lease_of(upstream)
        while True:
            try:
                store.metadata.leases.add_content(lease_id, digests)
                return
            except LeaseNotFoundError:
                pass
            try:
                store.metadata.leases.create(lease_id, lifetime_seconds=_FOR_EVER_SECONDS, content=digests)
                return
            except AlreadyExistsError:  # made by another thread since then
                continue

    def release_unwanted(self, store: ImageStore, upstream: str, digests: Collection[Digest]) -> None:
        """Release leased content that no document names and no replica is fetching.

        After a fetch that failed, and after a document was kept: another replica may have evicted it before its content
        was leased.
        """
        try:
            is_evicted = self._catalogue.evict_unwanted(upstream, digests, now=self._clock())
        except ImageStoreError as error:
            log.warning("unwanted content stays leased: %s", error, extra={"upstream": upstream})
            return
        if is_evicted:
            self._release_evicted(store, upstream)

    @contextlib.contextmanager
    def room(
        self, store: ImageStore, upstream: Upstream, content: Descriptor, *, is_here: bool = False
    ) -> Iterator[None]:
        """Reserve room for content while it is fetched. When the block ends without an error, it counts; make its room.

        Args and errors are those of ``reserve``.
        """
        id_ = self.reserve(store, upstream, content, is_here=is_here)
        try:
            yield
            self._make_room(store, upstream)
        finally:
            self.end_reservation(id_)

    def reserve(self, store: ImageStore, upstream: Upstream, blob: Descriptor, *, is_here: bool = False) -> str:
        """Reserve room in the upstream's quota for a blob that is going to be fetched; nothing is evicted yet.

        Args:
            store: has the content.
            upstream: whose quota it is.
            blob: which.
            is_here: it is in the store, and only going to count.

        Returns:
            The reservation's id, for ``end_reservation`` when the blob is in the store or isn't coming.

        Raises:
            StoreFullError: the quota or the disk has no room for it, whatever is evicted.
        """
        now = self._clock()
        wanted = Reservation(
            secrets.token_hex(16), self._owner, upstream.name, blob.digest, blob.size, now + RESERVED_SECONDS
        )
        not_since = now - SPARED_SECONDS
        if not self._catalogue.try_to_reserve(wanted, quota_bytes=upstream.quota_bytes, not_since=not_since, now=now):
            self._counters.count("quota_refusals", upstream.name)
            raise StoreFullError(
                f"upstream {upstream.name}: its quota of {upstream.quota_bytes} bytes has no room for {blob.size} bytes"
                " beside what is on its way or was served a moment ago",
                hint="raise the quota",
            )
        free = store.content.free_bytes()
        if not is_here and blob.size > free:
            self._catalogue.end_reservation(wanted.id)
            raise StoreFullError(
                f"{blob.digest}: needs {blob.size} bytes, the disk has room for {free}",
                hint="lower the quotas, so that the disk has room for downloads beside what they hold",
            )
        return wanted.id

    def end_reservation(self, id_: str) -> None:
        """See ``reserve``."""
        self._catalogue.end_reservation(id_)

    def _make_room(self, store: ImageStore, upstream: Upstream) -> None:
        """Evict until the upstream is within its quota, or all that is left was served a moment ago."""
        quota, has_evicted = upstream.quota_bytes, False
        if quota is None:
            return
        try:
            while self._catalogue.evict_oldest(
                upstream.name, quota_bytes=quota, not_since=self._clock() - SPARED_SECONDS
            ):
                has_evicted = True
        finally:
            if has_evicted:
                self._release_evicted(store, upstream.name)

    def renew_reservations(self) -> None:
        """Show that this replica lives; at least once in half of ``RESERVED_SECONDS``."""
        self._catalogue.renew_reservations(self._owner, ends_at=self._clock() + RESERVED_SECONDS)

    def _adjust(self, store: ImageStore) -> None:
        """Make the leases agree with the catalogue: after a crash, or after the catalogue was lost.

        Only while nothing is fetched: content is under a lease before the catalogue knows it.
        """
        for upstream in self._catalogue.used_bytes():
            self._catalogue.forget_unnamed(upstream)
            self.hold(store, upstream, self._catalogue.contents(upstream))
            self._release_evicted(store, upstream)
        for lease in list(store.metadata.leases.find()):
            upstream = lease.id.removeprefix(lease_of(""))
            if upstream == lease.id:
                continue
            wanted = self._catalogue.contents(upstream)
            if not wanted:
                store.metadata.leases.delete(lease.id)
                continue
            surplus = [each for each in store.metadata.leases.content(lease.id) if each not in wanted]
            if surplus:
                store.metadata.leases.remove_content(lease.id, surplus)

    def _release_evicted(self, store: ImageStore, upstream: str) -> None:
        """Take evicted content from the lease and delete it, also content that a killed replica evicted."""
        try:
            while evicted := self._catalogue.evicted(upstream):
                self._release(store, upstream, evicted)
        except ImageStoreError as error:
            # The next collection deletes content that no lease holds.
            log.warning("evicted content can't be deleted: %s", error, extra={"upstream": upstream})

    def _release(self, store: ImageStore, upstream: str, evicted: Sequence[EvictedContent]) -> None:
        digests = [each.digest for each in evicted]
        with contextlib.suppress(LeaseNotFoundError):
            store.metadata.leases.remove_content(lease_of(upstream), digests)
        # A fetch that noted content again since the eviction may have leased it before the line above. One that notes
        # it from now on leases it afterwards.
        wanted = self._catalogue.wanted(upstream, digests, now=self._clock())
        if wanted:
            self.hold(store, upstream, wanted)
            # That fetch may have failed before it was leased again here.
            self._catalogue.evict_unwanted(upstream, wanted, now=self._clock())
        self._catalogue.forget_evicted(upstream, evicted)
        swept = sweep(store.metadata, store.content, [str(each) for each in digests if each not in wanted])
        freed = sum(swept.freed.values())
        self._counters.count("evicted_bytes", upstream, freed)
        log.info("evicted", extra={"upstream": upstream, "blobs": len(swept.freed), "bytes": freed})


class RecentUses:
    """Notes in the catalogue when content was served, once a minute for each, so that most requests write nothing.

    Its methods are the event loop's.
    """

    def __init__(self, workers: StoreWorkers, catalogue: Catalogue) -> None:
        self._workers = workers
        self._catalogue = catalogue
        self._loop = asyncio.get_running_loop()
        self._uses: dict[tuple[str, Digest], float] = {}

    async def note(self, name: str, digest: Digest) -> None:
        """Note that content of a repository is served now; a failure is only logged."""
        now, key = self._loop.time(), (name, digest)
        if now - self._uses.get(key, -_USE_SECONDS) < _USE_SECONDS:
            return
        if len(self._uses) >= _MOST_USES:
            self._uses.clear()
        self._uses[key] = now
        try:
            await self._workers.quick(lambda _: self._catalogue.note_served(name, digest, now=time.time()))
        except ImageStoreError as error:
            log.warning("use isn't noted: %s", error, extra={"digest": str(digest)})
