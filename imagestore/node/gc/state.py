"""What a collector remembers between processes: for a collection that is started from a timer, not by a daemon.

A kubelet keeps its records in memory, since it runs all the time. A command that runs for a moment would find every
image new each time; so it keeps when it first saw an image and when it last saw it used, in seconds of the calendar.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from imagestore.content.disk import make_directory, replace_text, translated
from imagestore.errors import StoreCorruptError
from imagestore.node.gc.detection import ImageKey, ImageUse
from imagestore.values import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Self

_FILE: Final = "image-uses.json"
_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CollectorState:
    """What is remembered; times are nanoseconds since 1970.

    Attributes:
        began: when images were first looked at.
        uses: what was seen of each image.
    """

    began: int
    uses: tuple[ImageUse, ...] = field(default=())

    @classmethod
    def load(cls, folder: Path, *, now: int) -> Self:
        """Read it; a folder without it begins now.

        Raises:
            StoreCorruptError: the file is damaged.
            StoreError: it can't be read.
        """
        path = folder / _FILE
        with translated("read the uses of images", path):
            try:
                with path.open("rb") as file:
                    data = file.read(_MAX_BYTES + 1)
            except FileNotFoundError:
                return cls(now)
        try:
            value: Any = json.loads(data) if len(data) <= _MAX_BYTES else None
            return cls(_moment(value["began"], now), tuple(_use(row, now) for row in value["images"]))
        except (ValueError, RecursionError, TypeError, KeyError, IndexError) as error:
            raise StoreCorruptError(f"{path}: is no memory of image uses", hint="delete it") from error

    def save(self, folder: Path, uses: Iterable[ImageUse]) -> None:
        """Write it with what is known by now.

        Raises:
            StoreError: it can't be written.
        """
        rows = [[use.key.image_id, use.key.runtime_handler, use.first_detected, use.last_used] for use in uses]
        path = folder / _FILE
        with translated("write the uses of images", path):
            make_directory(folder, 0o700)
            replace_text(path, json.dumps({"began": self.began, "images": rows}) + "\n")


def _use(row: Any, now: int) -> ImageUse:
    image_id, handler, first_detected, last_used = row
    if not isinstance(image_id, str) or not isinstance(handler, str):
        raise TypeError
    first = None if first_detected is None else _moment(first_detected, now)
    return ImageUse(ImageKey(image_id, handler), first, None if last_used is None else _moment(last_used, now))


def _moment(value: Any, now: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    # A clock that was set back must not make images look as if they came from the future.
    return min(value, now)
