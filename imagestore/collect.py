"""Garbage collection: free what no image record, no lease and no label keeps, without hurting work in other processes.

Mark once, without a lock. Then sweep in batches: each batch holds the database's write lock, asks for each candidate
whether anything keeps it *now* (upwards along edges, see ``metadata.graph``), and deletes it if nothing does. Whoever
wants a blob leases it before looking for it (see ``lease``), so either the batch sees the lease, or the other process
finds the blob gone and fetches it. No writer waits for more than one batch.

After a removal only what the removed records reached can have become garbage; ``collect_from`` asks about that alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.gc import mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from imagestore.content.local import LocalContentStore
    from imagestore.digest import Digest
    from imagestore.metadata.api import MetadataStore

# Asking and deleting take some 50 µs a blob: a batch holds other writers for a few milliseconds.
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
        metadata.expire()
        for ref in metadata.sweep_namespaces():
            content.abort(ref)
    live = metadata.reachable()
    sizes = {info.digest: info.size for info in content.walk()}
    garbage = {digest: size for digest, size in sizes.items() if digest not in live}
    if not dry_run:
        # A collection that died after deleting a blob left the edges that start there.
        dangling = sorted(metadata.parents_of_any() - live - garbage.keys())
        gone = sweep(metadata, content, [*sorted(garbage), *dangling])
        garbage = {digest: size for digest, size in garbage.items() if digest in gone}
        metadata.tidy()
    spared = metadata.kept_ingests()
    stale, stale_bytes = _stale_ingests(content, clock() - STALE_INGEST_SECONDS, spared, dry_run=dry_run)
    freed = sum(garbage.values())
    return GarbageReport(
        dry_run=dry_run,
        digests=tuple(sorted(garbage)),
        bytes_freed=freed + stale_bytes,
        ingests=tuple(stale),
        kept_blobs=len(sizes) - len(garbage),
        kept_bytes=sum(sizes.values()) - freed,
    )


def collect_from(metadata: MetadataStore, content: LocalContentStore, roots: Iterable[Digest]) -> dict[Digest, int]:
    """Free what removed records held and nothing else needs; costs what they reached, not what the store has.

    Args:
        metadata: records, leases and edges; the records are gone from it.
        content: the blobs.
        roots: what the records held.

    Returns:
        Bytes freed by digest.

    Raises:
        StoreError: a file can't be deleted; what was freed before stays freed.
    """
    gone = sweep(metadata, content, sorted(mark(roots, metadata.children)))
    return {digest: size for digest, size in gone.items() if size}


def sweep(metadata: MetadataStore, content: LocalContentStore, candidates: Sequence[Digest]) -> dict[Digest, int]:
    """Delete candidates that nothing keeps now.

    Args:
        metadata: records, leases and edges.
        content: the blobs.
        candidates: digests that may be garbage.

    Returns:
        Bytes freed by digest; 0 for what wasn't there.
    """
    deleted: dict[Digest, int] = {}
    for start in range(0, len(candidates), _BATCH):
        with metadata.exclusive():
            doomed = [digest for digest in candidates[start : start + _BATCH] if not metadata.is_held(digest)]
            for digest in doomed:
                deleted[digest] = content.delete(digest)
            metadata.forget_content(doomed)
    return deleted


def _stale_ingests(
    content: LocalContentStore, before: float, spared: frozenset[str], *, dry_run: bool
) -> tuple[list[str], int]:
    names, size = [], 0
    for status in content.stale_ingests(before):
        if status.ref in spared:
            continue
        if dry_run or content.abort_stale(status):
            names.append(status.ref)
            size += status.offset
    if not dry_run:
        content.clear_locks()
    return sorted(names), size
