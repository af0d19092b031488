"""Why content is kept: every chain from a root down to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import DocumentError
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import Holder, ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest


@dataclass(frozen=True, slots=True)
class Chain:
    """One reason: a root, and the contents from what it holds down to what was asked for."""

    holder: Holder
    digests: tuple[Digest, ...]


def explain(metadata: MetadataStore, digest: Digest) -> tuple[Chain, ...]:
    """A shortest chain from each root that keeps the content (in the store or not), the shortest first."""
    chains: list[Chain] = []
    paths: dict[Digest, tuple[Digest, ...]] = {digest: (digest,)}
    waiting = [digest]
    while waiting:
        above: list[Digest] = []
        for each in waiting:
            # A flat holder keeps what it lists and nothing below.
            chains += [
                Chain(holder, paths[each])
                for holder in metadata.graph.holders(each)
                if each == digest or not holder.kind.is_flat
            ]
            for parent in metadata.graph.parents(each):
                if parent not in paths:
                    paths[parent] = (parent, *paths[each])
                    above.append(parent)
        waiting = above
    return tuple(chains)


@dataclass(frozen=True, slots=True)
class HeldDocument:
    """One root of a record: the manifest, if it is one that can be read; or why the root is not as it should be."""

    digest: Digest
    manifest: Manifest | None
    error: DocumentError | None = None


def held_documents(record: ImageRecord, read: Callable[[Descriptor], bytes | None]) -> Iterator[HeldDocument]:
    """The indexes and manifests of a record, parents first.

    ``read`` gives the verified bytes of a document; None if they can't be had, which leaves out what only they name.
    """
    known = {each.digest: each for each in (record.manifest, record.target)}
    is_blind = False
    for digest in record.roots:
        descriptor = known.get(digest)
        if descriptor is None:
            if not is_blind:
                fault = f"no index of it lists {digest}, which the record holds"
                yield HeldDocument(digest, None, DocumentError(record.reference, [fault]))
            continue
        raw = read(descriptor)
        if raw is None:
            is_blind = True
            continue
        try:
            if descriptor.kind is Kind.INDEX:
                index = Index.parse(raw, media_type=descriptor.media_type, what=f"index {digest}")
                known = {entry.digest: entry for entry in index.manifests} | known
                yield HeldDocument(digest, None)
            else:
                what = f"manifest {digest}"
                yield HeldDocument(digest, Manifest.parse(raw, media_type=descriptor.media_type, what=what))
        except DocumentError as error:
            is_blind = True
            yield HeldDocument(digest, None, error)
