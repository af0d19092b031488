"""The policy of image collection, and the arithmetic of its thresholds.

Rule (kubelet): usage in percent is 100 minus the available share, rounded down; at or above the high threshold so much
is freed that usage would be at the low one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.util.durations import NANOSECONDS, Duration
from imagestore.util.text import scaled

if TYPE_CHECKING:
    from imagestore.node.image_gc.disk import DiskUsage

_TWO_MINUTES: Final = Duration(120 * NANOSECONDS)
_NO_LIMIT: Final = Duration(0)


@dataclass(frozen=True, slots=True)
class CollectionPolicy:
    """When images are collected, and how many.

    Attributes:
        high_percent: usage from which space is freed, 0 to 100.
        low_percent: usage down to which it is freed, 0 to 100, not above the high one.
        minimum_age: images seen for a shorter time are spared when space is freed.
        maximum_age: images unused for longer go at once; zero means there is no such limit.

    Raises:
        InvalidInputError: in the kubelet's words; an age is negative, which would make every image too old.
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
        """Whether regular rounds can ever remove anything."""
        return self.high_percent != 100 or self.maximum_age.nanoseconds > 0

    def bytes_to_free(self, disk: DiskUsage) -> int | None:
        """How much to free now; None when usage is below the high threshold."""
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
