"""Garbage collection: free what no image record and no lease needs, without hurting work in other processes.

Mark once from all records and leases. Then sweep in batches: each batch holds the database's write lock, marks again
from the leases and from the records that changed since (there are few), and deletes what is still garbage. Whoever
wants a blob leases it before looking for it (see ``lease``), so either the batch sees the lease, or the other process
finds the blob gone and fetches it. No writer waits for more than one batch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.gc import mark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from imagestore.content.local import LocalContentStore
    from imagestore.digest import Digest
    from imagestore.metadata.api import MetadataStore

# Deleting takes some 20 µs a file: a batch holds other writers for a few milliseconds.
_BATCH: Final = 128
#: An ingest that nobody touched for so long is thrown away; containerd's default for unleased ingests.
STALE_INGEST_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collection freed, or would free.

    Attributes:
        dry_run: nothing was deleted.
        digests: the blobs, sorted.
        bytes_freed: their size and that of stale ingests.
        ingests: names of stale ingests.
        kept_blobs: how many blobs stay.
        kept_bytes: their size.
    """

    dry_run: bool
    digests: tuple[Digest, ...]
    bytes_freed: int
    ingests: tuple[str, ...]
    kept_blobs: int
    kept_bytes: int


def collect(
    metadata: MetadataStore,
    content: LocalContentStore,
    *,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> GarbageReport:
    """Free everything that nothing needs.

    Args:
        metadata: records, leases and edges.
        content: the blobs.
        dry_run: only say what would be freed.
        clock: seconds since 1970, for the age of ingests.

    Raises:
        StoreError: a file can't be deleted; what was freed before stays freed.
    """
    if not dry_run:
        metadata.expire_leases()
    generation, roots = metadata.live_roots()
    edges = metadata.edges()
    live = mark(roots, lambda digest: edges.get(digest, ()))
    sizes = {info.digest: info.size for info in content.walk()}
    garbage = sorted(digest for digest in sizes if digest not in live)
    if not dry_run:
        garbage = sweep(metadata, content, garbage, since_generation=generation)
        metadata.forget_content([parent for parent in edges if parent not in live and parent not in sizes])
    stale, stale_bytes = _stale_ingests(content, clock() - STALE_INGEST_SECONDS, dry_run=dry_run)
    freed = sum(sizes[digest] for digest in garbage)
    return GarbageReport(
        dry_run=dry_run,
        digests=tuple(garbage),
        bytes_freed=freed + stale_bytes,
        ingests=tuple(stale),
        kept_blobs=len(sizes) - len(garbage),
        kept_bytes=sum(sizes.values()) - freed,
    )


def sweep(
    metadata: MetadataStore, content: LocalContentStore, candidates: Collection[Digest], *, since_generation: int
) -> list[Digest]:
    """Delete candidates that are garbage still.

    Args:
        metadata: records, leases and edges.
        content: the blobs.
        candidates: digests that nothing needed at ``since_generation``.
        since_generation: records changed after it are asked again.

    Returns:
        What was deleted, in the order of the candidates.
    """
    deleted: list[Digest] = []
    for batch in _batches(candidates):
        with metadata.exclusive():
            _, roots = metadata.live_roots(since_generation=since_generation)
            live = mark(roots, metadata.children)
            doomed = [digest for digest in batch if digest not in live]
            for digest in doomed:
                content.delete(digest)
            metadata.forget_content(doomed)
        deleted += doomed
    return deleted


def _stale_ingests(content: LocalContentStore, before: float, *, dry_run: bool) -> tuple[list[str], int]:
    names, size = [], 0
    for status in content.stale_ingests(before):
        if dry_run or content.abort_stale(status):
            names.append(status.ref)
            size += status.offset
    if not dry_run:
        content.clear_locks()
    return sorted(names), size


def _batches(items: Iterable[Digest]) -> Iterable[list[Digest]]:
    whole = list(items)
    return (whole[start : start + _BATCH] for start in range(0, len(whole), _BATCH))
