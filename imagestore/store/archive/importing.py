"""An import: look into the archive, name, choose, fetch, record. The same steps as a pull, from another origin.

1. The archive's format, images and file sizes are read; nothing is unpacked.
2. Every image gets its reference (``names``).
3. For each image and handler the handler's matcher chooses a manifest, as in a pull.
4. Names that lead to other content, missing blobs and wrong sizes are refused: nothing has been written yet.
5. Under a lease the content comes through ingests, where size and digest are verified.
6. All records are written in one transaction, after looking at the names once more.

A failure leaves the store as it was, by the rules of a pull.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    IntegrityError,
    InvalidDigestError,
    NoMatchingManifestError,
    NotFoundError,
)
from imagestore.events import Noticed, Resolved
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.index import Index
from imagestore.oci.layout import DOCKER_MANIFEST as _MANIFEST
from imagestore.oci.layout import INDEX as _INDEX
from imagestore.oci.media_types import OCI_INDEX
from imagestore.oci.select import select
from imagestore.platforms import format_all
from imagestore.store import leases
from imagestore.store.archive import import_names, source
from imagestore.store.archive.docker_archive import DockerManifestComparison
from imagestore.store.archive.import_content import ContentImporter, ImportPlan
from imagestore.store.archive.index_survey import survey
from imagestore.store.archive.oci_layout import image_finders
from imagestore.store.image import Image
from imagestore.store.pull.choice import ManifestChooser, for_each_handler
from imagestore.store.pull.present import check_present, holding, make_names_durable
from imagestore.store.pull.sources import Documents, remove_damaged
from imagestore.store.pull.undo import undone_on_failure
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from imagestore.config import HandlerPlatform
    from imagestore.errors import ImageStoreError
    from imagestore.events import Observer
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.store.archive.contents import ArchiveContents, ArchiveImage, ArchiveOrigin
    from imagestore.store.archive.index_survey import SurveyedManifest
    from imagestore.store.archive.source import Source
    from imagestore.store.parts import StoreParts
    from imagestore.store.pull.choice import Choice
    from imagestore.util.cancel import CancelToken

    FindImages = Callable[[Source, CancelToken], ArchiveContents]

#: Documents of one import, which are in memory together; those of ten thousand usual images fit.
MAX_DOCUMENTS_BYTES: Final = 640 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What to import, and how it is called here.

    Attributes:
        runtime_handlers: whose matchers choose; empty means the configured default handler.
        all_handlers: every configured handler that the image has something for, instead.
        platform: instead of the handlers' own platforms, in text form; empty means theirs.
        all_platforms: keep also the manifests that no handler chose, with all their content.
        images: names in the archive; empty means all.
        name: the reference to record, for an archive (or choice) of one image; empty means the archive's.
        replace: move records that lead to other content.
    """

    runtime_handlers: tuple[str, ...] = ()
    all_handlers: bool = False
    platform: str = ""
    all_platforms: bool = False
    images: tuple[str, ...] = ()
    name: str = ""
    replace: bool = False


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What came of an import.

    Attributes:
        images: as recorded, in the order of the archive.
        unused_blobs: how many blobs of the archive were not needed.
        unused_bytes: their size.
    """

    images: tuple[Image, ...]
    unused_blobs: int
    unused_bytes: int


def handlers_for(parts: StoreParts, options: ImportOptions) -> dict[str, HandlerPlatform]:
    """The handlers whose matchers choose, with their platforms.

    Raises:
        UnknownRuntimeHandlerError: one of them isn't configured.
        InvalidPlatformError: the options' can't be read.
    """
    config, platform = parts.config, parts.platform(options.platform or None)
    chosen = config.handlers if options.all_handlers else options.runtime_handlers or ("",)
    names = dict.fromkeys(config.handler(name).name for name in chosen)
    return {name: config.handler_platform(name, host=parts.host, explicit=platform) for name in names}


def opened_archive(
    parts: StoreParts, archive: str | os.PathLike[str], cancel: CancelToken
) -> contextlib.AbstractContextManager[Source]:
    """An archive, open for a block of work; what can't be read at any place goes through the store's disk.

    Raises:
        InvalidInputError, DocumentError, StoreFullError: it can't be opened, or is none.
    """
    # What can't be read at any place is copied twice by an import: there must be room for both.
    room = parts.content.free_bytes() // 2
    path = source.path_of(archive)
    return source.opened(path, scratch=parts.content.scratch, limit_bytes=room, cancel=cancel)


@contextlib.contextmanager
def opened(
    parts: StoreParts,
    archive: str | os.PathLike[str],
    options: ImportOptions | None,
    observer: Observer | None,
    cancel: CancelToken | None,
) -> Iterator[ImportWork]:
    """An import that is about to run; the archive is open until the end of the block.

    Raises:
        UnknownRuntimeHandlerError, InvalidPlatformError: an option names what isn't there.
        InvalidInputError, StoreError: the archive can't be opened, or the store has no room.
    """
    chosen = options or ImportOptions()
    handlers = handlers_for(parts, chosen)
    parts.content.check_room()
    with parts.operation(cancel, observer) as token, opened_archive(parts, archive, token) as files:
        yield ImportWork(
            parts=parts,
            source=files,
            handlers=handlers,
            options=chosen,
            observer=observer or parts.observer,
            cancel=token,
        )
        # What can't be pulled again.
        parts.metadata.keep_copy(at_once=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportWork:
    """One import.

    Attributes:
        handlers: platforms by resolved handler name.
        is_strict: whether an image of another platform than wanted is never taken.
    """

    parts: StoreParts
    source: Source
    handlers: Mapping[str, HandlerPlatform]
    options: ImportOptions
    observer: Observer
    cancel: CancelToken
    is_strict: bool = False

    def run(self) -> ImportReport:
        """Import, and say what came of it.

        An archive may describe its images twice, as a layout and by Docker's ``manifest.json``: then the layout counts,
        unless it is broken, or names none; where the other one gives a name another image, that is said.

        Raises:
            ImageDeniedError: the verifier refuses an image.
            NoMatchingManifestError: an image has nothing for a handler's platform; carries the explanation.
            AlreadyExistsError: a name leads to other content, and may not be moved.
            DocumentError, IntegrityError, ContentNotFoundError: the archive breaks its format, is damaged or partial.
        """
        first, *others = image_finders(self.source)
        if not others:
            return self._import(first(self.source, self.cancel))
        try:
            contents = first(self.source, self.cancel)
            if contents.images and (self.options.name or any(image.name for image in contents.images)):
                return self._import(contents, DockerManifestComparison(self.source))
            self.observer(Noticed(f"{self.source.what}: {_MANIFEST} counts, since {_INDEX} names no image"))
        except (DocumentError, IntegrityError, NotFoundError, NoMatchingManifestError) as error:
            if isinstance(error, NoMatchingManifestError) and error.offered:
                raise
            return self._import_by_other(others[0], error)
        return self._import(others[0](self.source, self.cancel))

    def _import_by_other(self, find_images: FindImages, fault: ImageStoreError) -> ImportReport:
        """Import by the second description; where that is broken too, the fault of the first one counts."""
        try:
            report = replace(self, is_strict=True)._import(find_images(self.source, self.cancel))
        except (DocumentError, IntegrityError, NotFoundError, NoMatchingManifestError) as error:
            said = f"{_MANIFEST}, which describes its images too, is of no use either: {error}"
            fault.hint = f"{fault.hint}; {said}" if fault.hint else said
            raise fault from error
        self.observer(Noticed(f"imported by {_MANIFEST}, since its layout is broken: {fault}"))
        return report

    def _import(self, contents: ArchiveContents, docker: DockerManifestComparison | None = None) -> ImportReport:
        named, notes = import_names.assign(
            contents.images,
            only=self.options.images,
            name=self.options.name,
            what=self.source.what,
            left_out=contents.notes,
        )
        # Everything is judged before anything is written.
        for note in (*contents.notes, *notes):
            self.observer(Noticed(note))
        plans: list[ImportPlan] = []
        held_bytes = 0
        for reference, image in named:
            plans += self._plans(reference, image, contents.origin)
            if docker is not None:
                look = functools.partial(self._at_hand, origin=contents.origin)
                for note in docker.differences(image, plans[-1].choice, plans[-1].reader, look):
                    self.observer(Noticed(note))
            held_bytes += plans[-1].reader.held_bytes
            if held_bytes > MAX_DOCUMENTS_BYTES:
                fault = f"has indexes, manifests and configs that take more than {MAX_DOCUMENTS_BYTES} bytes"
                raise DocumentError(self.source.what, [f"{fault}; import some of its images at a time"])
        for name, target in dict.fromkeys((plan.record.reference, plan.choice.target) for plan in plans):
            self.parts.verifier.verify(name, target, cancel=self.cancel)
        self._check_free(plans, contents.origin)
        return self._report(self._bring(plans, contents.origin), plans, contents.origin)

    def _plans(self, reference: Reference, image: ArchiveImage, origin: ArchiveOrigin) -> list[ImportPlan]:
        """What each handler gets; of all handlers, those for which there is nothing are only noted."""
        documents = Documents(self.parts.content, origin, reference, self.cancel)

        def _plan(handler: str) -> ImportPlan:
            chooser = ManifestChooser(str(reference), handler, self.handlers[handler], self.observer)
            return self._plan(reference, image, chooser, documents, origin)

        return for_each_handler(
            self.handlers,
            _plan,
            is_lenient=self.options.all_handlers,
            observer=self.observer,
            nothing_for_it=(NoMatchingManifestError, ContentNotFoundError),
        )

    def _target(
        self, reference: Reference, image: ArchiveImage, chooser: ManifestChooser, documents: Documents
    ) -> Descriptor:
        """The index or manifest that the name leads to; of several the one that has something for the handler."""
        entry = image.entries[0]
        if len(image.entries) > 1:
            whole = Index(b"", OCI_INDEX, image.entries)
            selection = select(whole, chooser.wanted.matcher, documents, wanted=chooser.wanted_text)
            if selection.chosen is None:
                raise chooser.refusal(selection)
            entry = image.entries[selection.chosen.position[0]]
        # As a registry would answer: what index.json says of an entry is not part of the image.
        target = Descriptor(entry.media_type, entry.digest, entry.size)
        import_names.check_digest(reference, target)
        self.observer(Resolved(str(reference), target))
        return target

    def _plan(
        self,
        reference: Reference,
        image: ArchiveImage,
        chooser: ManifestChooser,
        documents: Documents,
        origin: ArchiveOrigin,
    ) -> ImportPlan:
        target = self._target(reference, image, chooser, documents)
        choice = chooser.complete(chooser.choose(target, documents), documents)
        record = choice.record(str(reference), chooser.handler, chooser.wanted_text)
        is_strict = self.is_strict or self.options.all_handlers
        if is_strict and not chooser.wanted.matcher.match(record.platform):
            # A single manifest, taken with a warning by a handler that the caller named; this one was not named.
            raise NoMatchingManifestError(str(reference), chooser.wanted_text, [format_all(record.platform)])
        others = self._others(choice, documents, origin) if self.options.all_platforms else ()
        plan = ImportPlan.of(reference, choice, record, others, documents)
        self._check_content(plan, origin)
        return plan

    def _others(self, choice: Choice, documents: Documents, origin: ArchiveOrigin) -> tuple[SurveyedManifest, ...]:
        """The manifests that weren't chosen, but are wholly there."""
        found = survey(choice.target, documents, lambda wanted: self._at_hand(wanted, origin))
        for each in found:
            if not each.is_complete:
                self.observer(Noticed(f"{origin.source.what}: does not have all of {each.label}"))
        return tuple(each for each in found if each.is_complete and each.descriptor.digest != choice.chosen.digest)

    def _at_hand(self, wanted: Collection[Descriptor], origin: ArchiveOrigin) -> set[Digest]:
        return {each.digest for each in wanted if origin.has(each.digest) or self.parts.content.exists(each.digest)}

    def _check_content(self, plan: ImportPlan, origin: ArchiveOrigin) -> None:
        """What the archive lacks may be in the store already; what it has must have the size that is promised."""
        for descriptor in plan.blobs:
            if not descriptor.digest.is_verifiable:
                raise InvalidDigestError(f"{origin.source.what}: {descriptor.digest}: this algorithm can't be verified")
            if origin.has(descriptor.digest) or not self.parts.content.exists(descriptor.digest):
                origin.check(descriptor)

    def _bring(self, plans: list[ImportPlan], origin: ArchiveOrigin) -> tuple[ImageRecord, ...]:
        everything = {each.digest: each for plan in plans for each in (*plan.documents, *plan.blobs)}
        content, metadata = self.parts.content, self.parts.metadata
        with (
            leases.held(metadata, purpose="import") as held,
            undone_on_failure(metadata, content, held, tuple(everything.values()), content.sizes(everything)),
        ):
            importer = ContentImporter(content, origin, self.observer, held, self.cancel)
            importer.lease(everything)
            for plan in plans:
                remove_damaged(content, plan.reader.take_damaged())
            importer.store(each for plan in plans for each in plan.wanted)
            for plan in plans:
                plan.reader.check_stored_layers(plan.choice.manifest)
            make_names_durable(content, everything.values())
            reach("import-record")
            with held.recording([plan.key for plan in plans]):
                check_present(content, everything.values(), what=self.source.what)
                # A pull may have taken the name since.
                here = self._check_free(plans, origin)
                return metadata.images.put_many(
                    [(self._joined(plan, here.get(plan.key)), plan.edges) for plan in plans]
                )

    def _check_free(self, plans: Iterable[ImportPlan], origin: ArchiveOrigin) -> Mapping[tuple[str, str], ImageRecord]:
        """Check that no name would be moved that may not be, and return the records of these names that are here."""
        here = self.parts.metadata.images.get_many([plan.key for plan in plans])
        records = (plan.record for plan in plans)
        import_names.check_free(here, records, origin.has, may_replace=self.options.replace)
        return here

    def _joined(self, plan: ImportPlan, current: ImageRecord | None) -> ImageRecord:
        """Another import of the same content may have kept more of its platforms; they stay, if they are whole."""
        record = plan.record if current is None else replace(plan.record, labels=current.labels)
        if current is None or current.target.digest != record.target.digest:
            return record
        counted = {each.digest for each in (*plan.documents, *plan.blobs)}
        return holding(record, current.roots, counted, self.parts.content, self.parts.metadata)

    def _report(self, records: tuple[ImageRecord, ...], plans: list[ImportPlan], origin: ArchiveOrigin) -> ImportReport:
        used = {each.digest for plan in plans for each in (*plan.documents, *plan.blobs)}
        sizes = origin.source.sizes()
        # A link or a pipe under such a name has no size.
        unused = [sizes.get(place, 0) for digest, place in origin.places.items() if digest not in used]
        images = tuple(Image(record, self.parts.content) for record in records)
        return ImportReport(images, len(unused), sum(unused))
