"""Surveys an index: every manifest in it, and whether all its content is at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ContentNotFoundError, DocumentError
from imagestore.oci.media_types import Kind
from imagestore.oci.select import MAX_DEPTH, MAX_ENTRIES, MAX_INDEXES
from imagestore.platforms import format_all

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.manifest import Manifest
    from imagestore.oci.reference import Reference
    from imagestore.platforms import Platform
    from imagestore.store.pull.sources import Documents

    #: Returns which of some descriptors are at hand (and keeps their content, if it could be collected).
    Look = Callable[[Collection[Descriptor]], Collection[Digest]]


@dataclass(frozen=True, slots=True)
class ExportedImage:
    """One name in an archive.

    Attributes:
        reference: canonical.
        target: what it leads to in the archive.
        manifests: the manifests that are in it.
        left_out: platforms that the image has, but not in this archive.
        referrers: manifests that refer to it and go along.
    """

    reference: Reference
    target: Descriptor
    manifests: tuple[SurveyedManifest, ...]
    left_out: tuple[str, ...] = ()
    referrers: tuple[SurveyedManifest, ...] = ()

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms of the manifests that are in it, in text form."""
        return tuple(each.label for each in self.manifests if not each.descriptor.is_attestation)


@dataclass(frozen=True, slots=True)
class SurveyedManifest:
    """An entry of an index (or the single manifest).

    Attributes:
        chain: the indexes from the target down to it.
        manifest: its manifest; None when that is missing.
        platform: the entry's, else its config's; None when neither is known.
        missing: what isn't at hand.
    """

    descriptor: Descriptor
    chain: tuple[Descriptor, ...]
    manifest: Manifest | None
    platform: Platform | None
    missing: tuple[Digest, ...]

    @property
    def is_complete(self) -> bool:
        """Whether manifest, config and layers are all at hand."""
        return not self.missing

    @property
    def label(self) -> str:
        """Its platform in text form, or its digest."""
        return str(self.descriptor.digest) if self.platform is None else format_all(self.platform)

    @property
    def descriptors(self) -> tuple[Descriptor, ...]:
        """The manifest and its children; meaningful when complete."""
        return (self.descriptor, *(self.manifest.children if self.manifest is not None else ()))


def survey(target: Descriptor, documents: Documents, look: Look) -> tuple[SurveyedManifest, ...]:
    """Look at every manifest below a target, in index order; an index that is listed again is passed over.

    Args:
        target: an index or a manifest; it must be at hand.
        look: returns which descriptors are.

    Raises:
        ContentNotFoundError: the target is missing.
        DocumentError: a document breaks its rules, or indexes nest too deep, or are too many.
    """
    entries = [(target, ())] if target.kind is Kind.MANIFEST else _entries(target, documents, look)
    here = look([entry for entry, _ in entries])
    manifests = {entry.digest: documents.manifest(entry) for entry, _ in entries if _is_readable(entry, here)}
    here = {*here, *look([child for manifest in manifests.values() for child in manifest.children])}
    return tuple(_judged(entry, chain, manifests.get(entry.digest), here, documents) for entry, chain in entries)


def _is_readable(entry: Descriptor, here: Collection[Digest]) -> bool:
    return entry.kind is Kind.MANIFEST and entry.digest in here


def _entries(target: Descriptor, documents: Documents, look: Look) -> list[tuple[Descriptor, tuple[Descriptor, ...]]]:
    if target.digest not in look([target]):
        raise ContentNotFoundError(f"index {target.digest}: is needed, but missing")
    found = []
    opened: set[Digest] = set()

    def _walk(chain: tuple[Descriptor, ...]) -> Iterator[tuple[Descriptor, tuple[Descriptor, ...]]]:
        index = chain[-1]
        if len(chain) > MAX_DEPTH or len(opened) > MAX_INDEXES:
            raise DocumentError(f"index {target.digest}", ["indexes in it nest too deep, or are too many"])
        opened.add(index.digest)
        entries = documents.index(index).manifests
        here = look([entry for entry in entries if entry.kind is Kind.INDEX])
        for entry in entries:
            if entry.kind is not Kind.INDEX or entry.digest not in here:
                yield entry, chain
            elif entry.digest not in opened:
                # Others may list it, too. A loop would need a document that has its own digest inside.
                yield from _walk((*chain, entry))

    for number, each in enumerate(_walk((target,))):
        if number >= MAX_ENTRIES:
            raise DocumentError(f"index {target.digest}", [f"lists more than {MAX_ENTRIES} entries"])
        found.append(each)
    return found


def _judged(
    entry: Descriptor,
    chain: tuple[Descriptor, ...],
    manifest: Manifest | None,
    here: Collection[Digest],
    documents: Documents,
) -> SurveyedManifest:
    if manifest is None:
        return SurveyedManifest(entry, chain, None, entry.platform, (entry.digest,))
    missing = tuple(child.digest for child in manifest.children if child.digest not in here)
    platform = entry.platform
    if platform is None and manifest.config.digest in here:
        config = documents.config(manifest)
        platform = None if config is None else config.platform
    return SurveyedManifest(entry, chain, manifest, platform, missing)
