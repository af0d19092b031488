"""Leases of running work: content is put under a lease before the work checks whether it exists.

This order makes collection safe: a collector either sees the lease and spares the content, or has deleted the content
before the check, and then the work fetches it. The lease of a killed process stays until it expires, so that the next
try can resume. Work that ends, with or without an error, releases its lease.
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
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.oci.digest import Digest

#: The lifetime of containerd's temporary leases.
LIFETIME_SECONDS: Final = 24 * 3600.0
_RENEW_SECONDS: Final = 3600.0


def keep_found(metadata: MetadataStore, found: Sequence[Digest], *, keeps_all: bool = False) -> str:
    """Lease content that was there before its database for a day: the database was lost, or another program wrote it.

    No record refers to such content, so without a lease the next collection would delete all of it. With ``keeps_all``
    the lease keeps all other content too, including content that arrives later.

    Returns:
        The lease's id; empty if nothing was found.
    """
    if not found and not keeps_all:
        return ""
    lease_id = f"found-{os.urandom(8).hex()}"
    labels = {KEEP_ALL: "a rebuild passed over something"} if keeps_all else {}
    metadata.leases.create(lease_id, lifetime_seconds=LIFETIME_SECONDS, labels=labels, content=found)
    return lease_id


class HeldLease:
    """A lease that this process owns, renewed at most every ``renew_seconds``; thread-safe.

    Attributes:
        here: bytes of the content that was looked for and found as soon as it was leased, so it stays.
        has_ended: the lease ended before its block, with a transaction.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        lease_id: str,
        *,
        here: Mapping[Digest, int] | None = None,
        renew_seconds: float = _RENEW_SECONDS,
    ) -> None:
        self.id = lease_id
        self.here = here or {}
        self.has_ended = False
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
            self._metadata.leases.add_content(self.id, digests)

    @contextlib.contextmanager
    def recording(self, keys: Collection[tuple[str, str]]) -> Iterator[None]:
        """A transaction for putting the records of these (reference, handler), with which the lease ends.

        From then on they keep the content.
        """
        with self._metadata.recording(keys):
            yield
            self._metadata.leases.end(self.id)
        self.has_ended = True

    def renew(self) -> None:
        """Extend the lease if the last renewal is old enough; cheap enough to call for every chunk.

        Raises:
            LeaseNotFoundError: the lease was deleted.
        """
        if time.monotonic() - self._renewed_at < self.renew_seconds:
            return
        with self._lock:
            if time.monotonic() - self._renewed_at >= self.renew_seconds:
                self._metadata.leases.renew(self.id, lifetime_seconds=LIFETIME_SECONDS)
                self._renewed_at = time.monotonic()


@contextlib.contextmanager
def held(
    metadata: MetadataStore,
    *,
    purpose: str,
    digests: Collection[Digest] = (),
    content: ContentStore | None = None,
    renew_seconds: float = _RENEW_SECONDS,
) -> Iterator[HeldLease]:
    """A new lease for a block of work, released when the block ends. Not synced: a power failure ends the work too.

    Args:
        purpose: the first part of its id, for people who list leases.
        digests: what it holds from the start.
        content: where to look for these.
    """
    lease_id = f"{purpose}-{os.urandom(16).hex()}"
    has_begun = False
    try:
        with metadata.leasing():
            with metadata.transient():
                metadata.leases.begin(lease_id, lifetime_seconds=LIFETIME_SECONDS, content=digests)
            has_begun = True
            here = {} if content is None else content.sizes(digests)
    except BaseException as error:
        if has_begun or not isinstance(error, Exception):
            # If an interrupt comes during this call, the lease may exist already.
            _release(metadata, lease_id)
        raise
    try:
        lease = HeldLease(metadata, lease_id, here=here, renew_seconds=renew_seconds)
        yield lease
    finally:
        try:
            if not lease.has_ended:
                _release(metadata, lease_id)
        except BaseException:
            # Interrupted while releasing: try once more, or the lease holds content for a day.
            _release(metadata, lease_id)
            raise


class _NoLease(HeldLease):
    """The lease of content that can't be deleted."""

    def hold(self, digests: Collection[Digest]) -> None:
        """Does nothing."""

    def renew(self) -> None:
        """Does nothing."""


@contextlib.contextmanager
def held_to_read(metadata: MetadataStore, *, purpose: str) -> Iterator[HeldLease]:
    """As held(), for work that only reads. A store that can't change has no collection, so it needs no lease."""
    with contextlib.ExitStack() as stack:
        try:
            lease = stack.enter_context(held(metadata, purpose=purpose))
        except StoreReadOnlyError:
            if not metadata.is_unchanging:
                raise
            lease = _NoLease(metadata, purpose)
        yield lease


def _release(metadata: MetadataStore, lease_id: str) -> None:
    """Delete a lease. A failure is only logged, so that it doesn't hide the result or the error of the work."""
    try:
        try:
            with metadata.transient():
                metadata.leases.delete(lease_id, is_of_work=True)
        except StoreFullError:
            # Use the space kept for removals: the lease would hold content for a day.
            with metadata.transient():
                metadata.leases.delete(lease_id)
    except StoreError as error:
        _warn("released", lease_id, error)


def _warn(what: str, lease_id: str, error: Exception) -> None:
    logging.getLogger(__name__).warning("a lease can't be %s: %s", what, error, extra={"lease": lease_id})


@contextlib.contextmanager
def renewed(held: HeldLease) -> Iterator[None]:
    """Renew a lease in a thread while a block runs that doesn't renew it itself."""
    ended = threading.Event()

    def _renew() -> None:
        while not ended.wait(held.renew_seconds):
            try:
                held.renew()
            except ImageStoreError as error:
                # The next renewal may succeed; if none does, the lease expires.
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
