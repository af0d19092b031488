"""What the publisher says of its work: states of images, ways of content, reports."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagestore.errors import Category, ImageStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping


class PublishError(ImageStoreError, category=Category.UNAVAILABLE):
    """An image is in the store, and not in the containerd that is to run it; a later try may succeed."""


class ImageState(enum.Enum):
    """Where an image id is on its way into containerd."""

    WANTED = "wanted"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    #: It was published, and containerd's records, or the store's, have changed since.
    STALE = "stale"
    FAILED = "failed"
    REMOVING = "removing"
    #: An artifact, or another image without a root filesystem: no container can be made of it.
    NOT_RUNNABLE = "not runnable"


class ContentWay(enum.Enum):
    """How the bytes of a layer come into containerd's content."""

    LINKED = "linked"
    OWN_FILE = "own file"
    SENT = "sent"
    #: containerd has them already, or reads them from this store (a proxy content store).
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class ImageStatus:
    """One image id.

    Attributes:
        image_id: digest of the config.
        state: where it is.
        records: (reference, runtime handler) of the store's records that have it.
        names: containerd's names that are wanted for it, each with the digest of the manifest it leads to.
        missing_names: those of them that containerd lacks, or has otherwise.
        snapshotters: for which it is to be unpacked.
        missing_snapshotters: those of them for which it isn't.
        ways: bytes of its layers by the way they came in this process; empty if it was published before.
        reason: why it failed or can't run; empty otherwise.
        next_try: when a failed one is tried again, in seconds since 1970; None if nothing is planned.
        containers: ids of containerd's containers that use it.
    """

    image_id: str
    state: ImageState
    records: tuple[tuple[str, str], ...]
    names: Mapping[str, str] = field(hash=False)
    snapshotters: tuple[str, ...]
    missing_names: tuple[str, ...] = ()
    missing_snapshotters: tuple[str, ...] = ()
    ways: Mapping[ContentWay, int] = field(default_factory=dict, hash=False)
    reason: str = ""
    next_try: float | None = None
    containers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """What one reconciliation did.

    Attributes:
        published: image ids that are published now and weren't before.
        unchanged: how many were published already.
        removed: containerd's names that were taken away.
        failed: the reason by image id.
        not_runnable: the reason by image id.
    """

    published: tuple[str, ...] = ()
    unchanged: int = 0
    removed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict, hash=False)
    not_runnable: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """A publisher and its containerd.

    Attributes:
        address: of containerd's socket.
        namespace: containerd's namespace.
        store_id: the label by which records are this store's.
        is_connected: whether containerd answers, and the process that publishes, if there is one, can use it.
        reason: why not; empty if so.
        process_id: of the process that publishes this store now, 0 if its number isn't known; None if none does.
        version: containerd's; empty while it doesn't answer.
        way: how layers come into it; None if that is not known yet.
        way_reason: why not a cheaper one; empty for the cheapest.
        images: one for each image id.
        unwanted: containerd's names that this store published and doesn't want any more.
        foreign: containerd's names that are wanted here and somebody else's, and ids that no other name leads to.
        warnings: what an operator should know, such as users that differ by handler.
    """

    address: str
    namespace: str
    store_id: str
    is_connected: bool
    reason: str = ""
    process_id: int | None = None
    version: str = ""
    way: ContentWay | None = None
    way_reason: str = ""
    images: tuple[ImageStatus, ...] = ()
    unwanted: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
