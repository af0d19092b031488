"""What a CRI client sees of the store: KEP-4216's view, and the one that a kubelet can live with.

KEP-4216: an image is (id, runtime handler), and every entry names its handler.

A kubelet (1.36, with ``RuntimeClassInImageCriApi``) asks for handlers' images, and forgets handlers in other calls:

- Image collection (``image_gc_manager.go``) takes a container's image for its id alone, so entries with handlers count
  as unused, and it removes images of running pods. Image volumes have the same fault. So here an id is one entry, with
  the names of all its records, and without a handler.
- ``generateContainerConfig`` asks by name without a handler for the user of an image; if the answer is "absent", the
  container runs as root. So here a name without a handler also finds other handlers' images. The pod's annotations are
  in all other requests; with them CRI's rule holds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import imagestore.cri.records as records
from imagestore.cri.model import ImageSpec
from imagestore.metadata.records import ListedImage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.cri.records import ImageUsers
    from imagestore.metadata.records import ImageRecord
    from imagestore.store.image_groups import Group
    from imagestore.store.image_store import ImageStore

log = logging.getLogger(__name__)
_MOST_WARNED = 1000


class ImageView(Protocol):
    """Which records an entry stands for, and which record a request means."""

    @property
    def names_handlers(self) -> bool:
        """Whether an entry has its runtime handler."""

    def groups(self, store: ImageStore, spec: ImageSpec) -> list[Group]:
        """The entries that match a filter.

        Raises:
            UnknownRuntimeHandlerError, InvalidInputError: handler or image can't be read.
        """

    def record(self, store: ImageStore, spec: ImageSpec) -> ImageRecord | None:
        """The record that a status request means; raises as groups()."""

    def group_of(self, store: ImageStore, record: ImageRecord) -> Group:
        """The entry that a record belongs to; the record alone if it was just removed."""


class HandlerView:
    """KEP-4216's."""

    names_handlers = True

    def groups(self, store: ImageStore, spec: ImageSpec) -> list[Group]:
        """See ImageView."""
        return records.find_groups(store, spec)

    def record(self, store: ImageStore, spec: ImageSpec) -> ImageRecord | None:
        """See ImageView."""
        return records.find_record(store, spec)

    def group_of(self, store: ImageStore, record: ImageRecord) -> Group:
        """See ImageView."""
        return records.all_references(store, ListedImage.of(record))


class KubeletView:
    """The one for a kubelet's socket."""

    names_handlers = False

    def __init__(self, users: ImageUsers) -> None:
        self._users = users
        self._warned: set[tuple[str, ...]] = set()

    def groups(self, store: ImageStore, spec: ImageSpec) -> list[Group]:
        """See ImageView."""
        found: dict[str, list[ListedImage]] = {}
        for group in records.find_groups(store, spec):
            found.setdefault(group[0].image_id, []).extend(group)
        if not (spec.image or spec.runtime_handler):
            return [self._ordered(group) for group in found.values()]
        # A filter chooses images; each is shown with all its records.
        return [self._all(store, image_id) or self._ordered(group) for image_id, group in found.items()]

    def record(self, store: ImageStore, spec: ImageSpec) -> ImageRecord | None:
        """See ImageView."""
        found = records.find_record(store, spec)
        if spec.runtime_handler or spec.annotations or not spec.image:
            return found
        every = [image.record for image in store.list(name=spec.image)]
        self._warn(store, every)
        return found or (every[0] if every else None)

    def group_of(self, store: ImageStore, record: ImageRecord) -> Group:
        """See ImageView."""
        return self._all(store, str(record.image_id)) or (ListedImage.of(record),)

    def _all(self, store: ImageStore, image_id: str) -> Group:
        return self._ordered(store.metadata.images.find_listed(image_id=image_id))

    @staticmethod
    def _ordered(group: Sequence[ListedImage]) -> Group:
        return sorted(group, key=lambda each: (each.reference, each.handler))

    def _warn(self, store: ImageStore, found: Sequence[ImageRecord]) -> None:
        """Say once that the kubelet takes the user of one handler's image for another's."""
        users = {str(each.image_id): self._users.of(each.image_id, store.content) for each in found}
        key = tuple(sorted(users))
        if len(set(users.values())) > 1 and key not in self._warned:
            if len(self._warned) < _MOST_WARNED:
                self._warned.add(key)
            log.warning(
                "images of one name have different users; the kubelet asks for one of them only",
                extra={"reference": found[0].reference, "users": sorted(set(users.values()))},
            )
