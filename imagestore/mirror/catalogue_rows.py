"""The port of a mirror's rows: what its replicas remember, as steps of which each is one transaction.

Replicas that share their records call these at the same time. So a step that decides something by what it reads takes
the upstream's lock before it reads, and a step that changes rows of one upstream is never half done.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest


@dataclass(frozen=True, slots=True)
class CachedTag:
    """Where a tag led when its upstream was last asked.

    Attributes:
        target: of the index or manifest.
        checked_at: seconds since 1970.
    """

    target: Descriptor
    checked_at: float


@dataclass(frozen=True, slots=True)
class KnownContent:
    """What is known of content of a repository.

    Attributes:
        descriptor: by the documents that name it.
        is_earned: whether its upstream is known to have it: it came from there, or the upstream said so. A document
            that names content is no proof: anybody can push one that names another upstream's.
    """

    descriptor: Descriptor
    is_earned: bool


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for a blob on its way; each fetch has one of its own. Several of one blob count once.

    Attributes:
        id: unlike any other.
        owner: the replica that fetches.
        upstream: whose quota it counts against.
        digest: of the blob.
        size: of the blob, in bytes.
        ends_at: seconds since 1970; from then on it counts no more, since its replica is dead.
    """

    id: str
    owner: str
    upstream: str
    digest: Digest
    size: int
    ends_at: float


class Outcome(enum.Enum):
    """What became of a try to reserve."""

    RESERVED = "there is room, and it is reserved"
    EVICTED = "a document was evicted, and there isn't room yet"
    REFUSED = "there is no room, and nothing may be evicted"


@dataclass(frozen=True, slots=True)
class Try:
    """A try to reserve.

    Attributes:
        outcome: what became of it.
        has_evicted: whether content is leaving now, see ``leaving()``.
    """

    outcome: Outcome
    has_evicted: bool


@dataclass(frozen=True, slots=True)
class Leaving:
    """Evicted content whose lease has to be let go.

    Attributes:
        digest: of it.
        mark: tells this eviction from a later one.
    """

    digest: Digest
    mark: int


class CatalogueRows(Protocol):
    """Rows of one mirror, shared by all its replicas; thread-safe. Names are whole: ``docker.io/library/python``.

    Times are seconds since 1970. Every call raises StoreError where the rows can't be read or changed.
    """

    def tag(self, name: str, tag: str) -> CachedTag | None:
        """Where a tag led, if its document is still known."""

    def document(self, name: str, digest: Digest) -> Descriptor | None:
        """An index or manifest (or a blob that was asked for on its own) of a repository."""

    def known(self, upstream: str, name: str, digest: Digest) -> KnownContent | None:
        """Anything that a repository is known to have: documents, and what they name.

        Where documents disagree about a size, that of the content that is here counts.
        """

    def put_document(
        self,
        upstream: str,
        name: str,
        document: Descriptor,
        parts: Sequence[Descriptor],
        *,
        tag: str,
        is_here: bool,
        now: float,
    ) -> None:
        """Note a document, served now, what it names, and the tag that leads to it now; an empty tag is none.

        What was first asked for as a blob may turn out to be a manifest, and never the other way round. The size of
        content that is here stays, unless the new one is of content that is here, too.
        """

    def put_blob(self, upstream: str, name: str, blob: Descriptor, *, now: float) -> None:
        """Note content that is here; what nothing of the upstream names is a document of its own, served now."""

    def marks(self, digest: Digest) -> dict[str, int]:
        """For each upstream whose content counts as here: a number that is another one each time it is put."""

    def forget_content(self, digest: Digest, marks: Mapping[str, int]) -> None:
        """Content isn't here: it counts no more, where its mark is still that one."""

    def distrust(self, name: str, digest: Digest) -> None:
        """Forget a document that is a blob of its own."""

    def drop_tag(self, name: str, tag: str) -> None:
        """Forget a tag."""

    def note_served(self, name: str, digest: Digest, *, now: float) -> None:
        """Note that a document, or what it names, is served now."""

    def used_bytes(self) -> dict[str, int]:
        """What content that is here takes, by upstream; of every upstream that has any row of content or documents."""

    def try_to_reserve(self, wanted: Reservation, *, quota_bytes: int | None, not_since: float, now: float) -> Try:
        """Reserve room; where the quota has none, evict the one document that wasn't served for the longest time.

        The sum of what is here and what is reserved decides, each content counted once. A document that is on its way,
        or names something on its way, the wanted blob included, is not evicted, nor one that was served since
        ``not_since``. With a document go its tags. What nothing of the upstream names any more counts no more, and is
        leaving. Reservations that are over at ``now`` go first.

        Args:
            wanted: what to reserve.
            quota_bytes: of the upstream; None for no limit.
            not_since: a document that was served later stays.
            now: the time.
        """

    def renew_reservations(self, owner: str, *, ends_at: float) -> None:
        """A replica lives: all its reservations last until then."""

    def end_reservation(self, id_: str) -> None:
        """A blob is here, or isn't coming; harmless when it ended already."""

    def end_reservations(self, owner: str) -> None:
        """A replica begins, or ends: it fetches nothing."""

    def leaving(self, upstream: str) -> tuple[Leaving, ...]:
        """Evicted content whose lease wasn't let go yet, by this replica or another one."""

    def wanted(self, upstream: str, digests: Sequence[Digest], *, now: float) -> frozenset[Digest]:
        """Those of some digests that a document of the upstream is or names, or that a live reservation is for."""

    def forget_leaving(self, upstream: str, left: Sequence[Leaving]) -> None:
        """Its lease was let go; what was evicted once more since then stays."""

    def forget_unnamed(self, upstream: str) -> None:
        """Forget content that no document names; it is leaving."""

    def forget_upstream(self, upstream: str) -> None:
        """Forget all that is here of an upstream."""

    def contents(self, upstream: str) -> frozenset[Digest]:
        """All that an upstream's lease has to hold: what it is known to have, and what its documents name."""

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a repository, in order of their bytes."""

    def names(self, upstream: str) -> tuple[str, ...]:
        """The repositories of an upstream that have documents, in order of their bytes."""

    def close(self) -> None:
        """Let go of the database."""
