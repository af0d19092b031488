"""Records by image: all references, under all runtime handlers, that one image id has.

What a node's runtime knows of an image is its id; so lists for it, and what is published to it, are made from groups. A
group costs no more than its lines of the store's list: no document is read, and a hundred thousand take about a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from imagestore.metadata.records import ListedImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

#: Records of one image, ordered by reference and handler; never empty.
Group: TypeAlias = Sequence[ListedImage]


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """All records of one image id.

    Attributes:
        image_id: digest of the config in text form.
        records: ordered by reference and runtime handler; never empty. They may have several manifests.
        is_pinned: a record is pinned, or the configuration pins a reference.
    """

    image_id: str
    records: tuple[ListedImage, ...]
    is_pinned: bool

    @property
    def references(self) -> tuple[str, ...]:
        """Its references in canonical text, sorted, each once."""
        return tuple(dict.fromkeys(record.reference for record in self.records))

    @property
    def handlers(self) -> tuple[str, ...]:
        """The runtime handlers that have it, sorted."""
        return tuple(sorted({record.handler for record in self.records}))


def by_image(records: Iterable[ListedImage], pinned: Set[str]) -> dict[str, ImageGroup]:
    """Groups by image id, in the order of their first records.

    Args:
        records: ordered by reference and handler.
        pinned: references that the configuration pins.
    """
    lines: dict[str, list[ListedImage]] = {}
    for record in records:
        lines.setdefault(record.image_id, []).append(record)
    return {image_id: ImageGroup(image_id, tuple(each), is_pinned(each, pinned)) for image_id, each in lines.items()}


def by_image_and_handler(records: Iterable[ListedImage]) -> list[Group]:
    """The records of each (image id, handler), in the order of their first ones, as CRI lists them."""
    groups: dict[tuple[str, str], list[ListedImage]] = {}
    for record in records:
        groups.setdefault((record.image_id, record.handler), []).append(record)
    return list(groups.values())


def is_pinned(records: Group, pinned: Set[str]) -> bool:
    """Whether one of some records is pinned, by itself or by the configuration (``pinned``: its references)."""
    return any(record.is_pinned or record.reference in pinned for record in records)
