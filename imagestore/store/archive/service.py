"""Images into and out of a store by other ways than a pull: archives, copies and unpacked folders."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.oci.reference import Reference
from imagestore.store import leases
from imagestore.store.archive import exporting, importing, source
from imagestore.store.copy import into_store
from imagestore.store.copy.copying import CopyWork, find_stored
from imagestore.store.copy.options import CopyOptions, CopyReport, ImageLocation, LocationKind
from imagestore.store.images_by_name import further_reference
from imagestore.store.pull.service import pull_work
from imagestore.store.unpack.limits import UnpackLimits
from imagestore.store.unpack.unpack import UnpackWork

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from imagestore.events import Observer
    from imagestore.metadata.records import ImageRecord
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.archive.exporting import ExportOptions, ExportReport
    from imagestore.store.archive.importing import ImportOptions, ImportReport, ImportWork
    from imagestore.store.images_by_name import ImagesByName
    from imagestore.store.parts import StoreParts
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.store.unpack.unpack import UnpackReport
    from imagestore.util.cancel import CancelToken

#: The name of standard output, and of standard input.
_STREAM: Final = "-"


class Archives:
    """The part of ImageStore that imports, exports, copies and unpacks images."""

    def __init__(self, parts: StoreParts, images: ImagesByName) -> None:
        self._parts = parts
        self._images = images

    def import_images(
        self,
        archive: str | os.PathLike[str],
        options: ImportOptions | None,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> ImportReport:
        """See ImageStore.import_images()."""
        with self._importing(archive, options or importing.ImportOptions(), observer, cancel) as work:
            return work.run()

    @contextlib.contextmanager
    def _importing(
        self,
        archive: str | os.PathLike[str],
        options: ImportOptions,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> Iterator[ImportWork]:
        """An import that is about to run; the archive is open until the end of the block."""
        parts, content = self._parts, self._parts.content
        platform = parts.platform(options.platform or None)
        handlers = importing.handlers_for(parts.config, options, host=parts.host, platform=platform)
        content.check_room()
        # An archive that can't be read at any place is copied twice: there must be room for both.
        room = content.free_bytes() // 2
        with (
            parts.operation(cancel, observer) as token,
            source.opened(_path(archive), scratch=content.scratch, limit_bytes=room, cancel=token) as files,
        ):
            shared = (content, parts.metadata, observer or parts.observer, token, parts.verifier)
            yield importing.ImportWork(files, handlers, options, *shared)
            # What can't be pulled again.
            parts.metadata.keep_copy(at_once=True)

    def export_images(
        self,
        names: Iterable[str],
        archive: str | os.PathLike[str],
        options: ExportOptions | None,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> ExportReport:
        """See ImageStore.export_images()."""
        parts, chosen = self._parts, options or exporting.ExportOptions()
        default, path = parts.config.default_handler, _path(archive)
        self._refuse_own_files(path)
        for handler in chosen.runtime_handlers:
            parts.known_handler(handler)
        records = exporting.find_records(parts.metadata, names, chosen, default_handler=default)
        wanted, platform = None, parts.platform(chosen.platform or None)
        if platform is not None:
            wanted = platform, parts.config.handler_platform(default, host=parts.host, explicit=platform).matcher
        with parts.operation(cancel, observer) as token:
            shared = (parts.content, parts.metadata, observer or parts.observer, token)
            return exporting.ExportWork(records, path, chosen, wanted, *shared).run()

    def push(
        self,
        name: str,
        destination: str,
        options: CopyOptions | None,
        credentials: CredentialLookup | None,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> CopyReport:
        """See ImageStore.push()."""
        if not destination:
            default = self._parts.config.default_handler
            chosen = options or CopyOptions()
            destination, _ = find_stored(self._parts.metadata, name, chosen, default_handler=default)
        return self.copy(f"store:{name}", destination, options, credentials, observer, cancel)

    def copy(
        self,
        origin: str,
        destination: str,
        options: CopyOptions | None,
        credentials: CredentialLookup | None,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> CopyReport:
        """See ImageStore.copy()."""
        parts, chosen, heard = self._parts, options or CopyOptions(), observer or self._parts.observer
        place, target = ImageLocation.parse(origin), ImageLocation.parse(destination)
        platform = parts.platform(chosen.platform or None)
        if target.kind is LocationKind.STORE:
            into_store.refuse(place, chosen)
            further_reference(target.name)  # refused before the source is opened
            if place.kind is LocationKind.REGISTRY:
                return self._copy_from_registry(place.name, target.name, chosen, credentials, heard, cancel)
            return self._copy_from_archive(place.name, target.name, chosen, heard, cancel)
        if target.is_archive:
            self._refuse_own_files(target.name)
        for handler in chosen.runtime_handlers:
            parts.known_handler(handler)
        with parts.operation(cancel, heard) as token:
            client = parts.client(heard, credentials)
            shared = (parts.config, parts.host, platform, parts.content, parts.metadata, client, parts.content.scratch)
            return CopyWork(chosen, *shared, heard, token).run(place, target)

    def _copy_from_registry(
        self,
        origin: str,
        name: str,
        options: CopyOptions,
        credentials: CredentialLookup | None,
        observer: Observer,
        cancel: CancelToken | None,
    ) -> CopyReport:
        """A pull that is recorded under another name."""
        parts, reference, further, referrers = self._parts, Reference.parse(origin), further_reference(name), 0
        handlers = list(parts.config.handlers) if options.has_all_handlers else options.runtime_handlers or ("",)
        with parts.operation(cancel, observer) as token:
            works = [
                pull_work(
                    parts,
                    reference,
                    each,
                    platform=options.platform or None,
                    observer=observer,
                    cancel=token,
                    credentials=credentials,
                )
                for each in handlers
            ]
            named = [replace(each, recorded_as=further, may_move=options.may_replace) for each in works]
            records = into_store.pull_each(named, is_lenient=options.has_all_handlers, observer=observer)
            if options.has_referrers:
                asked = into_store.ReferrerSource.of_registry(named[0].client, reference, token)
                referrers = asked.bring(records, parts.content, parts.metadata, observer, token)
            parts.metadata.keep_copy()
        return _stored_report(further, records, referrers)

    def _copy_from_archive(
        self, origin: str, name: str, options: CopyOptions, observer: Observer, cancel: CancelToken | None
    ) -> CopyReport:
        """An import of one image under another name."""
        parts, referrers = self._parts, 0
        with self._importing(_path(origin), into_store.import_options(options, name), observer, cancel) as work:
            there = None
            if options.has_referrers:
                there = into_store.ReferrerSource.of_archive(work.source, work.cancel)
            records = [image.record for image in work.run().images]
            if there is not None:
                referrers = there.bring(records, parts.content, parts.metadata, observer, work.cancel)
        return _stored_report(further_reference(name), records, referrers)

    def unpack(
        self,
        name: str,
        folder: str | os.PathLike[str],
        runtime_handler: str | None,
        bundle: BundleOptions | None,
        limits: UnpackLimits | None,
        is_rootless: bool,
        observer: Observer | None,
        cancel: CancelToken | None,
    ) -> UnpackReport:
        """See ImageStore.unpack()."""
        parts = self._parts
        with parts.operation(cancel, observer) as token, leases.held_to_read(parts.metadata, purpose="unpack") as held:
            image = self._images.get(name, runtime_handler)
            held.hold([each.digest for each in (image.manifest, image.manifest_document.config, *image.layers)])
            heard = observer or parts.observer
            work = UnpackWork(image, parts.content, limits or UnpackLimits(), is_rootless, heard, token)
            return work.run(folder) if bundle is None else work.run_bundle(folder, bundle)

    def _refuse_own_files(self, path: str) -> None:
        """An archive that replaces the store's database or a blob would destroy the images it is made from."""
        inside, root = os.path.realpath(path), os.path.realpath(self._parts.root)
        if path != _STREAM and os.path.commonpath((inside, root)) == root:
            raise InvalidInputError(
                f"archive {path}: is inside the store {self._parts.root}",
                hint="name a place outside the store's folder",
            )


def _stored_report(name: Reference, records: Sequence[ImageRecord], referrers: int) -> CopyReport:
    platforms = tuple(dict.fromkeys(str(record.platform) for record in records))
    return CopyReport(f"store:{name}", records[0].target, platforms, (), referrers=referrers)


def _path(archive: str | os.PathLike[str]) -> str:
    path = os.fspath(archive)
    if not path or "\0" in path:
        raise InvalidInputError(
            f"archive {path!r}: is no path", hint="name a file, a folder, a pipe, or - for a stream"
        )
    return path
