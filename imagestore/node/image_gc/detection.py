"""What is on the node and what of it is in use: the records behind collection.

Rules (kubelet, KEP-4216): with the gate RuntimeClassInImageCriApi a record's key is (image id, runtime handler),
without it the id alone. A key that appears is first detected then; one that is in use was last used now; one that is
no longer listed is forgotten. Where a container (or an image volume) says no handler, or one under which its image
isn't listed, it counts as using that image under every handler: upstream would take them all for unused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.node.names import spellings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.cri.model import ContainerImage, ServedImage


@dataclass(frozen=True, slots=True, order=True)
class ImageKey:
    """Which image, and under the gate for which handler.

    >>> str(ImageKey("sha256:1", "kata")), str(ImageKey("sha256:1"))
    ('sha256:1,kata', 'sha256:1')
    """

    image_id: str
    runtime_handler: str = ""

    def __str__(self) -> str:
        return f"{self.image_id},{self.runtime_handler}" if self.runtime_handler else self.image_id


@dataclass(slots=True)
class ImageUse:
    """What is remembered of one key; times are the collector's clock in nanoseconds.

    Attributes:
        key: which image.
        first_detected: when it was first listed; None means before anything was known.
        last_used: when a container was last seen using it; None means never.
        size_bytes: as listed.
        is_pinned: the service asks to spare it.
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
    """The records of one collector.

    Args:
        with_handlers: the gate RuntimeClassInImageCriApi.
        sandbox_image: reference of the image that sandboxes run; empty leaves it to the service to pin it.
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
        """Take in what a service lists.

        Args:
            images: all that are present.
            containers: all there are, dead ones too.
            detected_at: when new keys count as first detected.
            now: when used keys count as last used.

        Returns:
            The keys in use.
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
