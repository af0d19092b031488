"""What a mirror's catalogue takes and gives: where tags lead, what is known of content, and room that is reserved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagestore.oci import Descriptor, Digest


@dataclass(frozen=True, slots=True)
class CachedTag:
    """Where a tag led when its upstream was last asked, ``checked_at`` seconds since 1970."""

    target: Descriptor
    checked_at: float


@dataclass(frozen=True, slots=True)
class KnownContent:
    """What is known of content of a repository.

    Attributes:
        descriptor: by the documents that name it; its size is that of the content in the store, if it is there.
        is_confirmed: the repository's registry has served it, or said that it has it. A document that names content is
            no proof: anyone can push one that names content of another repository.
        is_here: it is in the store, and counts for the upstream.
    """

    descriptor: Descriptor
    is_confirmed: bool
    is_here: bool


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for a blob of ``size`` bytes that the replica ``owner`` is fetching; several for one blob count once.

    It doesn't count from ``ends_at`` on (seconds since 1970), since its replica is dead then.
    """

    id: str
    owner: str
    upstream: str
    digest: Digest
    size: int
    ends_at: float


@dataclass(frozen=True, slots=True)
class EvictedContent:
    """Content that is still under the lease; ``mark`` tells this eviction from a later one of the same content."""

    digest: Digest
    mark: int
