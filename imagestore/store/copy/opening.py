"""Opens the source of a copy, and chooses which manifests of its image go along.

From a registry or an archive the handlers' matchers choose, as in a pull or an import. In the store the records say
what each handler has.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from imagestore.errors import DocumentError, ImageNotFoundError, InvalidInputError
from imagestore.events import Resolved
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.platforms import format_all
from imagestore.store.archive import exporting, importing
from imagestore.store.archive.contents import NAMELESS
from imagestore.store.archive.import_names import picked
from imagestore.store.archive.index_survey import ExportedImage, SurveyedManifest, survey
from imagestore.store.archive.oci_layout import image_finders
from imagestore.store.copy.options import LocationKind
from imagestore.store.copy.stored_referrers import StoredReferrers
from imagestore.store.image_source import in_archive, in_registry, in_store
from imagestore.store.pull.choice import ManifestChooser, for_each_handler

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from imagestore.config import HandlerPlatform
    from imagestore.events import Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.registry.client import RegistryClient
    from imagestore.store.archive.contents import ArchiveImage
    from imagestore.store.archive.index_survey import Look
    from imagestore.store.copy.options import CopyOptions, ImageLocation
    from imagestore.store.image_source import ImageSource
    from imagestore.store.parts import StoreParts
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.sources import Documents
    from imagestore.util.cancel import CancelToken

    Found = tuple[ExportedImage, ImageSource]

T = TypeVar("T")


def find_stored(
    metadata: MetadataStore, name: str, options: CopyOptions, *, default_handler: str
) -> tuple[str, list[ImageRecord]]:
    """The reference and the records of the store's image that a copy means.

    Args:
        name: reference, image id, or the beginning of one.

    Raises:
        ImageNotFoundError: the store has no such image, or a handler has none of it.
        InvalidInputError: several images, or one under several names.
    """
    return _only(name, exporting.find_records(metadata, [name], as_export(options), default_handler=default_handler))


def _only(name: str, found: Mapping[str, T]) -> tuple[str, T]:
    """The one reference that a name stands for, and what is found under it."""
    if len(found) > 1:
        raise InvalidInputError(f"{name}: has {len(found)} names in the store", hint=f"say which: {', '.join(found)}")
    return next(iter(found.items()))


def as_export(options: CopyOptions) -> exporting.ExportOptions:
    """The options of an export that takes what the copy takes."""
    return exporting.ExportOptions(
        runtime_handlers=options.runtime_handlers,
        all_handlers=options.all_handlers,
        platform=options.platform,
        all_platforms=options.all_platforms,
        shape=exporting.ExportShape.INDEX if options.keeps_index else exporting.ExportShape.MANIFEST,
    )


def as_import(options: CopyOptions, name: str = "") -> importing.ImportOptions:
    """The options of an import that takes what the copy takes, and records it under a name."""
    return importing.ImportOptions(
        runtime_handlers=options.runtime_handlers,
        all_handlers=options.all_handlers,
        platform=options.platform,
        all_platforms=options.all_platforms,
        images=(options.image,) if options.image else (),
        name=name,
        replace=options.replace,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOpener:
    """Opens a place for a block of work, and chooses what is copied of its image."""

    parts: StoreParts
    client: RegistryClient
    options: CopyOptions
    observer: Observer
    cancel: CancelToken

    def opened(self, origin: ImageLocation) -> contextlib.AbstractContextManager[Found]:
        """What was chosen of an image, and where it is read from.

        Raises:
            RegistryError, ContentNotFoundError, IntegrityError, DocumentError: the image can't be had, is damaged or
                partial, or breaks its rules.
            ImageNotFoundError: there is no such image, or there are several.
            NoMatchingManifestError: it has nothing for a handler's platform; carries the explanation.
        """
        if origin.kind is LocationKind.STORE:
            return self._in_store(origin.name)
        if origin.is_archive:
            return self._in_archive(origin.name)
        return contextlib.nullcontext(self._in_registry(Reference.parse(origin.name)))

    def _in_registry(self, reference: Reference) -> Found:
        handlers = self._handlers()
        target, raw = self.client.resolve_whole(reference, cancel=self.cancel)
        self.observer(Resolved(str(reference), target))
        source = in_registry(self.client, reference, self.cancel)
        if raw is not None:
            source.documents.remember(target, raw)
        return self._chosen(target, source, handlers, lambda wanted: [each.digest for each in wanted]), source

    @contextlib.contextmanager
    def _in_store(self, name: str) -> Iterator[Found]:
        options = as_export(self.options)
        with exporting.stored_images(self.parts, [name], options, purpose="copy", cancel=self.cancel) as images:
            image = _only(name, {str(each.reference): each for each in images})[1]
            kept = StoredReferrers(self.parts.metadata, self.parts.content, image.reference)
            yield image, in_store(self.parts.content, self.cancel, reference=image.reference, referrers=kept)

    @contextlib.contextmanager
    def _in_archive(self, path: str) -> Iterator[Found]:
        handlers = self._handlers()
        with importing.opened_archive(self.parts, path, self.cancel) as files:
            contents = image_finders(files)[0](files, self.cancel)
            found = picked(contents.images, [self.options.image] if self.options.image else [], files.what)
            # As in an import, what has no name is left out where something has one.
            named = [each for each in found if each.name is not None or each.label]
            found = named if named and not self.options.image else found
            if len(found) != 1:
                names = ", ".join(str(each) for each in found[:10])
                raise ImageNotFoundError(
                    f"{files.what}: has {len(found)} images, and one is copied", hint=f"say which with --image: {names}"
                )
            source = in_archive(contents, found[0].name or NAMELESS, self.cancel)

            def _look(wanted: Collection[Descriptor]) -> list[Digest]:
                return [each.digest for each in wanted if contents.origin.has(each.digest)]

            yield self._chosen(_entry(found[0]), source, handlers, _look), source

    def _handlers(self) -> dict[str, HandlerPlatform]:
        """Whose matchers choose; an unknown one is refused before anything is read."""
        return importing.handlers_for(self.parts, as_import(self.options))

    def _chosen(
        self, target: Descriptor, source: ImageSource, handlers: Mapping[str, HandlerPlatform], look: Look
    ) -> ExportedImage:
        reference, documents = source.reference, source.documents
        if self.options.all_platforms:
            everything = survey(target, documents, look)
            found = [each for each in everything if each.is_complete]
            left_out = tuple(each.label for each in everything if not each.is_complete)
            if not found:
                raise InvalidInputError(f"{reference}: the source has no platform of it whole")
        else:
            found = [
                SurveyedManifest(each.chosen, each.chain, each.manifest, each.platform, ())
                for each in self._choices(target, source, handlers)
            ]
            chosen = {each.descriptor.digest for each in found}
            left_out = tuple(_labels(target, documents, chosen)) if target.kind is Kind.INDEX else ()
        found = list({each.descriptor.digest: each for each in found}.values())
        if not self.options.keeps_index:
            if len(found) > 1:
                raise DocumentError(str(reference), ["handlers choose several manifests, and one can go alone"])
            target = found[0].descriptor
        return ExportedImage(reference, target, tuple(found), left_out)

    def _choices(
        self, target: Descriptor, source: ImageSource, handlers: Mapping[str, HandlerPlatform]
    ) -> list[Choice]:
        def _choose(handler: str) -> Choice:
            chooser = ManifestChooser(str(source.reference), handler, handlers[handler], self.observer)
            return chooser.complete(chooser.choose(target, source.documents), source.documents)

        return for_each_handler(handlers, _choose, is_lenient=self.options.all_handlers, observer=self.observer)


def _entry(image: ArchiveImage) -> Descriptor:
    """What the name of an image in an archive leads to."""
    if len(image.entries) > 1:
        raise InvalidInputError(
            "the archive has several manifests under this name, without an index",
            hint="import it into the store, whose handlers choose, and copy from there",
        )
    bare = image.entries[0]
    return replace(bare, platform=None, annotations={}) if bare.kind is Kind.INDEX else bare


def _labels(target: Descriptor, documents: Documents, chosen: Collection[object]) -> Iterator[str]:
    """What the entries of an index are called that aren't chosen; nested indexes count as one."""
    for entry in documents.index(target).manifests:
        if entry.digest not in chosen and not entry.is_attestation:
            yield format_all(entry.platform) if entry.platform is not None else str(entry.digest)
