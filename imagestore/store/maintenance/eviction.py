"""Which records may go when space is wanted: a pure choice, made from what was measured.

*Spared* are pinned records, records of other handlers than the policy's, and the newest N of each repository and
handler. Of the others go those unused for long enough; above the high watermark also the longest unused ones, until the
disk would be at the low one; and without either cause, all. A record's last use is its last pull or the last time
a client said it was used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError, UnsupportedError
from imagestore.oci.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.content.api import Disk
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.store.maintenance.usage import ImageUsage


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """What to spare and when to evict.

    Attributes:
        keep_last: the newest records of each (repository, handler) to spare; None spares none.
        unused_seconds: evict what was not used for so long; None: use doesn't matter.
        high_percent: evict when more of the disk than this is used; None: never for that reason.
        low_percent: then go on down to this.
        handler: only this runtime handler's records; None: all.

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


def choose(images: Sequence[ImageUsage], disk: Disk, policy: EvictionPolicy, *, now: float) -> tuple[Eviction, ...]:
    """The records that should go, the longest unused first.

    Args:
        images: every record with its blobs.
        disk: where they live.
        policy: the rules.
        now: seconds since 1970.
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
    for digest, size in image.blobs.items():
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
