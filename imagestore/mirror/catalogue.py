"""What a mirror has, and when it was last asked for: tags, documents, what they name, and bytes against quotas.

What keeps content from being collected is a lease for each upstream (see ``keeping``), which follows this. The order of
steps keeps the two together without one lock for both: content is noted here first, held by the lease then, and looked
at after that. What was evicted is let go of the other way round: it is forgotten here, let go of by the lease, and held
again if it was noted meanwhile.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from imagestore.mirror.catalogue_rows import Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.mirror.catalogue_rows import CachedTag, CatalogueRows, KnownContent, Leaving, Try
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest

#: A replica of which nothing was heard for so long is dead, and what it reserved is free again.
RESERVED_SECONDS: Final = 600.0


class Catalogue:
    """What the mirror's rows mean; thread-safe, as they are. Names are whole: ``docker.io/library/python``.

    Args:
        rows: shared with other replicas, where there are some; closed with this.
        owner: names this replica among them; what it reserved before it was started anew is free.
        clock: seconds since 1970.

    Raises:
        StoreError: the rows can't be changed. So does every call where they can't be read or changed.
    """

    def __init__(self, rows: CatalogueRows, *, owner: str = "", clock: Callable[[], float] = time.time) -> None:
        self._rows = rows
        self._owner = owner
        self._clock = clock
        rows.end_reservations(owner)

    def close(self) -> None:
        """Let go of the rows."""
        self._rows.close()

    def tag(self, name: str, tag: str) -> CachedTag | None:
        """Where a tag led, if its document is still known."""
        return self._rows.tag(name, tag)

    def document(self, name: str, digest: Digest) -> Descriptor | None:
        """An index or manifest (or a blob that was asked for on its own) of a repository."""
        return self._rows.document(name, digest)

    def known(self, upstream: str, name: str, digest: Digest) -> KnownContent | None:
        """Anything that a repository of an upstream is known to have: documents, and what they name."""
        return self._rows.known(upstream, name, digest)

    def put_document(
        self,
        upstream: str,
        name: str,
        document: Descriptor,
        parts: Sequence[Descriptor],
        *,
        tag: str = "",
        is_here: bool = True,
    ) -> None:
        """Note a document that an upstream has, what it names, and the tag that leads to it now."""
        self._rows.put_document(upstream, name, document, parts, tag=tag, is_here=is_here, now=self._clock())

    def put_blob(self, upstream: str, name: str, blob: Descriptor) -> None:
        """Note content that came from an upstream; what nothing names is a document of its own, so that it can go."""
        self._rows.put_blob(upstream, name, blob, now=self._clock())

    def forget_content(self, digest: Digest, is_gone: Callable[[], bool]) -> None:
        """Content isn't here any more: it counts against no quota.

        Args:
            digest: of it.
            is_gone: looks once more. What is fetched again after that look counts.
        """
        marks = self._rows.marks(digest)
        if marks and is_gone():
            self._rows.forget_content(digest, marks)

    def distrust(self, name: str, digest: Digest) -> None:
        """Forget the size that an upstream told of a blob, which was wrong."""
        self._rows.distrust(name, digest)

    def drop_tag(self, name: str, tag: str) -> None:
        """Forget a tag that its upstream doesn't have any more."""
        self._rows.drop_tag(name, tag)

    def note_served(self, name: str, digest: Digest) -> None:
        """A document, or what it names, was served now; the least recently served are evicted first."""
        self._rows.note_served(name, digest, now=self._clock())

    def used_bytes(self) -> dict[str, int]:
        """What the content of each upstream takes that has something here."""
        return self._rows.used_bytes()

    def try_to_reserve(
        self, upstream: str, blob: Descriptor, quota_bytes: int | None, *, spared_seconds: float
    ) -> tuple[str, Try]:
        """Make room for a blob on its way, by at most one eviction; end_reservation() when it came or won't.

        Args:
            upstream: whose quota it is.
            blob: which.
            quota_bytes: that its content may take; None for no limit.
            spared_seconds: a document that was served in this time stays.

        Returns:
            The reservation's id, and what became of the try.
        """
        now, id_ = self._clock(), secrets.token_hex(16)
        wanted = Reservation(id_, self._owner, upstream, blob.digest, blob.size, now + RESERVED_SECONDS)
        return id_, self._rows.try_to_reserve(wanted, quota_bytes=quota_bytes, not_since=now - spared_seconds, now=now)

    def renew_reservations(self) -> None:
        """Say that this replica lives; at least once in half of ``RESERVED_SECONDS``."""
        self._rows.renew_reservations(self._owner, ends_at=self._clock() + RESERVED_SECONDS)

    def end_reservation(self, id_: str) -> None:
        """See try_to_reserve(); harmless when it ended already."""
        self._rows.end_reservation(id_)

    def leaving(self, upstream: str) -> tuple[Leaving, ...]:
        """Evicted content whose lease wasn't let go yet."""
        return self._rows.leaving(upstream)

    def wanted(self, upstream: str, digests: Sequence[Digest]) -> frozenset[Digest]:
        """Those of some digests that a document of the upstream names, or that are on their way."""
        return self._rows.wanted(upstream, digests, now=self._clock())

    def forget_leaving(self, upstream: str, left: Sequence[Leaving]) -> None:
        """The lease of evicted content was let go."""
        self._rows.forget_leaving(upstream, left)

    def forget_unnamed(self, upstream: str) -> None:
        """Forget content that no document names, as a distrusted one leaves it."""
        self._rows.forget_unnamed(upstream)

    def forget_upstream(self, upstream: str) -> None:
        """Forget all that is here of an upstream."""
        self._rows.forget_upstream(upstream)

    def contents(self, upstream: str) -> frozenset[Digest]:
        """All that an upstream's lease has to hold: what is here, and what its documents name."""
        return self._rows.contents(upstream)

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a repository that were asked for, in order."""
        return self._rows.tags(name)

    def names(self, upstream: str) -> tuple[str, ...]:
        """The repositories of an upstream that have something here, in order."""
        return self._rows.names(upstream)
