"""Which images are unpacked in containerd's snapshotters, asked with few calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError, DocumentError, IntegrityError
from imagestore.publish.publication import ImageDocuments

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from imagestore.content import ContentStore
    from imagestore.oci import Descriptor
    from imagestore.publish.containerd import Containerd
    from imagestore.publish.wanted import WantedImage

_MOST_KNOWN: Final = 100_000


class UnpackedImages:
    """Compares images with the committed snapshots of a containerd; thread-safe.

    The chain id of a manifest's top layer never changes, so it is computed once.

    Args:
        client: of the containerd.
        snapshotters: that it has; nothing is unpacked in others.
    """

    def __init__(self, client: Containerd, snapshotters: Collection[str]) -> None:
        self._client = client
        self._snapshotters = snapshotters
        self._lock = threading.Lock()
        self._tops: dict[str, str] = {}

    def is_ready(self, content: ContentStore, image: WantedImage) -> bool:
        """Whether CRI knows one image, and it is unpacked for all its snapshotters.

        One call, and one for each of its manifests and snapshotters.
        """
        if self._client.cri_image_id(image.image_id) != image.image_id:
            return False
        tops = self._tops_of(content, image)
        return all(self._client.has_snapshot(each, top) for each in image.snapshotters for top in tops)

    def unready(self, content: ContentStore, images: Iterable[WantedImage]) -> set[str]:
        """The ids of the images that containerd couldn't start: CRI doesn't know them, or they aren't unpacked.

        One call, and one for each snapshotter.
        """
        known = set(self._client.cri_names().values())
        lacking = self.lacking(content, images)
        return {image_id for image_id, snapshotters in lacking.items() if snapshotters or image_id not in known}

    def lacking(self, content: ContentStore, images: Iterable[WantedImage]) -> dict[str, tuple[str, ...]]:
        """The snapshotters for which each image isn't unpacked, by its id; a call for each snapshotter."""
        there: dict[str, set[str]] = {}
        found = {}
        for image in images:
            tops = self._tops_of(content, image)
            for snapshotter in image.snapshotters:
                if snapshotter not in there:
                    is_loaded = snapshotter in self._snapshotters
                    there[snapshotter] = self._client.snapshots(snapshotter) if is_loaded else set()
            found[image.image_id] = tuple(each for each in image.snapshotters if not tops <= there[each])
        return found

    def _tops_of(self, content: ContentStore, image: WantedImage) -> set[str]:
        """The chain ids of its manifests' top layers; none of what has no layers, or can't be read."""
        return {top for manifest in image.manifests if (top := self._top(content, manifest))}

    def _top(self, content: ContentStore, manifest: Descriptor) -> str:
        key = str(manifest.digest)
        with self._lock:
            known = self._tops.get(key)
        if known is not None:
            return known
        try:
            chains = ImageDocuments.read(content, manifest).chains
        except (ContentNotFoundError, IntegrityError):
            return ""  # publishing it says so
        except DocumentError:
            chains = []  # an artifact
        with self._lock:
            if len(self._tops) >= _MOST_KNOWN:
                self._tops.clear()
            self._tops[key] = chains[-1] if chains else ""
            return self._tops[key]
