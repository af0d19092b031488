"""The part of ImageStore that exports, imports and copies."""

from __future__ import annotations

import abc
import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.errors import InvalidInputError
from imagestore.oci.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from imagestore.config import Config
    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.platforms import Platform
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.events import Observer
    from imagestore.store.archive.exporting import ExportOptions, ExportReport
    from imagestore.store.archive.importing import ImportOptions, ImportReport, ImportWork
    from imagestore.store.copy.options import CopyOptions, CopyReport, ImageLocation
    from imagestore.store.pull.pull_work import PullWork
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.util.cancel import CancelToken

#: The name of standard output, and of standard input.
_STREAM: Final = "-"


class Archives(abc.ABC):
    """Export, import and copy; the store's other halves say where and for whom."""

    root: Path
    content: ContentStore
    metadata: MetadataStore
    config: Config
    host: Platform
    observer: Observer

    @property
    @abc.abstractmethod
    def verifier(self) -> ImageVerifier:
        """Asked before an image is fetched or imported."""

    @abc.abstractmethod
    def _known(self, handler: str | None) -> str | None:
        """The handler a request means."""

    @abc.abstractmethod
    def _operation(self, cancel: CancelToken | None) -> AbstractContextManager[CancelToken]:
        """A long work, which ends when the store is closed."""

    @property
    @abc.abstractmethod
    def registry(self) -> RegistryClient:
        """The registry client in use."""

    @abc.abstractmethod
    def _work(
        self,
        reference: Reference,
        runtime_handler: str,
        platform: str | Platform | None,
        observer: Observer,
        cancel: CancelToken,
        credentials: CredentialLookup | None = None,
    ) -> PullWork:
        """A pull for one handler."""

    @abc.abstractmethod
    def explicit_platform(self, platform: str | Platform | None) -> Platform | None:
        """The platform that a call names.

        Raises:
            InvalidPlatformError: it can't be read.
        """

    def import_images(
        self,
        archive: str | os.PathLike[str],
        *,
        options: ImportOptions | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> ImportReport:
        """Bring images in from an OCI layout (folder or tar, gzip or not) or a docker-archive, verified as a pull is.

        Args:
            archive: its path; ``-`` is standard input.
            options: which images, for whom, under which names; by default all, for the default handler, under theirs.
            observer: hears of progress, from several threads.
            cancel: ends the import.

        Raises:
            ImageStoreError: as :meth:`imagestore.store.archive.importing.ImportWork.run`; the store stays as it was.
        """
        with self._importing(archive, options, observer or self.observer, cancel) as work:
            return work.run()

    @contextlib.contextmanager
    def _importing(
        self,
        archive: str | os.PathLike[str],
        options: ImportOptions | None,
        observer: Observer,
        cancel: CancelToken | None,
    ) -> Iterator[ImportWork]:
        """An import that is about to run; the archive is open until the end of the block."""
        with translated("load what imports into it", self.content.name):
            from imagestore.store.archive import importing, source

        chosen = options or importing.ImportOptions()
        platform = self.explicit_platform(chosen.platform or None)
        handlers = importing.handlers_for(self.config, chosen, host=self.host, platform=platform)
        self.content.check_room()
        # What can't be read at any place is copied twice: there must be room for both.
        room = self.content.free_bytes() // 2
        with (
            self._operation(cancel) as token,
            source.opened(_path(archive), scratch=self.content.scratch, limit_bytes=room, cancel=token) as files,
        ):
            parts = (self.content, self.metadata, observer, token, self.verifier)
            yield importing.ImportWork(files, handlers, chosen, *parts)

    def export_images(
        self,
        names: Iterable[str],
        archive: str | os.PathLike[str],
        *,
        options: ExportOptions | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> ExportReport:
        """Write images (by reference or id) into an archive; the same images give the same bytes.

        Args:
            names: of the images.
            archive: path of the file (replaced when complete) or new folder; ``-`` is standard output.
            options: whose images, which platforms, which format; by default the default handler's, as OCI archive.
            observer: hears of progress.
            cancel: ends the export.

        Raises:
            UnknownRuntimeHandlerError: neither configured nor in any record.
            ImageStoreError: as :meth:`imagestore.store.archive.exporting.ExportWork.run` and find_records().
        """
        with translated("load what exports from it", self.content.name):
            from imagestore.store.archive import exporting

        chosen, default = options or exporting.ExportOptions(), self.config.default_handler
        path = _path(archive)
        self._refuse_own_files(path)
        for handler in chosen.runtime_handlers:
            self._known(handler)
        records = exporting.find_records(self.metadata, names, chosen, default_handler=default)
        wanted, platform = None, self.explicit_platform(chosen.platform or None)
        if platform is not None:
            wanted = platform, self.config.handler_platform(default, host=self.host, explicit=platform).matcher
        with self._operation(cancel) as token:
            parts = (self.content, self.metadata, observer or self.observer, token)
            return exporting.ExportWork(records, path, chosen, wanted, *parts).run()

    def push(
        self,
        name: str,
        destination: str = "",
        *,
        options: CopyOptions | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> CopyReport:
        """Copy an image of the store into a registry.

        Args:
            name: reference or id.
            destination: the reference that it gets there; empty for its own.
            options: whose manifests; by default the default handler's alone.
            credentials: instead of the store's, for this push.
            observer: hears of progress (BlobUploading, BlobUploaded), from several threads.
            cancel: ends the push; what was sent is not sent again by the next one.

        Raises:
            ImageNotFoundError: the store has no such image.
            InvalidInputError: the image has several names, so that one has to be said.
            ImageStoreError: as copy().
        """
        if not destination:
            with translated("load what copies from it", self.content.name):
                from imagestore.store.copy.copying import find_stored
                from imagestore.store.copy.options import CopyOptions

            chosen = options or CopyOptions()
            destination, _ = find_stored(self.metadata, name, chosen, default_handler=self.config.default_handler)
        return self.copy(
            f"store:{name}", destination, options=options, credentials=credentials, observer=observer, cancel=cancel
        )

    def copy(
        self,
        source: str,
        destination: str,
        *,
        options: CopyOptions | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> CopyReport:
        """Copy an image between registries, this store, OCI layouts and archives, verified on both sides.

        Args:
            source: a reference means its registry; ``store:NAME`` this store, ``oci:FOLDER`` a layout,
                ``oci-archive:FILE`` and ``docker-archive:FILE`` an archive.
            destination: the same; in the store and in a registry it is the name that the image gets.
            options: whose manifests; by default the default handler's alone.
            credentials: instead of the store's, for this copy.
            observer: hears of progress, from several threads.
            cancel: ends the copy; what a registry has by then is not sent again by the next one.

        Raises:
            InvalidReferenceError, InvalidInputError: a place can't be read, or the two don't go together.
            ImageNotFoundError, NoMatchingManifestError: the source has no such image, or nothing for a handler.
            PreconditionError: the registry may not be pushed to (``capabilities`` in its ``hosts.toml``).
            RegistryError, IntegrityError, DocumentError, StoreError, OperationCancelledError: it failed on the way.
        """
        with translated("load what copies from it", self.content.name):
            from imagestore.store.copy.copying import CopyWork
            from imagestore.store.copy.options import CopyOptions, ImageLocation, LocationKind

        origin, target = ImageLocation.parse(source), ImageLocation.parse(destination)
        chosen, heard = options or CopyOptions(), observer or self.observer
        platform = self.explicit_platform(chosen.platform or None)
        if target.kind is LocationKind.STORE:
            return self._copy_into_store(origin, target.name, chosen, credentials, heard, cancel)
        if target.is_archive:
            self._refuse_own_files(target.name)
        for handler in chosen.runtime_handlers:
            self._known(handler)
        with self._operation(cancel) as token:
            client = self.registry.observed_by(heard)
            if credentials is not None:
                client = client.with_credentials(credentials)
            parts = (self.config, self.host, platform, self.content, self.metadata, client, self.content.scratch)
            return CopyWork(chosen, *parts, heard, token).run(origin, target)

    def _copy_into_store(
        self,
        origin: ImageLocation,
        name: str,
        options: CopyOptions,
        credentials: CredentialLookup | None,
        observer: Observer,
        cancel: CancelToken | None,
    ) -> CopyReport:
        """A pull or an import under another name."""
        with translated("load what copies from it", self.content.name):
            from imagestore.store.copy import into_store
            from imagestore.store.copy.options import CopyReport, LocationKind
            from imagestore.store.maintenance.tags import further_reference

        into_store.refuse(origin, options)
        further, referrers = further_reference(name), 0
        if origin.kind is LocationKind.REGISTRY:
            reference = Reference.parse(origin.name)
            handlers = list(self.config.handlers) if options.has_all_handlers else options.runtime_handlers or ("",)
            with self._operation(cancel) as token:
                works = [
                    self._work(reference, each, options.platform or None, observer, token, credentials)
                    for each in handlers
                ]
                named = [replace(each, recorded_as=further, may_move=options.may_replace) for each in works]
                records = into_store.pull_each(named, is_lenient=options.has_all_handlers, observer=observer)
                if options.has_referrers:
                    asked = into_store.ReferrerSource.of_registry(named[0].client, reference, token)
                    referrers = asked.bring(records, self.content, self.metadata, observer, token)
        else:
            wanted = into_store.import_options(options, name)
            with self._importing(_path(origin.name), wanted, observer, cancel) as work:
                where = (work.source, work.cancel)
                there = into_store.ReferrerSource.of_archive(*where) if options.has_referrers else None
                records = [image.record for image in work.run().images]
                if there is not None:
                    referrers = there.bring(records, self.content, self.metadata, observer, work.cancel)
        platforms = tuple(dict.fromkeys(str(record.platform) for record in records))
        return CopyReport(f"store:{further}", records[0].target, platforms, (), referrers=referrers)

    def _refuse_own_files(self, path: str) -> None:
        """An archive that replaces the store's database or a blob would destroy the images it is made from."""
        inside, root = os.path.realpath(path), os.path.realpath(self.root)
        if path != _STREAM and os.path.commonpath((inside, root)) == root:
            raise InvalidInputError(
                f"archive {path}: is inside the store {self.root}", hint="name a place outside the store's folder"
            )


def _path(archive: str | os.PathLike[str]) -> str:
    path = os.fspath(archive)
    if not path or "\0" in path:
        raise InvalidInputError(
            f"archive {path!r}: is no path", hint="name a file, a folder, a pipe, or - for a stream"
        )
    return path
