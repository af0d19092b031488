"""Garbage collection: free what no image record, no lease and no label keeps, while other processes work.

Mark once, in a snapshot that blocks no writer. Then sweep in batches of some milliseconds: each holds the database's
write lock, asks for each candidate whether anything keeps it *now* (upwards along edges, see ``metadata.graph``), and
deletes it if nothing does. A client leases a blob before looking for it (see ``leases``), so either the batch sees the
lease, or the client finds the blob gone and fetches it. Waiting writers go first between two batches.

After a removal only what the removed records reached can have become garbage; ``collect_from`` asks about that alone.
A file that can't be deleted is reported and keeps its edges and labels; the others are deleted.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError, IntegrityError, StoreError, UndeletableError
from imagestore.metadata.marking import breathing, in_order
from imagestore.oci.digest import as_written

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from imagestore.content.api import ContentStore, Deleter
    from imagestore.metadata.api import MetadataStore
    from imagestore.oci.digest import Digest

log = logging.getLogger(__name__)

#: How long a batch lasts when writers wait, and at most; its commit comes on top.
_SHORTEST_SECONDS: Final = 0.004
_LONGEST_SECONDS: Final = 0.02
#: Time between two looks whether a writer waits.
_LOOK_SECONDS: Final = 0.001
#: Candidates in one query: few at first, since the first look for waiting writers comes after them.
_FIRST_STEP: Final = 32
_LONGEST_STEP: Final = 256
#: Contents in one query for what they point at.
_MARKED_AT_ONCE: Final = 256
#: An ingest that wasn't touched for so long is deleted, as in containerd if it has no lease.
STALE_INGEST_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collection freed, or would free.

    Attributes:
        dry_run: nothing was deleted.
        digests: of the blobs, sorted.
        bytes_freed: their size, of files with no other name, and that of stale ingests.
        ingests: names of stale ingests.
        kept_blobs: how many blobs stay.
        failures: why blobs (by digest in text form) and stale ingests (by name) can't be deleted.
    """

    dry_run: bool
    digests: tuple[Digest, ...]
    bytes_freed: int
    ingests: tuple[str, ...]
    kept_blobs: int
    failures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep freed (bytes by digest in text form), and why it can't delete others."""

    freed: dict[str, int]
    failures: dict[str, str]

    def check(self, report: object = None) -> None:
        """Raise if something could not be deleted; the error carries ``report``, what was done all the same.

        Raises:
            UndeletableError.
        """
        if self.failures:
            raise UndeletableError(self.failures, report)


def collect(
    metadata: MetadataStore,
    content: ContentStore,
    *,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
) -> GarbageReport:
    """Free everything that nothing needs; ``clock`` (seconds since 1970) gives the age of ingests.

    Raises:
        StoreError: folders can't be listed or records not changed; what was freed before stays freed.
    """
    failures: dict[str, str] = {}
    _warn_of_keeper(metadata)
    if not dry_run:
        metadata.expire()
        for ref in metadata.namespaces.sweep():
            with _noted(failures, ref):
                content.abort(ref)
    stale, stale_bytes = _stale_ingests(content, clock(), metadata.namespaces.kept_ingests(), failures, dry_run=dry_run)
    present = _Counted(content.names())
    candidates = metadata.graph.garbage(present)
    if dry_run:
        sizes = ((text, _size(content, text)) for text in candidates)
        garbage = {text: size for text, size in sizes if size is not None}
    else:
        swept = sweep(metadata, content, candidates)
        garbage = swept.freed
        failures.update(swept.failures)
        metadata.tidy()
    return GarbageReport(
        dry_run=dry_run,
        digests=tuple(map(as_written, breathing(in_order(garbage)))),
        bytes_freed=sum(garbage.values()) + stale_bytes,
        ingests=tuple(stale),
        kept_blobs=present.count - len(garbage),
        failures=failures,
    )


def _warn_of_keeper(metadata: MetadataStore) -> None:
    if lease := metadata.graph.keeper_of_all():
        log.warning(
            "lease %s keeps all content: a rebuild passed over something; it ends within a day, or with"
            " 'imagestore leases delete'",
            lease,
        )


def collect_from(metadata: MetadataStore, content: ContentStore, roots: Iterable[str]) -> Swept:
    """Free what removed records held (``roots``, digests in text form) and nothing else needs.

    The cost is that of what they reached, not of what the store has.

    Raises:
        StoreError: the database can't be changed; what was freed before stays freed.
    """
    _warn_of_keeper(metadata)
    reached, parents = _reached(metadata, roots)
    # Parents go first: then nothing is above their children any more, and asking about those is cheap.
    return sweep(metadata, content, [*in_order(parents), *in_order(reached - parents)])


def _reached(metadata: MetadataStore, roots: Iterable[str]) -> tuple[set[str], set[str]]:
    """What can be reached, and the part of it that has children."""
    reached = set(roots)
    parents: set[str] = set()
    waiting = list(reached)
    while waiting:
        some, waiting = waiting[:_MARKED_AT_ONCE], waiting[_MARKED_AT_ONCE:]
        below = metadata.graph.children_of(some)
        parents |= below.keys()
        new = {child for children in below.values() for child in children} - reached
        reached |= new
        waiting += new
    return reached, parents


def sweep(metadata: MetadataStore, content: ContentStore, candidates: Iterable[str]) -> Swept:
    """Delete candidates (digests in text form) that nothing keeps now, batch by batch, each under the write lock.

    Raises:
        StoreError: the database can't be changed; what was freed before stays freed.
    """
    swept, waiting = Swept({}, {}), collections.deque(candidates)
    timer = BatchTimer(metadata)
    with content.deleter() as files:
        while waiting:
            try:
                with metadata.batch():
                    _sweep_some(metadata, files, waiting, timer, swept)
            finally:
                files.let_go()
    content.make_room()
    return swept


def _sweep_some(metadata: MetadataStore, files: Deleter, waiting: deque[str], timer: BatchTimer, swept: Swept) -> None:
    """One batch: take candidates, delete what nothing keeps, put back what there was no time for."""
    timer.begin()
    step, is_over = metadata.batch_size or _FIRST_STEP, _never if metadata.batch_size else timer.is_over
    while waiting:
        some = [waiting.popleft() for _ in range(min(step, len(waiting)))]
        deleted = files.delete_some(metadata.graph.unheld(some), is_over)
        # Asked about again in the next batch: by then something may keep it.
        waiting.extendleft(reversed(deleted.left))
        metadata.graph.forget_content(deleted.sizes)
        swept.freed.update((text, size) for text, size in deleted.sizes.items() if size is not None)
        swept.failures.update(deleted.failures)
        if metadata.batch_size or timer.is_over():
            return
        step = min(2 * step, _LONGEST_STEP)


def _never() -> bool:
    return False


class BatchTimer:
    """Says when a batch should end: soon if a writer waits. Batches grow slowly, since not every writer can say so."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._length = _SHORTEST_SECONDS / 2
        self._next_look = self._end = 0.0
        self._is_awaited = False

    def begin(self) -> None:
        """A batch begins; it may be longer than the last one if no writer waited."""
        self._length = _SHORTEST_SECONDS if self._is_awaited else min(2 * self._length, _LONGEST_SECONDS)
        self._is_awaited = False
        started = time.monotonic()
        self._next_look, self._end = started + _SHORTEST_SECONDS, started + self._length

    def is_over(self) -> bool:
        """Whether to end the batch."""
        now = time.monotonic()
        if now >= self._next_look and not self._is_awaited:
            self._next_look = now + _LOOK_SECONDS
            self._is_awaited = self._metadata.is_awaited()
        return self._is_awaited or now >= self._end


class _Counted:
    """Counts the items that it passes on. Freeing a list of half a million names would stop all threads."""

    def __init__(self, items: Iterator[str]) -> None:
        self.count = 0
        self._items = items

    def __iter__(self) -> Iterator[str]:
        for item in self._items:
            self.count += 1
            yield item


def _size(content: ContentStore, text: str) -> int | None:
    try:
        found = content.info(as_written(text))
    except (ContentNotFoundError, IntegrityError):  # a blob that can't be read can't be deleted either
        return None
    return 0 if found.is_linked else found.size


@contextlib.contextmanager
def _noted(failures: dict[str, str], ref: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        failures[ref] = str(error)


def _stale_ingests(
    content: ContentStore, now: float, spared: frozenset[str], failures: dict[str, str], *, dry_run: bool
) -> tuple[list[str], int]:
    names, size = [], 0
    for status in content.stale_ingests(now - STALE_INGEST_SECONDS, beyond=now + STALE_INGEST_SECONDS):
        if status.ref in spared:
            continue
        with _noted(failures, status.ref):
            if dry_run or content.abort_stale(status):
                names.append(status.ref)
                size += status.offset
    if not dry_run:
        content.clear_locks()
    return sorted(names), size
