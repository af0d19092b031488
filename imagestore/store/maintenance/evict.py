"""Evicts: removes the records that a policy lets go, and frees what only they needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Disk
from imagestore.store import garbage, record_lookup
from imagestore.store.maintenance import eviction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from imagestore.config import Config
    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.store.maintenance.eviction import Eviction, EvictionPolicy, EvictionReport
    from imagestore.store.maintenance.usage import ImageUsage, StoreUsage

#: Records that go in one transaction: some milliseconds.
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class EvictionWork:
    """One eviction.

    Attributes:
        metadata: where records are.
        content: where blobs are.
        config: says which references are pinned, and which handler is the default.
        clock: seconds since 1970.
    """

    metadata: MetadataStore
    content: ContentStore
    config: Config
    clock: Callable[[], float]

    def run(self, used: StoreUsage, rules: EvictionPolicy, *, dry_run: bool) -> EvictionReport:
        """Evict, or say what would go.

        Args:
            used: what was measured.
            rules: what to spare and when to evict.
            dry_run: only say it.

        Raises:
            UndeletableError: something can't be deleted; its ``report`` says what was done all the same.
            StoreError: the store can't be read or written.
        """
        disk = used.disk
        if rules.high_percent is not None:
            # What the next collection frees anyway counts as free: no image goes for the sake of garbage.
            unkept_bytes = garbage.collect(self.metadata, self.content, dry_run=True, clock=self.clock).bytes_freed
            disk = Disk(disk.total_bytes, disk.free_bytes + unkept_bytes)
        chosen = eviction.choose(self._with_spared(used.images), disk, rules, now=self.clock())
        if dry_run:
            return _planned(used.images, chosen)
        self.metadata.graph.refuse_damaged_indexes()
        evicted: list[Eviction] = []
        roots: set[str] = set()
        for start in range(0, len(chosen), _AT_ONCE):
            self.metadata.give_way()
            with self.metadata.exclusive():
                going = self._still_going(chosen[start : start + _AT_ONCE])
                keys = [(each.record.reference, each.record.handler) for each in going]
                self.metadata.images.remove(keys)
                roots.update(record_lookup.drop_hidden(self.metadata, keys, self.config.default_handler))
            evicted += going
        roots.update(str(digest) for each in evicted for digest in each.record.held)
        swept = garbage.collect_from(self.metadata, self.content, roots)
        report = eviction.EvictionReport(False, tuple(evicted), sum(swept.freed.values()), len(swept.freed))
        swept.check(report)
        return report

    def _with_spared(self, images: Iterable[ImageUsage]) -> list[ImageUsage]:
        """Images with those marked as pinned that no policy may take.

        CRI's clients see what the configuration pins (the pause image) as pinned. A lease keeps the images that it
        names.
        """
        pinned, leased = record_lookup.pinned_by(self.config), self.metadata.leases.leased_records()
        return [
            replace(each, record=replace(each.record, is_pinned=True))
            if each.record.reference in pinned or _name(each.record) in leased
            else each
            for each in images
        ]

    def _still_going(self, chosen: Sequence[Eviction]) -> list[Eviction]:
        """What was pinned, pulled, used or leased since the choice stays."""
        leased = self.metadata.leases.leased_records()
        return [
            each
            for each in chosen
            if self.metadata.images.get(each.record.reference, each.record.handler) == each.record
            and _name(each.record) not in leased
        ]


def _planned(images: Iterable[ImageUsage], chosen: tuple[Eviction, ...]) -> EvictionReport:
    """What would go, and the bytes that only it needs."""
    images = list(images)
    gone = {(each.record.reference, each.record.handler) for each in chosen}
    staying = [each for each in images if (each.record.reference, each.record.handler) not in gone]
    kept = {digest for each in staying for digest in each.blobs}
    blobs = {digest: size for each in images for digest, size in each.blobs.items()}
    freed = [size for digest, size in blobs.items() if digest not in kept]
    return eviction.EvictionReport(True, chosen, sum(freed), len(freed))


def _name(record: ImageRecord) -> str:
    return f"{record.reference}@{record.handler}"
