"""Eviction: remove the records that a policy gives up, and free what only they needed.

choose() decides, from what was measured. It spares pinned records, records of other handlers than the policy's, and the
newest N of each repository and handler. Of the others it takes those unused for long enough; above the high watermark
also the longest unused ones, until the disk would be at the low one; and if the policy has neither rule, all. A
record's last use is its last pull or the last time a client said it was used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Disk
from imagestore.errors import InvalidInputError, UnsupportedError
from imagestore.oci.reference import Reference
from imagestore.store import garbage, record_lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.store.maintenance.usage import ImageUsage, StoreUsage
    from imagestore.store.parts import StoreParts

#: Records that go in one transaction: some milliseconds.
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """What to spare and when to evict.

    Attributes:
        keep_last: the newest records of each (repository, handler) to spare.
        unused_seconds: evict what was not used for so long.
        high_percent: evict when more of the disk than this is used.
        low_percent: then go on down to this.
        handler: only this runtime handler's records.

    Raises:
        InvalidInputError: no rule is given, or a number makes no sense.
    """

    keep_last: int | None = None
    unused_seconds: float | None = None
    high_percent: float | None = None
    low_percent: float | None = None
    handler: str | None = None

    def __post_init__(self) -> None:
        if self.keep_last is None and self.unused_seconds is None and self.high_percent is None:
            raise InvalidInputError(
                "eviction policy: expected at least one rule, found none",
                hint="say how many to keep, for how long unused, or a high watermark",
            )
        if (self.keep_last or 0) < 0 or (self.unused_seconds or 0.0) < 0:
            raise InvalidInputError("eviction policy: expected numbers of at least 0")
        if (self.high_percent is None) != (self.low_percent is None):
            raise InvalidInputError("eviction policy: expected both watermarks or none")
        if not 0 <= (self.low_percent or 0) <= (self.high_percent or 0) <= 100:
            raise InvalidInputError("eviction policy: expected watermarks with 0 <= low <= high <= 100 percent")


@dataclass(frozen=True, slots=True)
class Eviction:
    """One record to remove, and why."""

    record: ImageRecord
    reason: str


@dataclass(frozen=True, slots=True)
class EvictionReport:
    """What a policy removed, or would remove.

    Attributes:
        dry_run: nothing was removed.
        evicted: the records.
        bytes_freed, blobs_freed: of what no record needs any more.
    """

    dry_run: bool
    evicted: tuple[Eviction, ...]
    bytes_freed: int
    blobs_freed: int


def last_use(record: ImageRecord) -> float:
    """When a record was last pulled or used, in seconds since 1970."""
    return max(record.used_at, record.updated_at)


def evict(parts: StoreParts, used: StoreUsage, policy: EvictionPolicy, *, dry_run: bool) -> EvictionReport:
    """Evict from a store that was measured, or say what would go.

    Raises:
        UndeletableError: something can't be deleted; its ``report`` says what was done all the same.
        StoreError: the store can't be read or written.
    """
    metadata, disk = parts.metadata, used.disk
    if policy.high_percent is not None:
        # What the next collection frees counts as free: no image goes for the sake of garbage.
        garbage_bytes = garbage.collect(metadata, parts.content, dry_run=True, clock=parts.clock).bytes_freed
        disk = Disk(disk.total_bytes, disk.free_bytes + garbage_bytes)
    chosen = choose(_with_pins(parts, used.images), disk, policy, now=parts.clock())
    if dry_run:
        return _planned(used.images, chosen)
    metadata.graph.refuse_damaged_indexes()
    evicted: list[Eviction] = []
    roots: set[str] = set()
    for start in range(0, len(chosen), _AT_ONCE):
        metadata.give_way()
        with metadata.exclusive():
            leased = metadata.leases.leased_records()
            # What was pinned, pulled, used or leased since the choice stays.
            going = [
                each
                for each in chosen[start : start + _AT_ONCE]
                if metadata.images.get(*_key(each.record)) == each.record and _leased_name(each.record) not in leased
            ]
            keys = [_key(each.record) for each in going]
            metadata.images.remove(keys)
            roots.update(record_lookup.drop_hidden(metadata, keys, parts.config.default_handler))
        evicted += going
    roots.update(str(digest) for each in evicted for digest in each.record.held)
    swept = garbage.collect_from(metadata, parts.content, roots)
    report = EvictionReport(False, tuple(evicted), sum(swept.freed.values()), len(swept.freed))
    swept.check(report)
    return report


def _with_pins(parts: StoreParts, images: Iterable[ImageUsage]) -> list[ImageUsage]:
    """Images, marked as pinned also if the configuration pins them (the pause image) or a lease names them."""
    pinned, leased = record_lookup.pinned_by(parts.config), parts.metadata.leases.leased_records()
    return [
        replace(each, record=replace(each.record, is_pinned=True))
        if each.record.reference in pinned or _leased_name(each.record) in leased
        else each
        for each in images
    ]


def _planned(images: Sequence[ImageUsage], chosen: tuple[Eviction, ...]) -> EvictionReport:
    """What would go, and the bytes that only it needs."""
    gone = {_key(each.record) for each in chosen}
    kept = {digest for each in images if _key(each.record) not in gone for digest in each.blobs}
    freed = {digest: size for each in images for digest, size in each.freeing.items() if digest not in kept}
    return EvictionReport(True, chosen, sum(freed.values()), len(freed))


def choose(images: Sequence[ImageUsage], disk: Disk, policy: EvictionPolicy, *, now: float) -> tuple[Eviction, ...]:
    """The records that should go, the longest unused first; ``now`` is in seconds since 1970.

    Raises:
        UnsupportedError: the policy has watermarks, and the content is where no space is counted.
    """
    spared = _newest(images, policy.keep_last or 0)
    open_ = [
        image
        for image in sorted(images, key=lambda image: (last_use(image.record), _key(image.record)))
        if not image.record.is_pinned
        and (policy.handler is None or image.record.handler == policy.handler)
        and _key(image.record) not in spared
    ]
    if policy.unused_seconds is None and policy.high_percent is None:
        return tuple(Eviction(image.record, f"not among the newest {policy.keep_last}") for image in open_)
    chosen: dict[tuple[str, str], Eviction] = {}
    if policy.unused_seconds is not None:
        for image in open_:
            idle = now - last_use(image.record)
            if idle >= policy.unused_seconds:
                chosen[_key(image.record)] = Eviction(image.record, f"unused for {idle / 86400:.1f} days")
    if policy.high_percent is not None and policy.low_percent is not None:
        if not disk.total_bytes:
            raise UnsupportedError(
                "marks of a disk's use: the content is where no space is counted, as in a bucket",
                hint="evict by age or by number instead",
            )
        _down_to_low(images, open_, disk, (policy.high_percent, policy.low_percent), chosen)
    return tuple(chosen[_key(image.record)] for image in open_ if _key(image.record) in chosen)


def _down_to_low(
    images: Sequence[ImageUsage],
    open_: Iterable[ImageUsage],
    disk: Disk,
    marks: tuple[float, float],
    chosen: dict[tuple[str, str], Eviction],
) -> None:
    """Add the longest unused ones while the disk would be above the low mark; nothing below the high one."""
    high, low = marks
    if disk.used_bytes * 100 <= high * disk.total_bytes:
        return
    owners = Counter(digest for image in images for digest in image.blobs)
    used = float(disk.used_bytes)
    by_key = {_key(image.record): image for image in images}
    for key in chosen:
        used -= _release(by_key[key], owners)
    for image in open_:
        if used * 100 <= low * disk.total_bytes:
            return
        if _key(image.record) not in chosen:
            used -= _release(image, owners)
            chosen[_key(image.record)] = Eviction(image.record, f"the disk is above {high:g}%, going down to {low:g}%")


def _release(image: ImageUsage, owners: Counter[Digest]) -> int:
    """Bytes that become free when this record goes too."""
    freed = 0
    for digest, size in image.freeing.items():
        owners[digest] -= 1
        if owners[digest] == 0:
            freed += size
    return freed


def _newest(images: Iterable[ImageUsage], count: int) -> set[tuple[str, str]]:
    """Keys of the newest records of each (repository, handler); pinned ones don't take a place."""
    groups: dict[tuple[str, str], list[ImageRecord]] = {}
    for image in images:
        record = image.record
        if not record.is_pinned:
            groups.setdefault((Reference.parse(record.reference).name, record.handler), []).append(record)
    return {
        _key(record)
        for records in groups.values()
        for record in sorted(records, key=lambda record: (-record.updated_at, record.reference))[:count]
    }


def _key(record: ImageRecord) -> tuple[str, str]:
    return record.reference, record.handler


def _leased_name(record: ImageRecord) -> str:
    return f"{record.reference}@{record.handler}"
