"""containerd's image records of one store: what is wanted, what is made, and what is taken away."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from imagestore.errors import ImageNotFoundError
from imagestore.publish.wanted import difference, wanted_images

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from imagestore.publish.containerd import Containerd
    from imagestore.publish.publication import Publication
    from imagestore.publish.wanted import ActualImage, Difference, Owner, WantedImage
    from imagestore.store import ImageStore

log = logging.getLogger(__name__)


class RecordKeeper:
    """Makes and deletes containerd's records of a store; thread-safe.

    Args:
        client: of containerd.
        owner: whose records they are.
        lend: gives the store of the moment.
    """

    def __init__(
        self, client: Containerd, owner: Owner, lend: Callable[[], AbstractContextManager[ImageStore]]
    ) -> None:
        self._client = client
        self._owner = owner
        self._lend = lend
        # (name, target, image id) of others' records that are left as they are.
        self._accepted: set[tuple[str, str, str]] = set()
        # Names that were taken over.
        self._taken: set[str] = set()
        # Held between the last look at what is wanted and the change of records that follows from it.
        self._lock = threading.Lock()

    def unknown(self) -> None:
        """Nothing is known of containerd any more: what was accepted may not lead to its image now."""
        self._accepted = set()

    def wanted(self, store: ImageStore, image_id: str = "") -> dict[str, WantedImage]:
        """What containerd should have of a store's records, by image id; of one id only with those that share names."""
        images = store.metadata.images
        records = {(each.reference, each.handler): each for each in images.find(image_id_prefix=image_id or None)}
        if image_id:
            for record in list(records.values()):
                # One index may have given two images to the default handler, at different times.
                for other in images.find_by_root(record.target.digest):
                    records.setdefault((other.reference, other.handler), other)
        return wanted_images(
            records.values(),
            default_handler=store.config.default_handler,
            snapshotters=store.config.snapshotters,
            pinned=store.pinned_references,
        )

    def compare(self, wanted: Mapping[str, WantedImage]) -> Difference:
        """What is wanted against what containerd has; one call."""
        return difference(wanted, self._client.images(), self._owner, self._accepted)

    def own(self) -> list[ActualImage]:
        """This store's records."""
        return [image for image in self._client.images() if image.is_of(self._owner)]

    def make(self, publication: Publication, wanted: WantedImage) -> WantedImage | None:
        """Make containerd's records of an image that was brought.

        Returns:
            What is wanted of it now, if that is more than what was brought; nothing is made then.

        Raises:
            ImageNotFoundError: the store doesn't have it any more.
        """
        with self._lock, self._lend() as store:
            now = self.wanted(store, wanted.image_id).get(wanted.image_id)
            if now is None:
                raise ImageNotFoundError(f"image {wanted.image_id} was removed from the store")
            if not now.needs_no_more_than(wanted):
                return now
            actual = self._actual(now)
            names = self._unmet(now, actual)
            if self._client.cri_image_id(now.image_id) != now.image_id:
                # Records that are right and tell the plugin nothing, since it didn't find what they lead to: again.
                names += [name for name, found in actual.items() if name not in names and found.is_of(self._owner)]
            for name in names:
                if name in actual and not actual[name].is_of(self._owner):
                    self._taken.add(name)
                    log.warning("record taken over", extra={"record": name, "image_id": now.image_id})
            publication.make_records(now, names)
            return None

    def unmet_names(self, wanted: WantedImage) -> list[str]:
        """The names that are to be made; others' records with these names are left where CRI resolves them alike."""
        return self._unmet(wanted, self._actual(wanted))

    def _actual(self, wanted: WantedImage) -> dict[str, ActualImage]:
        return {image.name: image for image in self._client.images(list(wanted.names))}

    def _unmet(self, wanted: WantedImage, actual: Mapping[str, ActualImage]) -> list[str]:
        unmet = wanted.unmet_names(actual, self._owner, self._accepted)
        return [name for name in unmet if name not in actual or not self._is_accepted(wanted, actual[name])]

    def _is_accepted(self, wanted: WantedImage, found: ActualImage) -> bool:
        """Whether somebody else's record stays: it leads to the same image, or another store wants its name, too."""
        if found.is_of(self._owner):
            return False
        # What was taken once from another store and came back is its own: else both would take it for ever.
        is_wanted_twice = found.is_of_another_store(self._owner) and found.name in self._taken
        if is_wanted_twice:
            log.warning("record is another store's", extra={"record": found.name, "image_id": wanted.image_id})
        elif self._client.cri_image_id(found.name) != wanted.image_id:
            return False
        self._accepted.add((found.name, found.target, wanted.image_id))
        return True

    def remove(self, store: ImageStore, number: int | None, found: Difference) -> tuple[str, ...]:
        """Delete this store's records that are wanted no more."""
        if not found.to_remove:
            return ()
        with self._lock:
            names: Sequence[str] = found.to_remove
            if number is None or store.metadata.generation() != number:
                # Pulled since then: what is to go may be wanted again.
                names = difference(self.wanted(store), self._client.images(), self._owner, self._accepted).to_remove
            return self.delete(names)

    def delete(self, names: Sequence[str]) -> tuple[str, ...]:
        """Delete records; with the last one containerd collects what only they kept, before this returns."""
        for number, name in enumerate(names, 1):
            if self._client.delete_image(name, is_synced=number == len(names)):
                log.info("unpublished", extra={"record": name})
        return tuple(names)
