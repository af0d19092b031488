"""Typed events of pulls, uploads and other long operations.

An observer is any callable that takes an event. It is called from several threads, must return quickly and must not
raise. Progress bars, ``--progress json`` and an embedder's metrics are observers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest


@dataclass(frozen=True, slots=True)
class Resolved:
    """A reference led to a target."""

    reference: str
    target: Descriptor


@dataclass(frozen=True, slots=True)
class Selected:
    """The matcher chose a manifest; ``reason`` names the rule."""

    reference: str
    handler: str
    platform: str
    manifest: Descriptor
    reason: str


@dataclass(frozen=True, slots=True)
class BlobAwaited:
    """Another pull, of this or another process, fetches this blob; this pull waits for it and uses it."""

    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class BlobStarted:
    """The transfer of a blob starts; ``offset`` bytes were in the store already."""

    descriptor: Descriptor
    offset: int


@dataclass(frozen=True, slots=True)
class BlobAdvanced:
    """``received`` bytes of a blob have been received."""

    digest: Digest
    received: int


@dataclass(frozen=True, slots=True)
class BlobVerifying:
    """All bytes of a blob are received; its size and digest are checked before it becomes visible (BlobDone)."""

    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class BlobDone:
    """A blob is committed: verified, on disk, and visible in the store.

    ``fetched_bytes`` came over the network in this operation (0: it was in the store already).
    """

    descriptor: Descriptor
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Work pauses, for example because a registry asked for it."""

    host: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class SourceSwitched:
    """A host failed and the next one is tried."""

    failed_host: str
    next_host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """A message for the user that is no error."""

    message: str


@dataclass(frozen=True, slots=True)
class PartAdvanced:
    """Another service pulls for this process and reports one part (a layer, or the whole).

    ``part`` is its own short name, or empty; ``current`` and ``total`` are bytes, if it reports them.
    """

    part: str
    status: str
    current: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class LayerUnpacking:
    """A layer is unpacked; ``read`` bytes of its blob have been."""

    descriptor: Descriptor
    read: int


@dataclass(frozen=True, slots=True)
class LayerUnpacked:
    """A layer is unpacked, and its diff id holds; ``entries`` files, folders, links and whiteouts were in it."""

    descriptor: Descriptor
    entries: int


@dataclass(frozen=True, slots=True)
class BlobUploading:
    """A blob is sent to a registry or written into an archive; ``sent`` bytes of it so far."""

    descriptor: Descriptor
    sent: int


@dataclass(frozen=True, slots=True)
class BlobUploaded:
    """A blob is at its destination: ``sent`` bytes went over the network (0: it was there already).

    ``mounted_from`` is the repository of the same registry from which it was mounted; empty if it was not.
    """

    descriptor: Descriptor
    sent: int
    mounted_from: str = ""


Event = (
    Resolved
    | Selected
    | BlobAwaited
    | BlobStarted
    | BlobAdvanced
    | BlobVerifying
    | BlobDone
    | Waiting
    | SourceSwitched
    | Noticed
    | PartAdvanced
    | LayerUnpacking
    | LayerUnpacked
    | BlobUploading
    | BlobUploaded
)
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that does nothing."""
