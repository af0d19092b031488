"""The store itself as an image service, without a server in between.

Rules: CRI's semantics, as in the store's CRI service: one entry for each (image id, handler); for an empty handler the
store's rules for calls without a handler apply. The store runs no containers; the embedding program names them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from imagestore._version import __version__
from imagestore.cri import (
    ContainerImage,
    FilesystemUsage,
    ImageDetails,
    ImageFilesystems,
    ImageSpec,
    ImageUsers,
    ServedImage,
    ServiceVersion,
    all_references,
    find_groups,
    find_record,
    served_images,
    verbose_info,
)
from imagestore.errors import InvalidInputError
from imagestore.events import ignore
from imagestore.metadata import ListedImage
from imagestore.oci import Reference
from imagestore.registry import CredentialResolver, explicit_source
from imagestore.store import content_use

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.cri import SandboxMetadata
    from imagestore.events import Observer
    from imagestore.metadata import ImageRecord
    from imagestore.registry import AuthConfig
    from imagestore.store import ImageStore
    from imagestore.util.cancel import CancelToken


class EmbeddedImageService:
    """An ImageService over an open store; the caller closes the store.

    Args:
        store: the open store.
        containers: returns the images of the program's containers; by default there are none.
    """

    def __init__(self, store: ImageStore, *, containers: Callable[[], Sequence[ContainerImage]] | None = None) -> None:
        self._store = store
        self._containers = containers
        self._users = ImageUsers()

    def version(self) -> ServiceVersion:
        """See ImageService."""
        return ServiceVersion("imagestore", __version__, "v1")

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        """See ImageService."""
        groups = find_groups(self._store, spec or ImageSpec(""))
        return served_images(groups, self._store, self._users)

    def status(self, spec: ImageSpec) -> ServedImage | None:
        """See ImageService."""
        record = find_record(self._store, spec)
        return None if record is None else self._served(record)

    def inspect(self, spec: ImageSpec) -> ImageDetails | None:
        """See ImageService. The details are those of the CRI service."""
        record = find_record(self._store, spec)
        return None if record is None else ImageDetails(self._served(record), verbose_info(record, self._store))

    def pull(
        self,
        spec: ImageSpec,
        *,
        auth: AuthConfig | None = None,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> str:
        """See ImageService. Without credentials the store's own sources are used."""
        reference = Reference.parse(spec.image)
        explicit = explicit_source(auth, reference.host) if auth is not None else None
        image = self._store.pull(
            spec.image,
            runtime_handler=spec.runtime_handler,
            credentials=CredentialResolver([explicit]) if explicit is not None else None,
            observer=observer or ignore,
            cancel=cancel,
        )
        return str(image.id)

    def remove(self, spec: ImageSpec) -> None:
        """See ImageService. Content that only this image needed is deleted at once."""
        if not spec.image:
            raise InvalidInputError("remove: expected a reference or an image id, got none")
        self._store.remove(spec.image, runtime_handler=spec.runtime_handler or None, all_names=True, collect=True)

    def filesystems(self) -> ImageFilesystems:
        """See ImageService."""
        used = content_use(self._store.content)
        usage = FilesystemUsage(self._store.content.name, time.time_ns(), used.size, used.inodes)
        return ImageFilesystems((usage,))

    def containers(self) -> Sequence[ContainerImage]:
        """See ImageService: the program's, and one for each image that a lease of the store names, as if it used it."""
        own = self._containers() if self._containers is not None else ()
        leased = self._store.metadata.leases.leased_records()
        if not leased:
            return own
        lines = self._store.metadata.images.find_listed()
        named = [line for line in lines if f"{line.reference}@{line.handler}" in leased]
        return [*own, *(ContainerImage("named by a lease", line.image_id, line.handler) for line in named)]

    def close(self) -> None:
        """See ImageService; the store stays open."""

    def _served(self, record: ImageRecord) -> ServedImage:
        return served_images([all_references(self._store, ListedImage.of(record))], self._store, self._users)[0]
