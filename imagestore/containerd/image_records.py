"""Records by (reference, runtime handler) as containerd images, and images of clients as records.

Image names are unique in a namespace, so a record's image is called:

    the default handler's   <reference>             target: what the reference resolved to, index or manifest
    another handler's       <reference>@<handler>   target: the manifest that this handler's sandbox runs

No reference ends like the second one: after an ``@`` it has a digest. A label names the handler. Labels with our prefix
are read-only for clients. See docs/decisions/0006.

An image that a client creates in the store's own namespace (``ctr -n k8s.io``) becomes a record, which CRI shows, if
its name is a canonical reference and its content for the default handler's platform is complete. containerd's CRI
takes any image.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.errors import (
    ConfigError,
    ContentNotFoundError,
    DocumentError,
    ImageDeniedError,
    ImageNotFoundError,
    IntegrityError,
    InvalidDigestError,
    InvalidInputError,
    InvalidReferenceError,
    NoMatchingManifestError,
    PreconditionError,
    StoreBusyError,
)
from imagestore.metadata.records import HOME, NamedImage, image_name
from imagestore.oci.gc_labels import checked
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.store.pull.present import find_present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imagestore.errors import ImageStoreError
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.store.image_store import ImageStore
    from imagestore.store.pull.present import PresentImage
    from imagestore.util.cancel import CancelToken

_log: Final = logging.getLogger(__name__)

OWN_PREFIX: Final = "io.imagestore."
HANDLER_LABEL: Final = f"{OWN_PREFIX}runtime-handler"
IMAGE_ID_LABEL: Final = f"{OWN_PREFIX}image-id"
MANIFEST_LABEL: Final = f"{OWN_PREFIX}manifest"
PLATFORM_LABEL: Final = f"{OWN_PREFIX}platform"
#: What containerd's CRI marks its images with.
MANAGED_LABEL: Final = "io.cri-containerd.image"
PINNED_LABEL: Final = "io.cri-containerd.pinned"
#: Of a handler's name in a configuration.
_LONGEST_HANDLER: Final = 253
#: Errors because of which an image stays its client's.
_NO_RECORD: Final = (
    ConfigError,  # of the verifiers
    ContentNotFoundError,
    DocumentError,
    ImageDeniedError,
    IntegrityError,
    InvalidDigestError,
    NoMatchingManifestError,
)


@dataclass(frozen=True, slots=True)
class HandlerImage:
    """A record, and the image it looks like."""

    record: ImageRecord
    image: NamedImage


def project(record: ImageRecord, default_handler: str) -> HandlerImage:
    """A record as an image of the store's own namespace."""
    is_default = record.handler == default_handler
    image = NamedImage(
        namespace=HOME,
        name=image_name(record.reference, record.handler, default_handler),
        target=record.target if is_default else record.manifest,
        labels={**record.labels, **_own_labels(record)},
        created_at=record.created_at,
        updated_at=record.updated_at,
    )
    return HandlerImage(record, image)


def _own_labels(record: ImageRecord) -> dict[str, str]:
    labels = {
        HANDLER_LABEL: record.handler,
        IMAGE_ID_LABEL: str(record.image_id),
        MANIFEST_LABEL: str(record.manifest.digest),
        PLATFORM_LABEL: platforms.format_all(record.platform),
        MANAGED_LABEL: "managed",
    }
    return {**labels, PINNED_LABEL: "pinned"} if record.is_pinned else labels


def find(store: ImageStore, name: str) -> HandlerImage | None:
    """The record with this image name, or None."""
    default = store.config.default_handler
    record = store.metadata.images.get(name, default)
    if record is not None:
        return project(record, default)
    before, at, after = name.rpartition("@")
    # A handler's name may contain @; the image name from a client any number of them.
    while at and len(after) <= _LONGEST_HANDLER:
        if after and after != default:
            record = store.metadata.images.get(before, after)
            if record is not None:
                return project(record, default)
        before, at, rest = before.rpartition("@")
        after = f"{rest}@{after}"
    return None


def image(store: ImageStore, namespace: str, name: str) -> NamedImage | None:
    """The image with this name in a namespace: a record's image, else a client's, or None."""
    record = find(store, name) if namespace == HOME else None
    return record.image if record is not None else store.metadata.named_images.get(namespace, name)


def existing_image(store: ImageStore, namespace: str, name: str) -> NamedImage:
    """As image(); raises InvalidInputError without a name, ImageNotFoundError without an image."""
    if not name:
        raise InvalidInputError("an image needs a name")
    found = image(store, namespace, name)
    if found is None:
        raise ImageNotFoundError(f"image {name!r} is not in namespace {namespace}")
    return found


def all_images(store: ImageStore) -> list[HandlerImage]:
    """Every record as an image."""
    return [project(record, store.config.default_handler) for record in store.metadata.images.find()]


def relabel(store: ImageStore, found: HandlerImage, labels: Mapping[str, str], *, may_unpin: bool) -> None:
    """Replace a record's labels, except the store's own; the pin label pins the record.

    Args:
        store: the store.
        found: the record.
        labels: all labels that its image is to have.
        may_unpin: a missing pin label unpins; clients that replace all labels don't mean that.

    Raises:
        InvalidInputError: a label of the store differs, or a label is too long.
    """
    own = _own_labels(found.record)
    for key, value in checked(labels).items():
        if key.startswith(OWN_PREFIX) and own.get(key) != value:
            raise InvalidInputError(
                f"image {found.image.name!r}: label {key} is the store's own", hint="it says what the record is"
            )
    record, is_pinned = found.record, is_pinned_by(labels)
    store.metadata.images.put(replace(record, labels=record_labels(labels), is_pinned=is_pinned), {})
    if record.is_pinned and not is_pinned and may_unpin:
        store.metadata.images.pin([(record.reference, record.handler)], is_pinned=False)


def is_pinned_by(labels: Mapping[str, str]) -> bool:
    """Whether labels say that an image is pinned, as containerd's CRI reads them."""
    return labels.get(PINNED_LABEL) == "pinned"


def record_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of an image that its record stores: not those that are derived from the record."""
    return {key: value for key, value in foreign_labels(labels).items() if key not in (MANAGED_LABEL, PINNED_LABEL)}


def foreign_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels without the store's own, which a client may have copied from an image of ours."""
    return {key: value for key, value in labels.items() if not key.startswith(OWN_PREFIX)}


def reference_of(image: NamedImage) -> Reference | None:
    """The reference under which an image can be recorded; None if its name or digest doesn't allow it."""
    if image.namespace != HOME:
        return None
    try:
        reference = Reference.parse(image.name)
    except InvalidReferenceError:
        return None
    is_same = str(reference) == image.name and reference.digest in (None, image.target.digest)
    return reference if is_same else None


def held_with(store: ImageStore, image: NamedImage) -> tuple[Digest, ...]:
    """What an image of an index keeps in addition: what it kept before, and the manifests of records of that index."""
    if image.target.kind is not Kind.INDEX:
        return ()
    return tuple(dict.fromkeys([*image.also_keeps, *store.metadata.named_images.kept_with(image.target.digest)]))


def update_record(
    store: ImageStore,
    name: str,
    change: Callable[[NamedImage], NamedImage],
    *,
    may_unpin: bool,
    cancel: CancelToken,
) -> NamedImage:
    """Make a record of a client's image in the store's own namespace, or move the default handler's record.

    The content is examined without a lock, since verifiers may take long; then the record is written.

    Args:
        store: the store.
        name: of the image.
        change: what the caller changes of a record, applied again under the lock; a client's image is stored already.
        may_unpin: the caller named the label of pins; otherwise a pin stays.
        cancel: ends the work.

    Returns:
        The image afterwards: a record, or the client's image as before.

    Raises:
        ImageNotFoundError: it is gone.
        PreconditionError: a record can't move to a target whose content is incomplete.
        ImageDeniedError: a record can't move to a target that the verifier refuses.
        StoreError: the store can't be read or written.
        OperationCancelledError: the token ended it.
    """
    wanted = change(existing_image(store, HOME, name))
    present, reason = _present_content(store, wanted, cancel)
    cancel.check()
    with store.metadata.exclusive():
        before = existing_image(store, HOME, name)
        after = change(before)
        record = find(store, name)
        is_moved = before.target.digest != after.target.digest
        if present is None or after.target.digest != wanted.target.digest:
            if is_moved:
                raise _unmovable(before, reason)
            return before
        if record is not None and not is_moved and record.record.wanted == present.record.wanted:
            store.metadata.named_images.remove(HOME, name)  # a new record would look the same
            return before
        try:
            _put(store, present, after, record, may_unpin=may_unpin)
        except StoreBusyError as error:  # collected since the examination
            if is_moved:
                raise _unmovable(before, error) from error
            return before
        return existing_image(store, HOME, name)


def _present_content(
    store: ImageStore, image: NamedImage, cancel: CancelToken
) -> tuple[PresentImage | None, ImageStoreError | None]:
    """What a record of an image would contain; else None, and why the image can't be a record."""
    reference, config = reference_of(image), store.config
    if reference is None:
        return None, None
    wanted = config.handler_platform(config.default_handler, host=store.host)
    try:
        present = find_present(
            image.target,
            held_with(store, image),
            reference=reference,
            handler=config.default_handler,
            wanted=wanted,
            content=store.content,
            verifier=store.verifier,
            cancel=cancel,
        )
        return present, None
    except _NO_RECORD as error:
        level = logging.WARNING if isinstance(error, ConfigError) else logging.INFO
        _log.log(level, "an image is no record", extra={"image": image.name, "reason": str(error)})
        return None, error


def _put(
    store: ImageStore, present: PresentImage, image: NamedImage, record: HandlerImage | None, *, may_unpin: bool
) -> None:
    labels = checked(image.labels)
    was_pinned = record is not None and record.record.is_pinned
    is_pinned = is_pinned_by(labels) or (was_pinned and not may_unpin)
    stored = present.put(
        store.content,
        store.metadata,
        labels=record_labels(labels),
        is_pinned=is_pinned,
        created_at=image.created_at,
    )
    if was_pinned and not is_pinned:
        store.metadata.images.pin([(stored.reference, stored.handler)], is_pinned=False)
    store.metadata.named_images.remove(HOME, image.name)


def _unmovable(image: NamedImage, error: ImageStoreError | None) -> ImageStoreError:
    if isinstance(error, ImageDeniedError):
        return error
    return PreconditionError(
        f"image {image.name!r} can't be moved: {error or 'it was moved since then'}",
        hint="bring its content for this node first, or remove the image",
    )
