"""The part of ImageStore that exports to archives and imports from them."""

from __future__ import annotations

import abc
import os
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from imagestore.config import Config
    from imagestore.content.local import LocalContentStore
    from imagestore.metadata.sqlite import SqliteMetadataStore
    from imagestore.platforms import Platform
    from imagestore.registry.events import Observer
    from imagestore.store.archive.exporting import ExportOptions, ExportReport
    from imagestore.store.archive.importing import ImportOptions, ImportReport
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.util.cancel import CancelToken

#: The name of standard output, and of standard input.
_STREAM: Final = "-"


class Archives(abc.ABC):
    """Export and import; the store's other halves say where and for whom."""

    root: Path
    content: LocalContentStore
    metadata: SqliteMetadataStore
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
        with translated("load what imports into it", self.content.root):
            from imagestore.store.archive import importing, source

        chosen = options or importing.ImportOptions()
        platform = self.explicit_platform(chosen.platform or None)
        handlers = importing.handlers_for(self.config, chosen, host=self.host, platform=platform)
        self.content.check_room()
        # What can't be read at any place is copied twice: there must be room for both.
        room = self.content.free_bytes() // 2
        with (
            self._operation(cancel) as token,
            source.opened(_path(archive), scratch=self.content.root, limit_bytes=room, cancel=token) as files,
        ):
            parts = (self.content, self.metadata, observer or self.observer, token, self.verifier)
            return importing.ImportWork(files, handlers, chosen, *parts).run()

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
        with translated("load what exports from it", self.content.root):
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
