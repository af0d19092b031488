"""What a collector remembers between processes: for a collection that is started from a timer, not by a daemon.

A kubelet keeps its records in memory, since it runs all the time. A command that runs for a moment would find every
image new each time; so it keeps when it first saw an image and when it last saw it used, in seconds of the calendar.

Small machines begin in 1970, until the network tells them the time. What would be noted then would look very old later;
so nothing is noted, and meanwhile it is as late as when something was noted last.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from imagestore.node import state_file
from imagestore.node.image_gc.detection import ImageKey, ImageUse

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Self

log = logging.getLogger(__name__)

_FILE: Final = "image-uses.json"
_WHAT: Final = "the uses of images"
_MAX_BYTES: Final = 64 * 1024 * 1024
#: 2026 began: a clock before that can't be right, since this is younger.
EARLIEST: Final = 1_767_225_600 * 10**9


@dataclass(frozen=True, slots=True)
class CollectorState:
    """What is remembered; times are nanoseconds since 1970.

    Attributes:
        began: when images were first looked at.
        uses: what was seen of each image.
    """

    began: int
    uses: tuple[ImageUse, ...] = field(default=())

    def now(self, clock: int) -> int:
        """The time that ages are counted to: the clock's, or of the last that is known where that can't be right.

        Args:
            clock: nanoseconds since 1970.
        """
        if clock >= EARLIEST:
            return clock
        moments = (moment for use in self.uses for moment in (use.first_detected, use.last_used) if moment is not None)
        return max(self.began, *moments, clock)

    @classmethod
    def load(cls, folder: Path, *, now: int) -> Self:
        """Read it; a folder without it begins now.

        Raises:
            StoreCorruptError: the file is damaged.
            StoreError: it can't be read.
        """
        path = folder / _FILE
        value = state_file.read(path, _MAX_BYTES, _WHAT)
        if value is None:
            return cls(now)
        try:
            # A clock that was set back must not make images look as if they came from the future.
            latest = now if now >= EARLIEST else math.inf
            return cls(_moment(value["began"], latest), tuple(_use(row, latest) for row in value["images"]))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise state_file.corrupt(path, _WHAT) from error

    def save(self, folder: Path, uses: Iterable[ImageUse]) -> None:
        """Write it with what is known by now; not while this machine's clock can't be right.

        Raises:
            StoreError: it can't be written.
        """
        if time.time_ns() < EARLIEST:
            log.warning("%s: the clock shows a time before 2026, so nothing is noted", folder / _FILE)
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
    # Versions before noted also what can't be right.
    return int(min(max(value, EARLIEST), latest))
