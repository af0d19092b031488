"""An image in the store, as embedders see it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from imagestore.errors import ContentNotFoundError, DocumentError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.content.api import ContentStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.image_config import ImageConfig
    from imagestore.oci.manifest import Manifest
    from imagestore.platforms import Platform


class Image:
    """One record with its content, read when it is needed.

    Content was verified when it entered the store; documents are hashed again when they are read.
    """

    def __init__(self, record: ImageRecord, content: ContentStore) -> None:
        self.record = record
        self._content = content

    @property
    def reference(self) -> str:
        """Canonical reference, for example ``docker.io/library/python:3``."""
        return self.record.reference

    @property
    def runtime_handler(self) -> str:
        """Name of the runtime handler this record is for."""
        return self.record.handler

    @property
    def id(self) -> Digest:
        """Digest of the config: the image id of CRI and Docker."""
        return self.record.image_id

    @property
    def platform(self) -> Platform:
        """The platform that the image is for."""
        return self.record.platform

    @property
    def target(self) -> Descriptor:
        """What the reference resolved to: an index, or the manifest itself."""
        return self.record.target

    @property
    def manifest(self) -> Descriptor:
        """The manifest that the handler's platform chose."""
        return self.record.manifest

    @property
    def size(self) -> int:
        """Compressed size of all its content in bytes."""
        return self.record.content_size

    @functools.cached_property
    def manifest_document(self) -> Manifest:
        """The manifest, parsed.

        Raises:
            ContentNotFoundError, IntegrityError: the store was damaged from outside.
        """
        raw = self._document(self.manifest.digest)
        from imagestore.oci.manifest import Manifest

        return Manifest.parse(raw, media_type=self.manifest.media_type, what=f"manifest {self.manifest.digest}")

    @functools.cached_property
    def config(self) -> ImageConfig:
        """The image config, parsed.

        Raises:
            DocumentError: it is an artifact and has no image config.
            ContentNotFoundError, IntegrityError: the store was damaged from outside.
        """
        raw = self._document(self.id)
        from imagestore.oci.image_config import ImageConfig

        what = f"image config {self.id}"
        if not self.manifest_document.is_image:
            raise DocumentError(what, ["is an artifact's config, which says nothing of an image"])
        return ImageConfig.parse(raw, what=what)

    @functools.cached_property
    def config_if_any(self) -> ImageConfig | None:
        """The image config, parsed; None for an artifact.

        Raises:
            DocumentError: it breaks its rules.
            ContentNotFoundError, IntegrityError: the store was damaged from outside.
        """
        manifest = self.manifest_document
        if not manifest.is_image:
            return None
        raw = self._document(self.id)
        from imagestore.oci.image_config import config_of

        return config_of(manifest, raw, what=f"image config {self.id}")

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The layers' descriptors, lowest first."""
        return self.manifest_document.layers

    @property
    def layer_paths(self) -> tuple[Path, ...]:
        """The layers' files, lowest first, verified when they came; read them, never write.

        Raises:
            ContentNotFoundError: the store was damaged from outside.
        """
        return tuple(self._content.path(layer.digest) for layer in self.layers)

    def _document(self, digest: Digest) -> bytes:
        from imagestore.oci.decode import MAX_INDEX_BYTES

        try:
            return self._content.read(digest, limit_bytes=MAX_INDEX_BYTES)
        except (ContentNotFoundError, IntegrityError) as error:
            error.hint = error.hint or "'imagestore repair' fetches again what is damaged"
            raise

    def __repr__(self) -> str:
        return f"Image({self.reference}, runtime_handler={self.runtime_handler!r}, id={self.id.short})"
