"""What keeps a mirror's content from being collected, and what makes room for more of it.

Each upstream has one lease, which holds all that its documents name, whether it is here yet or not: who got a manifest
here finds its blobs here too. A quota is counted from the catalogue's rows, and enforced before a fetch: the documents
that weren't served for the longest time go first, and those served within some minutes never.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, ImageStoreError, LeaseNotFoundError, StoreFullError
from imagestore.store.garbage import sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from imagestore.config.model import Upstream
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.numbers import MirrorNumbers
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.image_store import ImageStore

log = logging.getLogger(__name__)

#: A client that was given a manifest asks for its blobs within this time.
SPARED_SECONDS: Final = 600.0
_FOR_EVER_SECONDS: Final = 100 * 365 * 24 * 3600.0


def lease_of(upstream: str) -> str:
    """The id of the lease that holds an upstream's content."""
    return f"mirror/{upstream}"


class Keeper:
    """Holds content, and evicts; thread-safe.

    Args:
        catalogue: what is here.
        numbers: hears of evictions.
        clock: seconds since 1970.
    """

    def __init__(self, catalogue: Catalogue, numbers: MirrorNumbers, *, clock: Callable[[], float] = time.time) -> None:
        self._catalogue = catalogue
        self._numbers = numbers
        self._clock = clock
        self._lock = threading.Lock()
        # What is on its way, which the catalogue doesn't count yet: bytes by upstream and digest, of each fetch.
        self._reserved: dict[tuple[str, Digest], list[int]] = {}

    def let_go(self, store: ImageStore, served: Collection[str]) -> None:
        """Forget what is here of upstreams that aren't served any more; the next collection takes it.

        Args:
            store: has the leases.
            served: names of upstreams.
        """
        for name in self._catalogue.upstreams():
            if name not in served:
                log.warning("an upstream isn't served any more, its content is let go", extra={"upstream": name})
                self._catalogue.forget_upstream(name)
        kept = {lease_of(name) for name in served}
        for lease in list(store.metadata.leases()):
            if lease.id.startswith(lease_of("")) and lease.id not in kept:
                store.metadata.delete_lease(lease.id)

    def adjust(self, store: ImageStore) -> None:
        """Make the leases agree with the catalogue: after a crash, and after the catalogue was lost.

        Only while nothing is fetched: what is on its way is under a lease before the catalogue knows it.
        """
        for upstream in self._catalogue.upstreams():
            self._catalogue.forget_unnamed(upstream)
            self.hold(store, upstream, self._catalogue.contents(upstream))
        for lease in list(store.metadata.leases()):
            upstream = lease.id.removeprefix(lease_of(""))
            if upstream == lease.id:
                continue
            wanted = self._catalogue.contents(upstream)
            if not wanted:
                store.metadata.delete_lease(lease.id)
                continue
            surplus = [each for each in store.metadata.leased_content(lease.id) if each not in wanted]
            if surplus:
                store.metadata.unlease_content(lease.id, surplus)

    def hold(self, store: ImageStore, upstream: str, digests: Collection[Digest]) -> None:
        """Put content under the upstream's lease, before anybody looks whether it is there."""
        lease_id = lease_of(upstream)
        while True:
            try:
                store.metadata.lease_content(lease_id, digests)
                return
            except LeaseNotFoundError:
                pass
            try:
                store.metadata.create_lease(lease_id, lifetime_seconds=_FOR_EVER_SECONDS, content=digests)
                return
            except AlreadyExistsError:  # made by another thread since then
                continue

    def reserve(self, store: ImageStore, upstream: Upstream, blob: Descriptor, *, is_here: bool = False) -> None:
        """Make room for a blob that is going to be fetched; give_back() when it is here, or isn't coming.

        Args:
            store: has the content.
            upstream: whose quota it is.
            blob: which.
            is_here: it is on the disk, and only going to count.

        Raises:
            StoreFullError: more than the quota or the disk has room for, whatever is evicted.
        """
        with self._lock:
            counted = self._catalogue.counted_bytes(upstream.name, blob.digest)
            key, needed = (upstream.name, blob.digest), blob.size - counted
            if upstream.quota_bytes is not None:
                reserved = sum(max(sizes) for (name, _), sizes in self._reserved.items() if name == upstream.name)
                more = max(0, needed - max(self._reserved.get(key, ()), default=0))
                self._make_room(store, upstream, upstream.quota_bytes - reserved - more, blob.digest)
            free = store.content.free_bytes()
            if not is_here and blob.size > free:
                raise StoreFullError(f"{blob.digest}: needs {blob.size} bytes, the disk has room for {free}")
            self._reserved.setdefault(key, []).append(needed)

    def give_back(self, upstream: str, blob: Descriptor) -> None:
        """See reserve()."""
        with self._lock:
            sizes = self._reserved[upstream, blob.digest]
            sizes.pop()
            if not sizes:
                del self._reserved[upstream, blob.digest]

    def _make_room(self, store: ImageStore, upstream: Upstream, most: int, wanted: Digest) -> None:
        """Evict until no more than so many bytes are here; what is on its way stays, with what names it."""
        spared = [wanted, *(digest for name, digest in self._reserved if name == upstream.name)]
        used = self._catalogue.used_bytes(upstream.name)
        freed: list[Digest] = []
        try:
            while used > most:
                not_since = self._clock() - SPARED_SECONDS
                some = self._catalogue.evict_one(upstream.name, not_since=not_since, spared=spared)
                if some is None:
                    self._numbers.count_refused(upstream.name)
                    raise StoreFullError(
                        f"upstream {upstream.name}: its quota of {upstream.quota_bytes} bytes has no room; what is here"
                        " was served a moment ago",
                        hint="raise the quota",
                    )
                freed.extend(some)
                used = self._catalogue.used_bytes(upstream.name)
        finally:
            self._release(store, upstream.name, freed)

    def _release(self, store: ImageStore, upstream: str, digests: Collection[Digest]) -> None:
        if not digests:
            return
        try:
            store.metadata.unlease_content(lease_of(upstream), digests)
            swept = sweep(store.metadata, store.content, [str(digest) for digest in digests])
        except ImageStoreError as error:
            # The next collection takes what nothing holds.
            log.warning("evicted content can't be deleted: %s", error, extra={"upstream": upstream})
            return
        self._numbers.count_evicted(upstream, sum(swept.freed.values()))
        log.info("evicted", extra={"upstream": upstream, "blobs": len(swept.freed), "bytes": sum(swept.freed.values())})
