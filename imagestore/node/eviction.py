"""Which images image collection removes, in which order, and when: pure decisions over image records.

Rules (kubelet): candidates are neither in use nor pinned; the least recently used go first (never used before all
others), then the first detected. Further ties are broken by key, so that a plan and its execution agree; upstream
doesn't define them. Usage in percent is 100 minus the available share, rounded down; at or above the high threshold,
enough is freed to bring usage down to the low one.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageCollectionError, InvalidInputError
from imagestore.util.durations import NANOSECONDS, Duration
from imagestore.util.text import scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from imagestore.node.image_service import ImageService
    from imagestore.node.image_uses import ImageKey, ImageUse

_TWO_MINUTES: Final = Duration(120 * NANOSECONDS)
_NO_LIMIT: Final = Duration(0)


class Spared(enum.StrEnum):
    """Why an image stays."""

    IN_USE = "in use"
    PINNED = "pinned"
    SANDBOX = "sandbox image"
    USED_RECENTLY = "used since the round began"
    TOO_YOUNG = "younger than the minimum age"
    NOT_NEEDED = "enough was freed"
    NO_ID = "has no image id"
    FAILED = "removal failed"
    UNTOUCHED = "the disk is below the high threshold"


class Reason(enum.StrEnum):
    """Why an image is removed; a label of the metric."""

    AGE = "age"
    SPACE = "space"


@dataclass(frozen=True, slots=True)
class Removal:
    """One removal; ``error`` is empty if it succeeded."""

    image: ImageUse
    reason: Reason
    error: str = ""


@dataclass(slots=True)
class CollectionReport:
    """What a round did, or what a dry run would do.

    Attributes:
        is_dry_run: nothing was removed.
        disk: usage; in a dry run without the images to remove by age; None if the round failed before.
        target_bytes: how much to free; None if the disk was below the high threshold, or for all images.
        removed: removals in order.
        failed: failed removals.
        spared: images that stayed, and why.
        freed_bytes: freed for space (not by age), by listed sizes, which is too much if images share layers.
    """

    is_dry_run: bool
    disk: DiskUsage | None = None
    target_bytes: int | None = None
    removed: list[Removal] = field(default_factory=list)
    failed: list[Removal] = field(default_factory=list)
    spared: list[tuple[ImageUse, Spared]] = field(default_factory=list)
    freed_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        """How much of the target was not freed."""
        return max(0, (self.target_bytes or 0) - self.freed_bytes)

    def try_removal(self, image: ImageUse, reason: Reason, remove: Callable[[ImageUse], str]) -> bool:
        """Call ``remove`` and add the result; return whether it succeeded."""
        removal = Removal(image, reason, remove(image))
        (self.failed if removal.error else self.removed).append(removal)
        return not removal.error


@dataclass(frozen=True, slots=True)
class CollectionPolicy:
    """Thresholds and ages of image collection.

    Attributes:
        high_percent: usage from which on space is freed, 0 to 100.
        low_percent: usage to reach, 0 to 100, at most the high one.
        minimum_age: images detected less than this ago are spared when space is freed.
        maximum_age: images unused for longer are removed whatever the usage; zero means no limit.

    Raises:
        InvalidInputError: a value is out of range, in the kubelet's words; or an age is negative.
    """

    high_percent: int = 85
    low_percent: int = 80
    minimum_age: Duration = _TWO_MINUTES
    maximum_age: Duration = _NO_LIMIT

    def __post_init__(self) -> None:
        for name, percent in (("High", self.high_percent), ("Low", self.low_percent)):
            if not 0 <= percent <= 100:
                raise InvalidInputError(f"invalid {name}ThresholdPercent {percent}, must be in range [0-100]")
        if self.low_percent > self.high_percent:
            raise InvalidInputError(
                f"LowThresholdPercent {self.low_percent} can not be higher than"
                f" HighThresholdPercent {self.high_percent}"
            )
        for name, age in (("minimum", self.minimum_age), ("maximum", self.maximum_age)):
            if age < _NO_LIMIT:
                raise InvalidInputError(f"{name} age {age}: expected zero or more")

    @property
    def is_loop_needed(self) -> bool:
        """Whether regular rounds can remove anything."""
        return self.high_percent != 100 or self.maximum_age.nanoseconds > 0

    def bytes_to_free(self, disk: DiskUsage) -> int | None:
        """How much to free now; None if usage is below the high threshold."""
        if disk.usage_percent < self.high_percent:
            return None
        return disk.capacity_bytes * (100 - self.low_percent) // 100 - disk.available_bytes


def size_text(size_bytes: int) -> str:
    """Bytes as the kubelet's event shows them.

    >>> size_text(10 * 2**30), size_text(1023)
    ('10.0 GiB', '1023 B')
    """
    value, unit = scaled(size_bytes)
    return f"{value:.1f} {unit}" if unit != "B" else f"{size_bytes} B"


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One file system, bytes.

    Attributes:
        capacity_bytes: its size; 0 if unknown.
        available_bytes: free for unprivileged users; more than the capacity counts as the capacity.
    """

    capacity_bytes: int
    available_bytes: int

    def __post_init__(self) -> None:
        if self.capacity_bytes < 0 or self.available_bytes < 0:
            raise InvalidInputError("disk usage: expected no negative number")
        if self.available_bytes > self.capacity_bytes:
            object.__setattr__(self, "available_bytes", self.capacity_bytes)

    @property
    def usage_percent(self) -> int:
        """Whole percents; a capacity of 0 counts as full."""
        return 100 - (self.available_bytes * 100 // self.capacity_bytes if self.capacity_bytes else 0)


def disk_of_images(service: ImageService) -> DiskUsage:
    """Usage of the first image file system that a service names.

    Raises:
        ImageCollectionError: the service names none, or it isn't on this machine.
    """
    found = service.filesystems().image_filesystems
    if not found:
        raise ImageCollectionError("image file system: the image service names none")
    try:
        numbers = os.statvfs(found[0].mountpoint)
    except (OSError, ValueError) as error:
        raise ImageCollectionError(f"image file system {found[0].mountpoint}: can't be read: {error}") from error
    return DiskUsage(numbers.f_blocks * numbers.f_frsize, numbers.f_bavail * numbers.f_frsize)


def sort_key(image: ImageUse) -> tuple[int, int, int, int, ImageKey]:
    """Least recently used first, then first detected, then by key."""
    return (
        image.last_used is not None,
        image.last_used or 0,
        image.first_detected is not None,
        image.first_detected or 0,
        image.key,
    )


def candidates(
    records: Iterable[ImageUse], in_use: frozenset[ImageKey]
) -> tuple[list[ImageUse], list[tuple[ImageUse, Spared]]]:
    """Images that may go, in eviction order, and those that are spared from the start."""
    may_go: list[ImageUse] = []
    spared: list[tuple[ImageUse, Spared]] = []
    for image in sorted(records, key=sort_key):
        if image.key in in_use:
            spared.append((image, Spared.IN_USE))
        elif image.is_pinned:
            spared.append((image, Spared.PINNED))
        elif image.is_sandbox:
            spared.append((image, Spared.SANDBOX))
        elif not image.key.image_id:
            spared.append((image, Spared.NO_ID))
        else:
            may_go.append(image)
    return may_go, spared


def is_too_old(image: ImageUse, policy: CollectionPolicy, now: int) -> bool:
    """Whether the image was never used, or not for longer than the maximum age."""
    return image.last_used is None or now - image.last_used > policy.maximum_age.nanoseconds


def remove_old(
    images: Iterable[ImageUse],
    policy: CollectionPolicy,
    report: CollectionReport,
    *,
    now: int,
    began: int,
    remove: Callable[[ImageUse], str],
) -> list[ImageUse]:
    """Remove images unused for longer than the maximum age, once the process has run for longer than that.

    Args:
        images: in eviction order.
        policy: with the maximum age.
        report: receives the removals.
        now, began: when this round began, and the process.
        remove: removes an image; returns an error text, empty on success.

    Returns:
        The images that are left, those whose removal failed too, in the same order.
    """
    images = list(images)
    if policy.maximum_age.nanoseconds == 0 or now - began <= policy.maximum_age.nanoseconds:
        return images
    return [
        image
        for image in images
        if not is_too_old(image, policy, now) or not report.try_removal(image, Reason.AGE, remove)
    ]


def free_space(
    images: Iterable[ImageUse],
    report: CollectionReport,
    *,
    minimum_age: Duration,
    now: int,
    remove: Callable[[ImageUse], str],
) -> None:
    """Remove images until the report's target is freed; without a target, remove every image that may go.

    After a failed removal the next image is removed.

    Args:
        images: in eviction order.
        report: has the target; receives removals, spared images and freed bytes.
        minimum_age: images detected less than this before now are spared.
        now: when the round began.
        remove: removes an image; returns an error text, empty on success.
    """
    is_enough = False
    for image in images:
        if is_enough:
            report.spared.append((image, Spared.NOT_NEEDED))
        elif image.last_used is not None and image.last_used >= now:
            report.spared.append((image, Spared.USED_RECENTLY))
        elif image.first_detected is not None and now - image.first_detected < minimum_age.nanoseconds:
            report.spared.append((image, Spared.TOO_YOUNG))
        elif report.try_removal(image, Reason.SPACE, remove):
            report.freed_bytes += image.size_bytes
            is_enough = report.target_bytes is not None and report.freed_bytes >= report.target_bytes
        else:
            report.spared.append((image, Spared.FAILED))
