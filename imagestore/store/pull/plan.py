"""Plans a pull without doing it: what would be fetched, and what the store has already."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from imagestore.content.api import ContentStore
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.store.pull.choice import Choice


class Presence(enum.Enum):
    """Where a blob is before the pull."""

    NEW = "new"
    PARTIAL = "partial"
    HERE = "here"
    PLANNED = "planned"
    SOURCE = "at a source"


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """One blob of a plan.

    Attributes:
        presence: ``PLANNED`` means that another pull of the same plan brings it, ``SOURCE`` that it would be adopted
            from elsewhere on the machine.
        missing_bytes: bytes that would be fetched.
        added_bytes: growth of the store's content; a damaged blob is replaced, so its size is subtracted.
    """

    descriptor: Descriptor
    presence: Presence
    missing_bytes: int
    added_bytes: int


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What one pull would do; sizes in bytes.

    Attributes:
        reference: canonical text.
        handler: runtime handler.
        wanted: text form of the platform that decides.
        choice: target, manifest and config.
        blobs: everything the record would need, documents among it.
        is_current: the record is up to date; nothing would be fetched.
    """

    reference: str
    handler: str
    wanted: str
    choice: Choice
    blobs: tuple[PlannedBlob, ...]
    is_current: bool

    def bytes_of(self, presence: Presence) -> int:
        """Size of the blobs in one state."""
        return sum(blob.descriptor.size for blob in self.blobs if blob.presence is presence)

    @property
    def missing_bytes(self) -> int:
        """Bytes that this pull would fetch over the network."""
        return sum(blob.missing_bytes for blob in self.blobs)

    @property
    def added_bytes(self) -> int:
        """Growth of the store's content in bytes; more than missing_bytes if parts of blobs are here or at a source."""
        return sum(blob.added_bytes for blob in self.blobs)


def planned_blobs(
    choice: Choice, content: ContentStore, planned: AbstractSet[Digest], damaged: AbstractSet[Digest]
) -> tuple[PlannedBlob, ...]:
    """Compare a choice with the store.

    Args:
        planned: what other planned pulls bring.
        damaged: what was read and isn't what its digest says.
    """
    offsets = {status.ref: status.offset for status in content.statuses()}

    def _planned_blob(descriptor: Descriptor) -> PlannedBlob:
        found = content.find(descriptor.digest) if descriptor.digest.is_verifiable else None
        there = 0 if found is None else found.size
        if found is not None and there == descriptor.size and descriptor.digest not in damaged:
            return PlannedBlob(descriptor, Presence.HERE, 0, 0)
        if descriptor.digest in planned:
            return PlannedBlob(descriptor, Presence.PLANNED, 0, 0)
        # The plan itself has read documents from the registry, as a pull does.
        if descriptor not in choice.documents and content.is_at_source(descriptor.digest, descriptor.size):
            return PlannedBlob(descriptor, Presence.SOURCE, 0, descriptor.size - there)
        offset = min(offsets.get(descriptor.ingest_ref, 0), descriptor.size)
        presence = Presence.PARTIAL if offset else Presence.NEW
        return PlannedBlob(descriptor, presence, descriptor.size - offset, descriptor.size - there)

    return tuple(map(_planned_blob, choice.descriptors))
