"""What keeps a mirror's content from being collected, and what makes room for more of it.

Each upstream has one lease, which holds all that its documents name, whether it is here yet or not: who got a manifest
here finds its blobs here too. A quota is counted from the catalogue's rows, and enforced before a fetch: the documents
that weren't served for the longest time go first, and those served within some minutes never.

Replicas may share the catalogue and the lease. So content is noted in the catalogue before it is held; and what was
evicted is let go of first, and held again if the catalogue has it again by then.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, ImageStoreError, LeaseNotFoundError, StoreFullError
from imagestore.mirror.catalogue_rows import Outcome
from imagestore.store.garbage import sweep

if TYPE_CHECKING:
    from collections.abc import Collection

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
    """

    def __init__(self, catalogue: Catalogue, numbers: MirrorNumbers) -> None:
        self._catalogue = catalogue
        self._numbers = numbers

    def let_go(self, store: ImageStore, served: Collection[str]) -> None:
        """Forget what is here of upstreams that aren't served any more; the next collection takes it.

        Args:
            store: has the leases.
            served: names of upstreams.
        """
        for name in self._catalogue.used_bytes():
            if name not in served:
                log.warning("an upstream isn't served any more, its content is let go", extra={"upstream": name})
                self._catalogue.forget_upstream(name)
        kept = {lease_of(name) for name in served}
        for lease in store.metadata.leases.find():
            if lease.id.startswith(lease_of("")) and lease.id not in kept:
                store.metadata.leases.delete(lease.id)

    def adjust(self, store: ImageStore) -> None:
        """Make the leases agree with the catalogue: after a crash, and after the catalogue was lost.

        Only while nothing is fetched: what is on its way is under a lease before the catalogue knows it.
        """
        for upstream in self._catalogue.used_bytes():
            self._catalogue.forget_unnamed(upstream)
            self.hold(store, upstream, self._catalogue.contents(upstream))
            self.release(store, upstream)
        for lease in store.metadata.leases.find():
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

    def hold(self, store: ImageStore, upstream: str, digests: Collection[Digest]) -> None:
        """Put content under the upstream's lease: after it was noted, and before anybody looks whether it is there."""
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

    def reserve(self, store: ImageStore, upstream: Upstream, blob: Descriptor, *, is_here: bool = False) -> str:
        """Make room for a blob that is going to be fetched; give_back() when it is here, or isn't coming.

        Args:
            store: has the content.
            upstream: whose quota it is.
            blob: which.
            is_here: it is on the disk, and only going to count.

        Returns:
            The reservation's id.

        Raises:
            StoreFullError: more than the quota or the disk has room for, whatever is evicted.
        """
        has_evicted = False
        try:
            while True:
                id_, tried = self._catalogue.try_to_reserve(
                    upstream.name, blob, upstream.quota_bytes, spared_seconds=SPARED_SECONDS
                )
                has_evicted |= tried.has_evicted
                if tried.outcome is Outcome.RESERVED:
                    break
                if tried.outcome is Outcome.REFUSED:
                    self._numbers.count_refused(upstream.name)
                    raise StoreFullError(
                        f"upstream {upstream.name}: its quota of {upstream.quota_bytes} bytes has no room; what is here"
                        " was served a moment ago",
                        hint="raise the quota",
                    )
        finally:
            if has_evicted:
                self.release(store, upstream.name)
        free = store.content.free_bytes()
        if not is_here and blob.size > free:
            self._catalogue.end_reservation(id_)
            raise StoreFullError(f"{blob.digest}: needs {blob.size} bytes, the disk has room for {free}")
        return id_

    def give_back(self, id_: str) -> None:
        """See reserve()."""
        self._catalogue.end_reservation(id_)

    def renew(self) -> None:
        """Say that what is reserved is on its way; see Catalogue.renew_reservations()."""
        self._catalogue.renew_reservations()

    def release_all(self, store: ImageStore) -> None:
        """Let go of what killed replicas evicted; also while others fetch, unlike adjust()."""
        for upstream in store.config.settings.mirror.upstreams:
            self.release(store, upstream)

    def release(self, store: ImageStore, upstream: str) -> None:
        """Let go of what was evicted, and delete it; what a killed replica left of that too."""
        try:
            leaving = self._catalogue.leaving(upstream)
            if not leaving:
                return
            with contextlib.suppress(LeaseNotFoundError):
                store.metadata.leases.remove_content(lease_of(upstream), [each.digest for each in leaving])
            # Noted again since it was evicted: whoever did that may have held it before it was let go of just now. Who
            # notes it from now on holds it afterwards.
            wanted = self._catalogue.wanted(upstream, [each.digest for each in leaving])
            if wanted:
                self.hold(store, upstream, wanted)
            self._catalogue.forget_leaving(upstream, leaving)
            swept = sweep(
                store.metadata, store.content, [str(each.digest) for each in leaving if each.digest not in wanted]
            )
        except ImageStoreError as error:
            # The next collection takes what nothing holds.
            log.warning("evicted content can't be deleted: %s", error, extra={"upstream": upstream})
            return
        self._numbers.count_evicted(upstream, sum(swept.freed.values()))
        log.info("evicted", extra={"upstream": upstream, "blobs": len(swept.freed), "bytes": sum(swept.freed.values())})
