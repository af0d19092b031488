"""Leases of running work: content is put under a lease before anybody looks whether it is there.

That order is what makes collection safe: a collector either sees the digest leased and spares it, or has deleted it
before the look, which then finds nothing and fetches. A lease outlives a killed process by its lifetime, so that the
next try can resume; work that ends, well or badly, releases its lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, StoreError, StoreFullError, StoreReadOnlyError
from imagestore.oci.gc_labels import KEEP_ALL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from imagestore.metadata.api import MetadataStore
    from imagestore.oci.digest import Digest

#: As containerd's temporary leases.
LIFETIME_SECONDS: Final = 24 * 3600.0
_RENEW_SECONDS: Final = 3600.0


def keep_found(metadata: MetadataStore, found: Sequence[Digest], *, keeps_all: bool = False) -> str:
    """Lease content for a day that is older than its database: a lost one's, or another program's.

    Nothing says what it is for, so the next collection would take all of it.

    Args:
        metadata: where the lease is made.
        found: the content.
        keeps_all: other content is kept too, what isn't there yet included.

    Returns:
        The lease's id; empty where nothing was found.

    Raises:
        StoreError: the database can't be written.
    """
    if not found and not keeps_all:
        return ""
    lease_id = f"found-{os.urandom(8).hex()}"
    labels = {KEEP_ALL: "a rebuild passed over something"} if keeps_all else {}
    metadata.create_lease(lease_id, lifetime_seconds=LIFETIME_SECONDS, labels=labels, content=found)
    return lease_id


class HeldLease:
    """A lease this process owns; for several threads.

    Args:
        metadata: where the lease lives.
        lease_id: its id.
        renew_seconds: how old the last renewal must be for another.
    """

    def __init__(self, metadata: MetadataStore, lease_id: str, *, renew_seconds: float = _RENEW_SECONDS) -> None:
        self.id = lease_id
        self.renew_seconds = renew_seconds
        self._metadata = metadata
        self._lock = threading.Lock()
        self._renewed_at = time.monotonic()

    def hold(self, digests: Collection[Digest]) -> None:
        """Put content under the lease.

        Raises:
            LeaseNotFoundError: the lease was deleted.
        """
        with self._metadata.transient():
            self._metadata.lease_content(self.id, digests)

    def renew(self) -> None:
        """Move the end on if the last renewal is old enough; cheap enough to call for every chunk.

        Raises:
            LeaseNotFoundError: the lease was deleted.
        """
        if time.monotonic() - self._renewed_at < self.renew_seconds:
            return
        with self._lock:
            if time.monotonic() - self._renewed_at >= self.renew_seconds:
                self._metadata.renew_lease(self.id, lifetime_seconds=LIFETIME_SECONDS)
                self._renewed_at = time.monotonic()


@contextlib.contextmanager
def held(
    metadata: MetadataStore,
    *,
    purpose: str,
    digests: Collection[Digest] = (),
    renew_seconds: float = _RENEW_SECONDS,
) -> Iterator[HeldLease]:
    """A new lease for a block of work, released when the block ends. It isn't synced: without power there is no work.

    Args:
        metadata: where the lease lives.
        purpose: first part of its id, for people who list leases.
        digests: what it holds from the start.
        renew_seconds: how often it is renewed.
    """
    lease_id = f"{purpose}-{os.urandom(16).hex()}"
    try:
        with metadata.transient():
            metadata.create_lease(lease_id, lifetime_seconds=LIFETIME_SECONDS, content=digests)
    except BaseException as error:
        if not isinstance(error, Exception):
            # An interrupt may come when it is made already.
            _release(metadata, lease_id)
        raise
    try:
        yield HeldLease(metadata, lease_id, renew_seconds=renew_seconds)
    finally:
        try:
            _release(metadata, lease_id)
        except BaseException:
            # Interrupted while releasing: try once more, or the lease holds content for a day.
            _release(metadata, lease_id)
            raise


class _NoLease(HeldLease):
    """Of what can't go away."""

    def hold(self, digests: Collection[Digest]) -> None:
        """Nothing has to be done."""

    def renew(self) -> None:
        """Nothing has to be done."""


@contextlib.contextmanager
def held_to_read(metadata: MetadataStore, *, purpose: str) -> Iterator[HeldLease]:
    """As held(), for work that only reads: where the store can't change there is no collection, and no lease is needed.

    Args:
        metadata: where the lease lives.
        purpose: first part of its id.
    """
    with contextlib.ExitStack() as stack:
        try:
            lease = stack.enter_context(held(metadata, purpose=purpose))
        except StoreReadOnlyError:
            if not metadata.is_unchanging:
                raise
            lease = _NoLease(metadata, purpose)
        yield lease


def _release(metadata: MetadataStore, lease_id: str) -> None:
    """What the work achieved, or why it failed, matters more than a lease that stays for its lifetime."""
    try:
        try:
            with metadata.transient():
                metadata.delete_lease(lease_id, is_of_work=True)
        except StoreFullError:
            # It holds content, which could not be freed for a day.
            with metadata.transient():
                metadata.delete_lease(lease_id)
    except StoreError as error:
        _warn("released", lease_id, error)


def _warn(what: str, lease_id: str, error: Exception) -> None:
    logging.getLogger(__name__).warning("a lease can't be %s: %s", what, error, extra={"lease": lease_id})


@contextlib.contextmanager
def renewed(held: HeldLease) -> Iterator[None]:
    """Renew a lease in the background while a block runs whose work calls nothing of ours.

    Args:
        held: the lease.
    """
    ended = threading.Event()

    def _renew() -> None:
        while not ended.wait(held.renew_seconds):
            try:
                held.renew()
            except ImageStoreError as error:
                # The next look may go better; without any the lease ends as a dead owner's does.
                _warn("renewed", held.id, error)

    thread = threading.Thread(target=_renew, name="imagestore-renew", daemon=True)
    try:
        try:
            thread.start()
        except RuntimeError as error:  # no more threads for this process; the lease holds for its lifetime
            _warn("renewed", held.id, error)
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
