"""Deletes what a failed pull or import brought, unless a retry could use it (docs/decisions/0008)."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ContentUnavailableError,
    ImageStoreError,
    OperationCancelledError,
    RateLimitedError,
    RegistryUnavailableError,
    StoreError,
)
from imagestore.util.disk_errors import translated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.leases import HeldLease

log = logging.getLogger(__name__)

# After these, the same work may go on where it stopped.
_WORTH_KEEPING: Final = (
    RegistryUnavailableError,
    RateLimitedError,
    ContentUnavailableError,
    OperationCancelledError,
)


@contextlib.contextmanager
def undone_on_failure(
    metadata: MetadataStore,
    content: ContentStore,
    held: HeldLease,
    descriptors: Sequence[Descriptor],
    here: Collection[Digest],
) -> Iterator[None]:
    """After a failure that a retry can't help, delete what the block brought and nothing else needs.

    Args:
        held: the block's lease; given up before deleting.
        descriptors: everything the block may bring.
        here: what was there of that before.
    """
    try:
        yield
    except ImageStoreError as error:
        if not isinstance(error, _WORTH_KEEPING):
            try:
                _undo(metadata, content, held, [each for each in descriptors if each.digest not in here])
            except ImageStoreError as failure:
                # The caller has to know what went wrong first; a collection finds what stays.
                log.warning("what a failed pull brought can't be deleted now: %s", failure)
        raise


def _undo(metadata: MetadataStore, content: ContentStore, held: HeldLease, new: Sequence[Descriptor]) -> None:
    # First, since it needs no database, which may lack the space that this gives back.
    for descriptor in new:
        with contextlib.suppress(StoreError):  # the collection that finds it stale reports why it stays
            content.abort(descriptor.ingest_ref)
    # Where nothing came, the space that is kept back is for better uses.
    metadata.leases.delete(held.id, is_of_work=not content.sizes([each.digest for each in new]))
    # The system may have no descriptor left to read the module.
    with translated("delete from", content.name):
        from imagestore.store.garbage import sweep
    sweep(metadata, content, [str(each.digest) for each in new]).check()
