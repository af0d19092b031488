"""What happens during long work, as typed events.

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
    """Another pull, of this process or another one, fetches this blob; this one waits and then uses it."""

    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class BlobStarted:
    """Bytes of a blob begin to come; ``offset`` bytes were here already."""

    descriptor: Descriptor
    offset: int


@dataclass(frozen=True, slots=True)
class BlobAdvanced:
    """``received`` bytes of a blob are here by now."""

    digest: Digest
    received: int


@dataclass(frozen=True, slots=True)
class BlobVerifying:
    """All bytes of a blob are here; size and digest are compared, and then it is made visible (BlobDone)."""

    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class BlobDone:
    """A blob is committed: verified, on disk, and visible in the store.

    ``fetched_bytes`` came over the network in this operation (0: it was here already).
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
    """Something that the user should know and that is no error."""

    message: str


@dataclass(frozen=True, slots=True)
class PartAdvanced:
    """Another service pulls for us and reports one part (a layer, or the whole).

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
    """A blob goes to a registry or into an archive; ``sent`` bytes of it have gone."""

    descriptor: Descriptor
    sent: int


@dataclass(frozen=True, slots=True)
class BlobUploaded:
    """A blob is where it was to go: ``sent`` bytes went over the network (0: it was there already).

    ``mounted_from`` is the repository of the same registry from which it was taken over; empty if it was not.
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
