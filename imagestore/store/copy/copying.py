"""A copy from one place to another: opens the source, chooses, and writes to the destination."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from imagestore.errors import ImageNotFoundError, InvalidInputError
from imagestore.events import Noticed
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.store import leases
from imagestore.store.archive import exporting, importing, source
from imagestore.store.archive.contents import NAMELESS
from imagestore.store.archive.import_names import picked
from imagestore.store.archive.oci_layout import image_finders
from imagestore.store.copy.compressing import compressed, made_manifest
from imagestore.store.copy.options import CopiedBlob, CopyReport, ImageLocation, LocationKind
from imagestore.store.copy.referrers import no_referrers, referrers_of
from imagestore.store.copy.registry_target import RegistryTarget
from imagestore.store.copy.sources import CopySource, ImageChooser, StoreOrigin
from imagestore.store.copy.stored_referrers import StoredReferrers
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from imagestore.events import Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.platforms import Platform
    from imagestore.registry.client import RegistryClient
    from imagestore.store.copy.options import CopyOptions
    from imagestore.store.parts import StoreParts
    from imagestore.util.cancel import CancelToken


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
    records = exporting.find_records(metadata, [name], _as_export(options), default_handler=default_handler)
    if len(records) > 1:
        raise InvalidInputError(
            f"{name}: has {len(records)} names in the store", hint=f"say which: {', '.join(records)}"
        )
    return next(iter(records.items()))


def _as_export(options: CopyOptions) -> exporting.ExportOptions:
    return exporting.ExportOptions(
        runtime_handlers=options.runtime_handlers,
        all_handlers=options.all_handlers,
        platform=options.platform,
        all_platforms=options.all_platforms,
        shape=exporting.ExportShape.INDEX if options.keeps_index else exporting.ExportShape.MANIFEST,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyWork:
    """One copy; its destination is a registry, a layout or an archive.

    Attributes:
        platform: instead of the handlers' own, or None.
    """

    parts: StoreParts
    client: RegistryClient
    options: CopyOptions
    platform: Platform | None
    observer: Observer
    cancel: CancelToken

    def run(self, origin: ImageLocation, destination: ImageLocation) -> CopyReport:
        """Copy.

        Raises:
            ImageNotFoundError: the source has no such image.
            NoMatchingManifestError: it has nothing for a handler's platform.
            InvalidInputError: source and destination don't go together, or an option doesn't go with them.
            ImageStoreError: as :meth:`imagestore.store.copy.registry_target.RegistryTarget.run` and write_archive().
        """
        return replace(self, options=self.options.between(origin, destination))._run(origin, destination)

    def _run(self, origin: ImageLocation, destination: ImageLocation) -> CopyReport:
        with self._opened(origin) as found, self._fitting(origin, found, destination) as opened:
            if destination.is_archive:
                return self._write_archive(opened, destination)
            reference = Reference.parse(destination.name)
            return RegistryTarget(self.client, reference, self.options, self.observer, self.cancel).run(opened)

    @contextlib.contextmanager
    def _fitting(self, origin: ImageLocation, found: CopySource, destination: ImageLocation) -> Iterator[CopySource]:
        """The image in a form for its destination: that of a docker-archive has no digest to keep, all others have."""
        is_registry = destination.kind is LocationKind.REGISTRY
        is_saved = origin.is_archive and found.referrers is None
        # Imported, or exported again: it has the digest that was made at the import.
        is_kept = origin.kind is not LocationKind.REGISTRY and is_registry and not self.options.referrers
        is_bound = is_registry and Reference.parse(destination.name).digest is not None
        made = made_manifest(found) if is_saved or is_kept else None
        if made is None or is_bound or destination.kind is LocationKind.DOCKER_ARCHIVE:
            yield found
            return
        with compressed(found, made, self.parts.content.scratch, is_oci=not is_registry, cancel=self.cancel) as opened:
            if not is_saved and opened is not found:
                told = f"{opened.image.target.digest}, not {found.image.target.digest}"
                self.observer(
                    Noticed(f"a docker-archive's plain layers are sent compressed, so the digest there is {told}")
                )
            yield opened

    def _opened(self, origin: ImageLocation) -> AbstractContextManager[CopySource]:
        if origin.kind is LocationKind.STORE:
            return self._of_store(origin.name)
        if origin.is_archive:
            return self._of_archive(origin)
        return contextlib.nullcontext(self._chooser().from_registry(self.client, Reference.parse(origin.name)))

    def _chooser(self) -> ImageChooser:
        wanted = importing.ImportOptions(
            runtime_handlers=self.options.runtime_handlers, all_handlers=self.options.all_handlers
        )
        handlers = importing.handlers_for(self.parts.config, wanted, host=self.parts.host, platform=self.platform)
        return ImageChooser(handlers, self.options, self.observer, self.cancel)

    @contextlib.contextmanager
    def _of_store(self, name: str) -> Iterator[CopySource]:
        default, options = self.parts.config.default_handler, _as_export(self.options)
        reference, records = find_stored(self.parts.metadata, name, self.options, default_handler=default)
        wanted = None
        if self.platform is not None:
            explicit = self.parts.config.handler_platform(default, host=self.parts.host, explicit=self.platform)
            wanted = self.platform, explicit.matcher
        with leases.held_to_read(self.parts.metadata, purpose="copy") as held:
            work = exporting.ExportWork(
                records={reference: records},
                options=options,
                platform=wanted,
                content=self.parts.content,
                metadata=self.parts.metadata,
                observer=self.observer,
                cancel=self.cancel,
            )
            image = work.images(held)[0]
            documents = Documents(self.parts.content, None, None, self.cancel)
            kept = StoredReferrers(self.parts.metadata, self.parts.content, image.reference)
            yield CopySource(image, documents, StoreOrigin(self.parts.content), referrers=kept)

    @contextlib.contextmanager
    def _of_archive(self, origin: ImageLocation) -> Iterator[CopySource]:
        room = self.parts.content.free_bytes() // 2
        with source.opened(
            origin.name, scratch=self.parts.content.scratch, limit_bytes=room, cancel=self.cancel
        ) as files:
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
            image = found[0]
            entry = self._entry(image.entries)
            yield self._chooser().from_archive(contents, image.name or NAMELESS, entry)

    def _entry(self, entries: tuple[Descriptor, ...]) -> Descriptor:
        if len(entries) > 1:
            raise InvalidInputError(
                "the archive has several manifests under this name, without an index",
                hint="import it into the store, whose handlers choose, and copy from there",
            )
        bare = entries[0]
        return replace(bare, platform=None, annotations={}) if bare.kind is Kind.INDEX else bare

    def _write_archive(self, opened: CopySource, destination: ImageLocation) -> CopyReport:
        image = opened.image
        if self.options.referrers and destination.kind is LocationKind.DOCKER_ARCHIVE:
            raise no_referrers(str(destination))
        name = Reference.parse(self.options.name) if self.options.name else image.reference
        if name.host == NAMELESS.host:
            raise InvalidInputError(f"{destination}: the image needs a name there", hint="give it one with --name")
        found = referrers_of(opened, observer=self.observer) if self.options.referrers else ()
        image = replace(image, reference=name, referrers=tuple(each.surveyed for each in found))
        written = (*image.manifests, *image.referrers)
        wanted = {child.digest: child for each in written for child in each.descriptors[1:]}
        if not self.options.dry_run:
            read = functools.partial(opened.pieces, cancel=self.cancel)
            form = destination.archive_format
            exporting.write_archive(destination.name, form, (image,), read, observer=self.observer, cancel=self.cancel)
        return CopyReport(
            destination=str(destination),
            target=image.target,
            platforms=image.platforms,
            left_out=image.left_out,
            blobs=tuple(CopiedBlob(each, each.size) for each in wanted.values()),
            referrers=len(found),
            is_dry_run=self.options.dry_run,
        )
