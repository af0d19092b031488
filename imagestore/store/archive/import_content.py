"""An import's records and their content: small blobs of all images come together, large ones as a pull would."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.content.api import BATCH, BATCHED_BYTES, SmallBlob
from imagestore.events import BlobDone
from imagestore.store.archive.source import read
from imagestore.store.pull.fetch import Fetcher

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from imagestore.content.api import ContentStore, SmallBlobs
    from imagestore.events import Observer
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.store.archive.contents import ArchiveOrigin
    from imagestore.store.archive.index_survey import SurveyedManifest
    from imagestore.store.leases import HeldLease
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.sources import Documents
    from imagestore.util.cancel import CancelToken

#: Digests that get their lease in one transaction: some milliseconds.
_LEASED_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class NeededContent:
    """Content that must be in the store.

    Attributes:
        reference: names the image in messages.
        raw: its verified bytes, when it is a document that was read already.
    """

    reference: Reference
    descriptor: Descriptor
    raw: bytes | None


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """One record to be, and what must be in the store for it."""

    reference: Reference
    choice: Choice
    record: ImageRecord
    others: tuple[SurveyedManifest, ...]
    reader: Documents
    documents: tuple[Descriptor, ...]
    blobs: tuple[Descriptor, ...]

    @classmethod
    def of(
        cls,
        reference: Reference,
        choice: Choice,
        record: ImageRecord,
        others: tuple[SurveyedManifest, ...],
        reader: Documents,
    ) -> ImportPlan:
        """With each document and each other blob once."""
        pointing = [each for found in others for each in (*found.chain, found.descriptor)]
        pointed_at = [each for found in others if found.manifest is not None for each in found.manifest.children]
        documents = {each.digest: each for each in (*choice.documents, *pointing)}
        blobs = {each.digest: each for each in (*choice.manifest.children, *pointed_at)}
        roots = tuple(dict.fromkeys((*record.roots, *(each.digest for each in pointing))))
        size = sum(each.size for each in (documents | blobs).values())
        return cls(
            reference=reference,
            choice=choice,
            record=replace(record, roots=roots, content_size=size),
            others=others,
            reader=reader,
            documents=tuple(documents.values()),
            blobs=tuple(blobs.values()),
        )

    @property
    def key(self) -> tuple[str, str]:
        """Reference and runtime handler of the record."""
        return self.record.reference, self.record.handler

    @property
    def wanted(self) -> Iterator[NeededContent]:
        """Documents first, then the other blobs."""
        for each in self.documents:
            yield NeededContent(self.reference, each, self.reader.raw(each))
        for each in self.blobs:
            yield NeededContent(self.reference, each, self.reader.remembered(each))

    @property
    def edges(self) -> dict[Digest, list[Digest]]:
        """What each manifest leads to, by digest."""
        manifests = {found.descriptor.digest: found.manifest for found in self.others if found.manifest is not None}
        manifests[self.choice.chosen.digest] = self.choice.manifest
        return {digest: [child.digest for child in manifest.children] for digest, manifest in manifests.items()}


@dataclass(frozen=True, slots=True)
class ContentImporter:
    """Stores what an archive has and the store lacks."""

    content: ContentStore
    origin: ArchiveOrigin
    observer: Observer
    held: HeldLease
    cancel: CancelToken

    def lease(self, digests: Collection[Digest]) -> None:
        """Put everything under the lease, before checking what is there."""
        waiting = list(digests)
        for start in range(0, len(waiting), _LEASED_AT_ONCE):
            self.held.hold(waiting[start : start + _LEASED_AT_ONCE])

    def store(self, wanted: Iterable[NeededContent]) -> None:
        """Bring what is missing; each digest once.

        Raises:
            IntegrityError: the archive's bytes aren't what they should be.
        """
        once = list({each.descriptor.digest: each for each in wanted}.values())
        small: list[NeededContent] = []
        large: dict[Reference, list[Descriptor]] = {}
        missing: list[Descriptor] = []
        for each in once:
            here = self.content.find(each.descriptor.digest)
            size = None if here is None else here.size
            if size is None:
                missing.append(each.descriptor)
            if size == each.descriptor.size or (size is not None and each.raw is not None):
                self._say(each, 0)
            elif size is None and self._is_small(each):
                small.append(each)
            else:
                large.setdefault(each.reference, []).append(each.descriptor)
        with self.content.small_blobs(self.cancel) as small_blobs:
            fetchers = {
                reference: Fetcher(self.content, self.origin, reference, self.observer, self.held.renew, small_blobs)
                for reference in dict.fromkeys(each.reference for each in once)
            }
            if small or large:
                next(iter(fetchers.values())).check_space(missing)
            if small:
                self._store_small(small, small_blobs)
            for reference, descriptors in large.items():
                fetchers[reference].fetch_all(descriptors, cancel=self.cancel)
        self.cancel.check()

    def _store_small(self, wanted: list[NeededContent], small_blobs: SmallBlobs) -> None:
        for start in range(0, len(wanted), BATCH):
            self.held.renew()
            batch = wanted[start : start + BATCH]
            small_blobs.put([self._small(each) for each in batch])
            for each in batch:
                self._say(each, each.descriptor.size)

    def _small(self, wanted: NeededContent) -> SmallBlob:
        descriptor, raw = wanted.descriptor, wanted.raw
        what = f"{wanted.reference}: {descriptor.kind.value} {descriptor.digest.short}"
        if raw is not None:
            return SmallBlob(descriptor.digest, len(raw), lambda: raw, what)
        place = self.origin.places[descriptor.digest]
        return SmallBlob(
            descriptor.digest,
            descriptor.size,
            lambda: read(self.origin.source, place, limit_bytes=BATCHED_BYTES),
            what,
        )

    def _is_small(self, wanted: NeededContent) -> bool:
        if wanted.raw is not None:
            return True
        descriptor, origin = wanted.descriptor, self.origin
        is_kept = descriptor.digest in origin.places and descriptor.digest not in origin.packed
        return is_kept and descriptor.size <= BATCHED_BYTES

    def _say(self, wanted: NeededContent, received: int) -> None:
        if wanted.raw is None:
            self.observer(BlobDone(wanted.descriptor, received))
