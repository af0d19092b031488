"""Which images go, in which order: pure decisions over records.

Rules (kubelet): candidates are neither in use nor pinned; the longest unused go first (never used is longest), then
the first detected. Ties beyond that go by key, so that a plan and its execution agree; upstream leaves them to chance.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from imagestore.node.image_gc.detection import ImageKey, ImageUse
    from imagestore.node.image_gc.policy import CollectionPolicy


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
    """Why an image goes; the label of the metric."""

    AGE = "age"
    SPACE = "space"


@dataclass(frozen=True, slots=True)
class Removal:
    """One removal, done or failed.

    Attributes:
        image: what was to go.
        reason: why.
        error: text of the failure; empty when it went.
    """

    image: ImageUse
    reason: Reason
    error: str = ""


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
    """Whether the image was unused for longer than the maximum age; never used counts as that."""
    return image.last_used is None or now - image.last_used > policy.maximum_age.nanoseconds


def remove_old(
    images: Iterable[ImageUse],
    policy: CollectionPolicy,
    *,
    now: int,
    began: int,
    remove: Callable[[ImageUse], str],
) -> tuple[list[Removal], list[ImageUse]]:
    """Remove what is older than the maximum age, once the process has been up for longer than that.

    Args:
        images: in eviction order.
        policy: with the maximum age.
        now, began: of this round, and of the process.
        remove: does it; returns the text of a failure, or nothing.

    Returns:
        What was tried, and what is left in the same order (failures too).
    """
    images = list(images)
    if policy.maximum_age.nanoseconds == 0 or now - began <= policy.maximum_age.nanoseconds:
        return [], images
    tried: list[Removal] = []
    left: list[ImageUse] = []
    for image in images:
        if is_too_old(image, policy, now):
            tried.append(Removal(image, Reason.AGE, remove(image)))
            if not tried[-1].error:
                continue
        left.append(image)
    return tried, left


@dataclass(frozen=True, slots=True)
class Walk:
    """What freeing space came to.

    Attributes:
        tried: removals in order.
        spared: images that were passed over, and why.
        freed_bytes: by listed sizes; shared layers make this too much.
    """

    tried: tuple[Removal, ...]
    spared: tuple[tuple[ImageUse, Spared], ...]
    freed_bytes: int


def free_space(
    images: Iterable[ImageUse],
    target_bytes: int | None,
    *,
    minimum_age: Duration,
    now: int,
    remove: Callable[[ImageUse], str],
) -> Walk:
    """Remove images until enough is freed; a failure is remembered and the walk goes on.

    Args:
        images: in eviction order.
        target_bytes: how much; None removes all that may go.
        minimum_age: images detected later than that before now are passed over; equality lets them go.
        now: when the round began.
        remove: does it; returns the text of a failure, or nothing.
    """
    tried: list[Removal] = []
    spared: list[tuple[ImageUse, Spared]] = []
    freed, is_enough = 0, False
    for image in images:
        if is_enough:
            spared.append((image, Spared.NOT_NEEDED))
        elif image.last_used is not None and image.last_used >= now:
            spared.append((image, Spared.USED_RECENTLY))
        elif image.first_detected is not None and now - image.first_detected < minimum_age.nanoseconds:
            spared.append((image, Spared.TOO_YOUNG))
        else:
            tried.append(Removal(image, Reason.SPACE, remove(image)))
            if tried[-1].error:
                spared.append((image, Spared.FAILED))
                continue
            freed += image.size_bytes
            is_enough = target_bytes is not None and freed >= target_bytes
    return Walk(tuple(tried), tuple(spared), freed)
