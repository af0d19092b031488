"""Images that clients make in the store's own namespace, as records: what ``ctr -n k8s.io`` imports, CRI shows.

As in containerd's CRI; here it takes a canonical reference whose content for the default handler's platform is whole.
Any other image stays its client's (decision 0016).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.containerd import image_records
from imagestore.containerd.image_records import existing_image
from imagestore.errors import (
    ConfigError,
    ContentNotFoundError,
    DocumentError,
    ImageDeniedError,
    IntegrityError,
    InvalidDigestError,
    InvalidReferenceError,
    NoMatchingManifestError,
    PreconditionError,
    StoreBusyError,
)
from imagestore.metadata.records import HOME
from imagestore.oci.gc_labels import checked
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.store.pull.present import PresentWork

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.containerd.image_records import HandlerImage
    from imagestore.errors import ImageStoreError
    from imagestore.metadata.records import NamedImage
    from imagestore.oci.digest import Digest
    from imagestore.store.image_store import ImageStore
    from imagestore.store.pull.present import PresentImage
    from imagestore.util.cancel import CancelToken

_log: Final = logging.getLogger(__name__)
_NOT_OURS: Final = (
    ConfigError,  # of the verifiers
    ContentNotFoundError,
    DocumentError,
    ImageDeniedError,
    IntegrityError,
    InvalidDigestError,
    NoMatchingManifestError,
)


def reference_of(image: NamedImage) -> Reference | None:
    """What a pull of an image would record it under; None where it would be something else."""
    if image.namespace != HOME:
        return None
    try:
        reference = Reference.parse(image.name)
    except InvalidReferenceError:
        return None
    is_same = str(reference) == image.name and reference.digest in (None, image.target.digest)
    return reference if is_same else None


def held_with(store: ImageStore, image: NamedImage) -> tuple[Digest, ...]:
    """What an image of an index keeps besides its target: what it kept, and what records have of that index."""
    if image.target.kind is not Kind.INDEX:
        return ()
    return tuple(dict.fromkeys([*image.also_keeps, *store.metadata.named_images.kept_with(image.target.digest)]))


@dataclass(frozen=True, slots=True)
class ContentFinding:
    """What came of looking at an image.

    Attributes:
        present: what a record would be made of; None when there can't be one.
        error: why not.
    """

    present: PresentImage | None
    error: ImageStoreError | None = None


@dataclass(frozen=True, slots=True)
class RecordUpdate:
    """Makes a record of a client's image, or moves the default handler's record.

    Attributes:
        store: what the image is in.
        change: what the caller wants of a record as it is when its turn has come; of a client's image it is stored.
        may_unpin: the caller named the label of pins; otherwise a pin stays.
        cancel: ends the work.
    """

    store: ImageStore
    change: Callable[[NamedImage], NamedImage]
    may_unpin: bool
    cancel: CancelToken

    def run(self, name: str) -> NamedImage:
        """Look at the image's content with no lock held (verifiers may take their time), then write.

        Args:
            name: of an image in the store's own namespace.

        Returns:
            The image as it is then: a record, or its client's as before.

        Raises:
            ImageNotFoundError: it is gone.
            PreconditionError: a record can't be moved to a target whose content isn't whole.
            ImageDeniedError: a record can't be moved to what the verifier refuses.
            StoreError: the store can't be read or written.
            OperationCancelledError: the caller went away.
        """
        wanted = self.change(existing_image(self.store, HOME, name))
        look = self._look(wanted)
        self.cancel.check()
        with self.store.metadata.exclusive():
            before = existing_image(self.store, HOME, name)
            after = self.change(before)
            record = image_records.find(self.store, name)
            is_moved = before.target.digest != after.target.digest
            if look.present is None or after.target.digest != wanted.target.digest:
                if is_moved:
                    raise _unmovable(before, look.error)
                return before
            if record is not None and not is_moved and record.record.wanted == look.present.record.wanted:
                self.store.metadata.named_images.remove(HOME, name)  # as it would be if it were made now
                return before
            try:
                self._put(look.present, after, record)
            except StoreBusyError as error:  # collected since then
                if is_moved:
                    raise _unmovable(before, error) from error
                return before
            return existing_image(self.store, HOME, name)

    def _look(self, image: NamedImage) -> ContentFinding:
        reference, config = reference_of(image), self.store.config
        if reference is None:
            return ContentFinding(None)
        wanted = config.handler_platform(config.default_handler, host=self.store.host)
        try:
            parts = self.store.content, self.store.verifier, self.cancel
            work = PresentWork(reference, config.default_handler, wanted, *parts)
            return ContentFinding(work.find(image.target, held_with(self.store, image)))
        except _NOT_OURS as error:
            level = logging.WARNING if isinstance(error, ConfigError) else logging.INFO
            _log.log(level, "an image is no record", extra={"image": image.name, "reason": str(error)})
            return ContentFinding(None, error)

    def _put(self, present: PresentImage, image: NamedImage, record: HandlerImage | None) -> None:
        metadata, labels = self.store.metadata, checked(image.labels)
        was_pinned = record is not None and record.record.is_pinned
        is_pinned = image_records.is_pinned_by(labels) or (was_pinned and not self.may_unpin)
        stored = present.put(
            self.store.content,
            metadata,
            labels=image_records.record_labels(labels),
            is_pinned=is_pinned,
            created_at=image.created_at,
        )
        if was_pinned and not is_pinned:
            metadata.images.pin([(stored.reference, stored.handler)], is_pinned=False)
        metadata.named_images.remove(HOME, image.name)


def _unmovable(image: NamedImage, error: ImageStoreError | None) -> ImageStoreError:
    if isinstance(error, ImageDeniedError):
        return error
    return PreconditionError(
        f"image {image.name!r} can't be moved: {error or 'it was moved since then'}",
        hint="bring its content for this node first, or remove the image",
    )
