"""Images whose content is here already, brought by another client than a pull: they only need a record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imagestore.errors import (
    DocumentError,
    IntegrityError,
    InvalidDigestError,
    NoMatchingManifestError,
    NotFoundError,
    StoreBusyError,
)
from imagestore.events import ignore
from imagestore.oci.media_types import Kind
from imagestore.platforms import format_all
from imagestore.store.pull.choice import ManifestChooser
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from imagestore.config import HandlerPlatform
    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.util.cancel import CancelToken


@dataclass(frozen=True, slots=True)
class PresentImage:
    """What a record would be made of.

    Attributes:
        choice: what the handler gets; all of it was here a moment ago.
        record: as it would be written.
        others: other wanted parts of its target, each index before what it lists.
    """

    choice: Choice
    record: ImageRecord
    others: tuple[Digest, ...]

    def put(
        self,
        content: ContentStore,
        metadata: MetadataStore,
        *,
        labels: Mapping[str, str],
        is_pinned: bool,
        created_at: float,
    ) -> ImageRecord:
        """Write the record, in the caller's transaction.

        Args:
            content: looked at once more: perhaps nothing kept it in that time.
            created_at: seconds since 1970, for a reference and handler that had no record.

        Raises:
            StoreBusyError: some of the content was collected since then.
        """
        needed = self.choice.descriptors
        check_present(content, needed, what=self.record.reference)
        record = holding(self.record, self.others, {each.digest for each in needed}, content, metadata)
        edges = {self.choice.chosen.digest: [child.digest for child in self.choice.manifest.children]}
        return metadata.images.put(
            replace(record, labels=dict(labels), is_pinned=is_pinned), edges, created_at=created_at
        )


def holding(
    record: ImageRecord,
    roots: Iterable[Digest],
    counted: AbstractSet[Digest],
    content: ContentStore,
    metadata: MetadataStore,
) -> ImageRecord:
    """A record that holds more of its target, if all of that is here.

    Args:
        roots: indexes and manifests below its target, each index before what it lists; their edges are known.
        counted: what its size has already.
    """
    more = [digest for digest in roots if digest not in record.roots]
    needed = {each for digest in more for each in (digest, *metadata.graph.own_children(digest))} - counted
    here = content.sizes(needed)
    if here.keys() != needed:
        return record
    size = sum(here.values())
    return replace(record, roots=(*record.roots, *more), content_size=record.content_size + size)


def find_present(
    target: Descriptor,
    also: Collection[Digest],
    *,
    reference: Reference,
    handler: str,
    wanted: HandlerPlatform,
    content: ContentStore,
    verifier: ImageVerifier,
    cancel: CancelToken,
) -> PresentImage:
    """What a handler gets from a target, all of it here and durable.

    A single manifest must fit the platform: it was not pulled for this handler.

    Args:
        target: an index or a manifest.
        also: other indexes and manifests, to be held if the target lists them and they are whole.
        handler: resolved name of the runtime handler, never empty.

    Raises:
        ContentNotFoundError: something isn't here.
        NoMatchingManifestError: there is nothing for the wanted platform; carries the explanation.
        ImageDeniedError: the verifier refuses the image.
        DocumentError, IntegrityError, InvalidDigestError: the image breaks its format, or is damaged.
    """
    name = str(reference)
    if target.kind not in (Kind.INDEX, Kind.MANIFEST):
        raise DocumentError(name, [f"leads to {target.media_type!r}, neither an index nor a manifest"])
    documents = Documents(content, None, None, cancel)
    chooser = ManifestChooser(name, handler, wanted, ignore)
    choice = chooser.complete(chooser.choose(target, documents), documents)
    record = choice.record(name, handler, chooser.wanted_text)
    if not wanted.matcher.match(record.platform):
        raise NoMatchingManifestError(name, chooser.wanted_text, [format_all(record.platform)])
    for each in choice.descriptors:
        if content.info(each.digest).size != each.size:
            raise DocumentError(name, [f"{each.digest} has another size than the {each.size} bytes it promises"])
    documents.check_stored_layers(choice.manifest)
    verifier.verify(name, target, cancel=cancel)
    make_names_durable(content, choice.descriptors)
    return PresentImage(choice, record, tuple(_listed(choice, also, documents)))


def _listed(choice: Choice, wanted: Collection[Digest], documents: Documents) -> Iterator[Digest]:
    """Those of some indexes and manifests that the choice's indexes list, directly or nested."""
    left = {*wanted} - {each.digest for each in choice.documents}
    waiting = [documents.index(each) for each in choice.chain]
    while waiting:
        for entry in waiting.pop(0).manifests:
            if entry.digest not in left:
                continue
            left.remove(entry.digest)
            if entry.kind is Kind.INDEX:
                try:
                    waiting.append(documents.index(entry))
                except (NotFoundError, DocumentError, IntegrityError, InvalidDigestError):
                    continue  # others' content, that the image can do without
            yield entry.digest


def known_targets(metadata: MetadataStore, content: ContentStore, reference: Reference) -> list[Descriptor]:
    """The targets under every handler whose document the store has."""
    found = [record.target for record in metadata.images.find(reference=str(reference))]
    return [target for target in found if content.exists(target.digest)]


def make_names_durable(content: ContentStore, descriptors: Collection[Descriptor]) -> None:
    """Make the names of blobs durable, those that other processes gave too; before the write lock is taken."""
    content.make_durable({descriptor.digest.algorithm for descriptor in descriptors})


def check_present(content: ContentStore, descriptors: Collection[Descriptor], *, what: str) -> None:
    """Check that everything is here, while the write lock is held.

    Only a lease that ended early makes that untrue, or a repair that found damage the pull took for good.

    Raises:
        StoreBusyError: something was collected since then.
    """
    digests = [descriptor.digest for descriptor in descriptors]
    here = content.sizes(digests)
    gone = [digest for digest in digests if digest not in here]
    if gone:
        raise StoreBusyError(
            f"{what}: {gone[0]} was removed before the record was written: as damaged, or since the lease of this work "
            "ended early",
            hint="try again; leases end early where the clock is set forward, or the machine sleeps for a day",
        )
