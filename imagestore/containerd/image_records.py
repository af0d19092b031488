"""Records by (reference, runtime handler) as containerd images, whose names are unique in a namespace.

    the default handler's   <reference>             target: what the reference resolved to, index or manifest
    another handler's       <reference>@<handler>   target: the manifest that this handler's sandbox runs

No reference ends like that: what follows an ``@`` in one is a digest. Each image names its handler in a label, which is
why the labels with our prefix are the store's own: clients read them and can't set them. See docs/decisions/0016.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.errors import ImageNotFoundError, InvalidInputError
from imagestore.metadata.records import HOME, NamedImage, image_name
from imagestore.oci.gc_labels import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.metadata.records import ImageRecord
    from imagestore.store.image_store import ImageStore

OWN_PREFIX: Final = "io.imagestore."
HANDLER_LABEL: Final = f"{OWN_PREFIX}runtime-handler"
IMAGE_ID_LABEL: Final = f"{OWN_PREFIX}image-id"
MANIFEST_LABEL: Final = f"{OWN_PREFIX}manifest"
PLATFORM_LABEL: Final = f"{OWN_PREFIX}platform"
#: What containerd's CRI marks its images with.
MANAGED_LABEL: Final = "io.cri-containerd.image"
PINNED_LABEL: Final = "io.cri-containerd.pinned"
# Configurations have no longer ones.
_LONGEST_HANDLER: Final = 253


@dataclass(frozen=True, slots=True)
class HandlerImage:
    """A record, and the image it looks like."""

    record: ImageRecord
    image: NamedImage


def project(record: ImageRecord, default_handler: str) -> HandlerImage:
    """A record as an image of the store's own namespace.

    Args:
        record: the record.
        default_handler: whose records go by their references alone.
    """
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
    """The record that goes by a name, or None."""
    default = store.config.default_handler
    record = store.metadata.images.get(name, default)
    if record is not None:
        return project(record, default)
    before, at, after = name.rpartition("@")
    # A handler's name may have an @ in it, but a caller's may have any number of them.
    while at and len(after) <= _LONGEST_HANDLER:
        if after and after != default:
            record = store.metadata.images.get(before, after)
            if record is not None:
                return project(record, default)
        before, at, rest = before.rpartition("@")
        after = f"{rest}@{after}"
    return None


def image(store: ImageStore, namespace: str, name: str) -> NamedImage | None:
    """What goes by a name in a namespace: a record's image, else a client's, or None."""
    record = find(store, name) if namespace == HOME else None
    return record.image if record is not None else store.metadata.named_images.get(namespace, name)


def existing_image(store: ImageStore, namespace: str, name: str) -> NamedImage:
    """As image().

    Raises:
        InvalidInputError: no name.
        ImageNotFoundError: there is none.
    """
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
    """Replace a record's labels; the store's own among them must be left as they are. The label of pins pins.

    Args:
        store: what the record is in.
        found: the record.
        labels: all of them, as its image is to have them.
        may_unpin: a record without that label is pinned no more; clients that replace all labels don't mean that.

    Raises:
        InvalidInputError: one of those differs, or a label is too long.
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
    """Those of an image's labels that a record keeps as such: not what it says by itself."""
    return {key: value for key, value in foreign_labels(labels).items() if key not in (MANAGED_LABEL, PINNED_LABEL)}


def foreign_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels without the store's own, for an image that a client makes of one of ours."""
    return {key: value for key, value in labels.items() if not key.startswith(OWN_PREFIX)}
