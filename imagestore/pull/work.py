"""A pull: resolve, select, fetch, record.

1. The handler's platform was decided before anything is sent (``config``).
2. *Resolve*: the registry says which target the reference names now.
3. If the record is up to date and its content whole, that is all.
4. *Select*: the handler's matcher chooses a manifest from the target.
5. *Fetch*: config and layers that are missing come in parallel, under a lease.
6. *Record*: documents are stored, then the record and its edges are written in one transaction.

A failure before step 6 leaves every record as it was. Blobs that came meanwhile are deleted again, unless trying again
could use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore import lease
from imagestore.errors import DocumentError, ReferenceNotFoundError
from imagestore.media_types import Kind
from imagestore.observe import Noticed, Resolved
from imagestore.pull.decide import Decider
from imagestore.pull.fetch import PARALLEL_BLOBS, Fetcher
from imagestore.pull.sources import Documents
from imagestore.pull.undo import undone_on_failure
from imagestore.reference import Reference

if TYPE_CHECKING:
    from imagestore.cancel import CancelToken
    from imagestore.config import HandlerPlatform
    from imagestore.content.local import LocalContentStore
    from imagestore.descriptor import Descriptor
    from imagestore.metadata.api import ImageRecord, MetadataStore
    from imagestore.observe import Observer
    from imagestore.registry.client import RegistryClient


@dataclass(frozen=True, slots=True)
class PullWork:
    """One pull.

    Attributes:
        reference: what to pull.
        handler: resolved name of the runtime handler, never empty.
        wanted: the platform its matcher works for.
        content: where blobs go.
        metadata: where the record goes.
        client: where everything comes from.
        observer: hears of progress.
        cancel: ends the work.
        parallel: blobs in flight at once.
    """

    reference: Reference
    handler: str
    wanted: HandlerPlatform
    content: LocalContentStore
    metadata: MetadataStore
    client: RegistryClient
    observer: Observer
    cancel: CancelToken
    parallel: int = PARALLEL_BLOBS

    def run(self) -> ImageRecord:
        """Pull and return the record.

        Raises:
            NoMatchingManifestError: the image has nothing for the wanted platform; carries the explanation.
            RegistryError, IntegrityError, DocumentError, StoreError, OperationCancelledError.
        """
        target = self._resolve()
        current = self._current(target)
        if current is not None:
            return current
        documents = Documents(self.content, self.client, self.reference, self.cancel)
        choice = self._decider.choose(target, documents)
        with (
            lease.held(self.metadata, purpose="pull") as held,
            undone_on_failure(self.metadata, self.content, held, choice.descriptors),
        ):
            held.hold([descriptor.digest for descriptor in choice.documents])
            fetcher = Fetcher(self.content, self.client, self.reference, held, self.observer, self.parallel)
            fetcher.fetch_all(choice.manifest.children, cancel=self.cancel)
            for descriptor in choice.documents:
                fetcher.keep(descriptor, documents.raw(descriptor), cancel=self.cancel)
            return self.metadata.put_image(
                choice.record(str(self.reference), self.handler, self._decider.wanted_text),
                {choice.chosen.digest: [child.digest for child in choice.manifest.children]},
            )

    @property
    def _decider(self) -> Decider:
        return Decider(str(self.reference), self.handler, self.wanted, self.observer)

    def _resolve(self) -> Descriptor:
        target = self.client.resolve(self.reference, cancel=self.cancel)
        self.observer(Resolved(str(self.reference), target))
        if target.kind is Kind.SCHEMA1:
            fault = "is a schema 1 manifest, a format from before 2017 that can't be verified"
            raise DocumentError(str(self.reference), [f"{fault}; push the image again with today's tools"])
        if target.kind not in (Kind.INDEX, Kind.MANIFEST):
            raise DocumentError(
                str(self.reference), [f"leads to {target.media_type!r}, neither an index nor a manifest"]
            )
        if self.reference.tag and self.reference.digest is not None:
            self._report_drift(target)
        return target

    def _report_drift(self, target: Descriptor) -> None:
        """Say when the tag beside a digest no longer (or never) leads to it."""
        by_tag = Reference(self.reference.host, self.reference.path, self.reference.tag)
        try:
            now = self.client.resolve(by_tag, cancel=self.cancel).digest
        except ReferenceNotFoundError:
            self.observer(Noticed(f"{by_tag} does not exist (any more); fetched by digest"))
            return
        if now != target.digest:
            self.observer(Noticed(f"{by_tag} now leads to {now}; fetched {target.digest} as asked"))

    def _current(self, target: Descriptor) -> ImageRecord | None:
        """The stored record, if it is what this pull would make and all its content is here."""
        record = self.metadata.get_image(str(self.reference), self.handler)
        if record is None or record.target.digest != target.digest or record.wanted != self._decider.wanted_text:
            return None
        for digest in record.roots:
            needed = (digest, *self.metadata.children(digest))
            if not all(self.content.exists(each) for each in needed):
                return None
        return record
