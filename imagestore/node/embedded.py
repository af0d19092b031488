"""The store itself as an image service, without a server in between.

Rules: CRI's semantics, as the CRI face of the store has them (one entry for each (image id, handler); an empty handler
leaves it to the store's rules for calls without one). The store runs no containers; who embeds it says which there are.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Final

from imagestore import platforms
from imagestore._version import __version__
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageNotFoundError,
    IntegrityError,
    InvalidInputError,
    InvalidReferenceError,
)
from imagestore.image import Image
from imagestore.image_service import (
    FilesystemUsage,
    ImageDetails,
    ImageFilesystems,
    ImageSpec,
    ServedImage,
    ServiceVersion,
)
from imagestore.observe import ignore
from imagestore.reference import Reference
from imagestore.registry.credentials.cri import explicit_source
from imagestore.registry.credentials.lookup import CredentialResolver
from imagestore.upkeep.accounting import content_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from imagestore.cancel import CancelToken
    from imagestore.digest import Digest
    from imagestore.image_service import ContainerImage, SandboxMetadata
    from imagestore.metadata.api import ImageRecord
    from imagestore.observe import Observer
    from imagestore.registry.credentials.cri import AuthConfig
    from imagestore.store import ImageStore

_NUMBER: Final = re.compile(r"[0-9]{1,18}")


class EmbeddedImageService:
    """An ImageService over an open store; the caller closes the store.

    Args:
        store: where images are.
        containers: images that containers were made from; by default there are no containers.
    """

    def __init__(self, store: ImageStore, *, containers: Callable[[], Sequence[ContainerImage]] | None = None) -> None:
        self._store = store
        self._containers = containers

    def version(self) -> ServiceVersion:
        """See ImageService."""
        return ServiceVersion("imagestore", __version__, "v1")

    def list(self, spec: ImageSpec | None = None) -> Sequence[ServedImage]:
        """See ImageService."""
        name, handler = (spec.image, spec.runtime_handler) if spec is not None else ("", "")
        found = self._store.list(name=name or None, runtime_handler=handler or None)
        images: dict[tuple[Digest, str], None] = {}
        for image in found:
            images[image.id, image.runtime_handler] = None
        # All names of an image are told, also where only one of them was asked for.
        groups = (self._records(image_id, owner) for image_id, owner in images)
        return [self._served(records) for records in groups if records]

    def status(self, spec: ImageSpec) -> ServedImage | None:
        """See ImageService."""
        record = self._find(spec)
        return None if record is None else self._served(self._records(record.image_id, record.handler, record))

    def inspect(self, spec: ImageSpec) -> ImageDetails | None:
        """See ImageService."""
        record = self._find(spec)
        if record is None:
            return None
        own: dict[str, object] = {
            "reference": record.reference,
            "runtimeHandler": record.handler,
            "platform": platforms.format_all(record.platform),
            "wantedPlatform": record.wanted,
            "target": str(record.target.digest),
            "manifest": str(record.manifest.digest),
            "warnings": list(record.warnings),
        }
        served = self._served(self._records(record.image_id, record.handler, record))
        return ImageDetails(served, {"imagestore": json.dumps(own)})

    def pull(
        self,
        spec: ImageSpec,
        *,
        auth: AuthConfig | None = None,
        sandbox: SandboxMetadata | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> str:
        """See ImageService. Without credentials the store's own places are looked into."""
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
        """See ImageService. What only this image needed is freed at once."""
        if not spec.image:
            raise InvalidInputError("remove: expected a reference or an image id, got none")
        self._store.delete(spec.image, runtime_handler=spec.runtime_handler or None)

    def filesystems(self) -> ImageFilesystems:
        """See ImageService."""
        used = content_use(self._store.content)
        usage = FilesystemUsage(str(self._store.content.root), time.time_ns(), used.size, used.inodes)
        return ImageFilesystems((usage,))

    def containers(self) -> Sequence[ContainerImage]:
        """See ImageService."""
        return self._containers() if self._containers is not None else ()

    def close(self) -> None:
        """See ImageService; the store stays open."""

    def _find(self, spec: ImageSpec) -> ImageRecord | None:
        if not spec.image:
            return None
        try:
            return self._store.get(spec.image, runtime_handler=spec.runtime_handler or None).record
        except ImageNotFoundError:
            return None

    def _records(self, image_id: Digest, handler: str, found: ImageRecord | None = None) -> tuple[ImageRecord, ...]:
        records = self._store.metadata.find_images(image_id_prefix=str(image_id), handler=handler)
        # Somebody may have removed it since; what was found still is an answer.
        return tuple(records) or ((found,) if found is not None else ())

    def _served(self, records: Sequence[ImageRecord]) -> ServedImage:
        first = records[0]
        tags, digests = _names(records)
        user = self._user(first)
        is_number = _NUMBER.fullmatch(user) is not None
        return ServedImage(
            id=str(first.image_id),
            repo_tags=tags,
            repo_digests=digests,
            size=max(record.content_size for record in records),
            uid=int(user) if is_number else None,
            username="" if is_number else user,
            spec=ImageSpec(first.reference, first.handler),
            is_pinned=self._is_pinned(records),
        )

    def _user(self, record: ImageRecord) -> str:
        try:
            user = Image(record, self._store.content).config.settings.get("User")
        except (DocumentError, ContentNotFoundError, IntegrityError):
            return ""  # an artifact, or damage that a check reports; it stays listed so that it can be removed
        return user.partition(":")[0] if isinstance(user, str) else ""

    def _is_pinned(self, records: Iterable[ImageRecord]) -> bool:
        configured = {_canonical(text) for text in self._store.config.settings.pinned_images.values()}
        return any(record.is_pinned or record.reference in configured for record in records)


def _names(records: Iterable[ImageRecord]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tags: dict[str, None] = {}
    digests: dict[str, None] = {}
    for record in records:
        reference = Reference.parse(record.reference)
        if reference.tag and reference.digest is None:
            tags[str(reference)] = None
        digests[str(reference.with_digest(reference.digest or record.target.digest))] = None
    return tuple(tags), tuple(digests)


def _canonical(text: str) -> str:
    try:
        return str(Reference.parse(text))
    except InvalidReferenceError:
        return text
