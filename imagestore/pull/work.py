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

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore import lease, platforms
from imagestore.collect import sweep
from imagestore.errors import (
    DocumentError,
    ImageStoreError,
    NoMatchingManifestError,
    OperationCancelledError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
)
from imagestore.media_types import Kind
from imagestore.observe import Noticed, Resolved, Selected
from imagestore.pull.choice import Choice, indexes_on_the_way, select_target
from imagestore.pull.fetch import PARALLEL_BLOBS, Fetcher, ingest_ref
from imagestore.pull.sources import Documents
from imagestore.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.cancel import CancelToken
    from imagestore.config import HandlerPlatform
    from imagestore.content.local import LocalContentStore
    from imagestore.descriptor import Descriptor
    from imagestore.documents.image_config import ImageConfig
    from imagestore.documents.select import Selection
    from imagestore.metadata.api import ImageRecord, MetadataStore
    from imagestore.observe import Observer
    from imagestore.registry.client import RegistryClient

# After these, the same pull may go on where it stopped.
_WORTH_KEEPING: Final = (RegistryUnavailableError, RateLimitedError, OperationCancelledError)


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
        choice = self._choose(target, documents)
        with lease.held(self.metadata, purpose="pull") as held, self._undone_on_failure(choice.descriptors, held):
            held.hold([descriptor.digest for descriptor in choice.documents])
            fetcher = Fetcher(self.content, self.client, self.reference, held, self.observer, self.parallel)
            fetcher.fetch_all(choice.manifest.children, cancel=self.cancel)
            for descriptor in choice.documents:
                fetcher.keep(descriptor, documents.raw(descriptor), cancel=self.cancel)
            return self.metadata.put_image(
                choice.record(str(self.reference), self.handler, self._wanted_text),
                {choice.chosen.digest: [child.digest for child in choice.manifest.children]},
            )

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
        if record is None or record.target.digest != target.digest or record.wanted != self._wanted_text:
            return None
        for digest in record.roots:
            needed = (digest, *self.metadata.children(digest))
            if not all(self.content.exists(each) for each in needed):
                return None
        return record

    @property
    def _wanted_text(self) -> str:
        return platforms.format_all(self.wanted.platform)

    def _choose(self, target: Descriptor, documents: Documents) -> Choice:
        """Ask the matcher, and read what it chose."""
        selection = select_target(target, documents, self.wanted.matcher, wanted=self._wanted_text)
        warnings = list(self._judged(target, selection))
        chosen = selection.chosen
        chain = () if chosen is None else indexes_on_the_way(target, chosen.position, documents)
        descriptor = target if chosen is None else chosen.descriptor
        manifest = documents.manifest(descriptor)
        config = documents.config(manifest)
        if chosen is not None and chain and config is not None:
            warnings += self._compared_with_config(descriptor, config)
        for warning in warnings:
            self.observer(Noticed(warning))
        reason = warnings[0] if chosen is None else chosen.reason
        self.observer(Selected(str(self.reference), self.handler, self._wanted_text, descriptor, reason))
        return Choice(target, chain, descriptor, manifest, config, tuple(warnings))

    def _judged(self, target: Descriptor, selection: Selection) -> Iterator[str]:
        """Nothing fits: for a single manifest and a host's undeclared platform only a warning, else an error."""
        if selection.chosen is not None:
            return
        if target.kind is Kind.INDEX or self.wanted.is_declared:
            raise NoMatchingManifestError(
                str(self.reference), self._wanted_text, selection.offered, explanation=selection, hint=selection.hint
            )
        reason = selection.verdicts[0].reason
        yield f"{self.reference} is a single manifest that does not fit the host's platform: {reason}"

    def _compared_with_config(self, descriptor: Descriptor, config: ImageConfig) -> Iterator[str]:
        """An index may mislabel an entry, and its config says so; a Windows version only the config has decides."""
        verdict = self.wanted.matcher.explain(config.platform)
        if verdict.matched:
            return
        lacks_version = descriptor.platform is None or not descriptor.platform.os_version
        if self.wanted.is_declared and lacks_version and config.platform.os_version:
            offered = [platforms.format_all(config.platform)]
            raise NoMatchingManifestError(str(self.reference), self._wanted_text, offered, hint=verdict.reason)
        yield f"{self.reference}: the config of {descriptor.digest} contradicts its index entry: {verdict.reason}"

    @contextlib.contextmanager
    def _undone_on_failure(self, descriptors: Sequence[Descriptor], held: lease.HeldLease) -> Iterator[None]:
        """After a failure that trying again can't mend, delete what this pull brought and nobody else needs."""
        before = {each.digest for each in descriptors if self.content.exists(each.digest)}
        try:
            yield
        except ImageStoreError as error:
            if not isinstance(error, _WORTH_KEEPING):
                new = [each for each in descriptors if each.digest not in before]
                self.metadata.delete_lease(held.id)
                for descriptor in new:
                    self.content.abort(ingest_ref(descriptor))
                sweep(self.metadata, self.content, [each.digest for each in new])
            raise
