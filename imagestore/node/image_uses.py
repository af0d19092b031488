"""Which images are on the node, and when each was detected and last used; also kept in a file between processes.

Rules (kubelet, KEP-4216): with the gate RuntimeClassInImageCriApi a record's key is (image id, runtime handler),
without it the id alone. A new key is first detected now; a key in use was last used now; a key that is no longer listed
is dropped. A container (or image volume) without a handler, or with one under which its image isn't listed, uses the
image under every handler; upstream counts them all as unused.

A kubelet keeps its records in memory. A command that is run by a timer keeps them in a file, in nanoseconds since 1970.
Small machines boot with a clock in 1970. A time recorded then would look very old later, so nothing is recorded while
the clock is impossible, and the latest recorded time counts as now.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import imagestore.node.state_file as state_file
from imagestore.node.image_names import spellings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Self

    from imagestore.cri import ContainerImage, ServedImage

_LOGGER: Final = logging.getLogger(__name__)
_FILE: Final = "image-uses.json"
_WHAT: Final = "the uses of images"
_MAX_BYTES: Final = 64 * 1024 * 1024
#: The beginning of 2026: this code is younger, so an earlier clock is wrong.
EARLIEST: Final = 1_767_225_600 * 10**9


@dataclass(frozen=True, slots=True, order=True)
class ImageKey:
    """An image, and with the gate its runtime handler.

    >>> str(ImageKey("sha256:1", "kata")), str(ImageKey("sha256:1"))
    ('sha256:1,kata', 'sha256:1')
    """

    image_id: str
    runtime_handler: str = ""

    def __str__(self) -> str:
        return f"{self.image_id},{self.runtime_handler}" if self.runtime_handler else self.image_id


@dataclass(slots=True)
class ImageUse:
    """The record of one key; times are the collector's clock in nanoseconds.

    Attributes:
        key: of the image.
        first_detected: when it was first listed; None means before the first detection.
        last_used: when a container was last seen using it; None means never.
        size_bytes: as listed.
        is_pinned: the service asks not to collect it.
        is_sandbox: it is the configured sandbox image.
        names: as listed, for people.
    """

    key: ImageKey
    first_detected: int | None
    last_used: int | None = None
    size_bytes: int = 0
    is_pinned: bool = False
    is_sandbox: bool = False
    names: tuple[str, ...] = ()


class Detector:
    """The image records of one collector.

    Args:
        with_handlers: the gate RuntimeClassInImageCriApi.
        sandbox_image: reference of the image of pod sandboxes; empty if the service pins it.
    """

    def __init__(self, *, with_handlers: bool, sandbox_image: str = "") -> None:
        self._with_handlers = with_handlers
        self._sandbox_names = spellings(sandbox_image) if sandbox_image else frozenset()
        self.records: dict[ImageKey, ImageUse] = {}

    def update(
        self,
        images: Sequence[ServedImage],
        containers: Iterable[ContainerImage],
        *,
        detected_at: int | None,
        now: int,
    ) -> frozenset[ImageKey]:
        """Update the records from all present images and all containers, dead ones too; return the keys in use.

        New keys are first detected at ``detected_at``, used keys were last used at ``now``.
        """
        listed = [(self._key(image), image) for image in images]
        in_use = self._in_use({key for key, _ in listed}, containers)
        for key, image in listed:
            record = self.records.get(key)
            if record is None:
                record = self.records[key] = ImageUse(key, detected_at)
            if key in in_use:
                record.last_used = now
            # Without handlers one id may be listed twice; the last entry decides, as in the kubelet.
            record.size_bytes = image.size
            record.is_pinned = image.is_pinned
            record.names = (*image.repo_tags, *image.repo_digests)
            record.is_sandbox = not self._sandbox_names.isdisjoint(record.names)
        for gone in set(self.records) - {key for key, _ in listed}:
            del self.records[gone]
        return in_use

    def _key(self, image: ServedImage) -> ImageKey:
        return ImageKey(image.id, image.spec.runtime_handler if self._with_handlers else "")

    def _in_use(self, listed: set[ImageKey], containers: Iterable[ContainerImage]) -> frozenset[ImageKey]:
        used: set[ImageKey] = set()
        for container in containers:
            used |= self._used(listed, container.image_id, container.runtime_handler)
            for image_id in container.mounted_image_ids:
                used |= self._used(listed, image_id, None)
        return frozenset(used)

    def _used(self, listed: set[ImageKey], image_id: str, handler: str | None) -> set[ImageKey]:
        if not self._with_handlers:
            return {ImageKey(image_id)}
        named = ImageKey(image_id, handler or "")
        if handler is not None and named in listed:
            return {named}
        return {key for key in listed if key.image_id == image_id} or {named}


@dataclass(frozen=True, slots=True)
class CollectorState:
    """The image records between processes; times are nanoseconds since 1970.

    Attributes:
        began: time of the first detection.
        uses: one record for each image.

    Both load() and save() raise StoreError if the file can't be used, load() StoreCorruptError if it is damaged.
    """

    began: int
    uses: tuple[ImageUse, ...] = field(default=())

    def now(self, clock: int) -> int:
        """The clock's time in nanoseconds since 1970, or the latest recorded time if the clock is impossible."""
        if clock >= EARLIEST:
            return clock
        moments = (moment for use in self.uses for moment in (use.first_detected, use.last_used) if moment is not None)
        return max(self.began, *moments, clock)

    @classmethod
    def load(cls, folder: Path, *, now: int) -> Self:
        """Read the file; without one the state begins now."""
        path = folder / _FILE
        value = state_file.read(path, _MAX_BYTES, _WHAT)
        if value is None:
            return cls(now)
        try:
            # After a clock was set back no image may seem to be from the future.
            latest = now if now >= EARLIEST else math.inf
            return cls(_moment(value["began"], latest), tuple(_use(row, latest) for row in value["images"]))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise state_file.corrupt(path, _WHAT) from error

    def save(self, folder: Path, uses: Iterable[ImageUse]) -> None:
        """Write the file with the present records, unless the clock is impossible."""
        if time.time_ns() < EARLIEST:
            _LOGGER.warning("%s: the clock shows a time before 2026, so nothing is recorded", folder / _FILE)
            return
        rows = [[use.key.image_id, use.key.runtime_handler, use.first_detected, use.last_used] for use in uses]
        state_file.write(folder / _FILE, {"began": self.began, "images": rows}, _WHAT)


def _use(row: Any, latest: float) -> ImageUse:
    image_id, handler, first_detected, last_used = row
    if not isinstance(image_id, str) or not isinstance(handler, str):
        raise TypeError
    first = None if first_detected is None else _moment(first_detected, latest)
    return ImageUse(ImageKey(image_id, handler), first, None if last_used is None else _moment(last_used, latest))


def _moment(value: Any, latest: float) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    # Earlier versions recorded impossible times too.
    return int(min(max(value, EARLIEST), latest))
