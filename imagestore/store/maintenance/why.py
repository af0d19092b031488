"""Why content is kept: every chain from a root down to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import Holder
    from imagestore.oci.digest import Digest


@dataclass(frozen=True, slots=True)
class Chain:
    """One reason: a root, and the contents from what it holds down to what was asked for."""

    holder: Holder
    digests: tuple[Digest, ...]


def explain(metadata: MetadataStore, digest: Digest) -> tuple[Chain, ...]:
    """A shortest chain from each root that keeps the content, the shortest first; empty when nothing keeps it.

    Args:
        metadata: records, leases, labels and edges.
        digest: the content, whether it is in the store or not.
    """
    chains: list[Chain] = []
    paths: dict[Digest, tuple[Digest, ...]] = {digest: (digest,)}
    waiting = [digest]
    while waiting:
        above: list[Digest] = []
        for each in waiting:
            # A flat holder keeps what it lists and nothing below.
            chains += [
                Chain(holder, paths[each])
                for holder in metadata.holders(each)
                if each == digest or not holder.kind.is_flat
            ]
            for parent in metadata.parents(each):
                if parent not in paths:
                    paths[parent] = (parent, *paths[each])
                    above.append(parent)
        waiting = above
    return tuple(chains)
