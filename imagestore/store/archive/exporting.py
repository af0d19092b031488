"""An export: which images, what the store has of them, and the members of an archive that carries them.

Every digest is kept. Only the wanted manifests of an index are exported: those that handlers chose, those of one
platform, or all that are complete in the store. The index is exported unchanged, so that the name leads to the same
digest elsewhere, and the archive states which manifests it has; or the archive has only the manifest.

Content is leased before the export checks whether it exists, and hashed again while it is copied.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import ContentNotFoundError, ImageNotFoundError, InvalidInputError, NoMatchingManifestError
from imagestore.oci.reference import Reference
from imagestore.platforms import format_all
from imagestore.store import leases, record_lookup
from imagestore.store.archive.archive_members import docker_members, layout_members
from imagestore.store.archive.contents import ArchiveFormat
from imagestore.store.archive.index_survey import ExportedImage, survey
from imagestore.store.archive.writing import write_folder, write_tar
from imagestore.store.image_source import in_store
from imagestore.store.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.platforms import Matcher, Platform
    from imagestore.store.archive.index_survey import SurveyedManifest
    from imagestore.store.image_source import ImageSource
    from imagestore.store.leases import HeldLease
    from imagestore.store.parts import StoreParts
    from imagestore.util.cancel import CancelToken


class ExportShape(enum.Enum):
    """What a name leads to in the archive: the index as it was pulled, or only the manifest."""

    INDEX = "index"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, and in which form.

    Attributes:
        runtime_handlers: whose images; empty means the default handler's.
        all_handlers: every handler's, instead.
        platform: only this platform's manifest, of any handler, in text form; empty means the handlers'.
        all_platforms: every manifest that the store has whole, for any handler.
        format: of the archive.
        shape: what a name leads to.
    """

    runtime_handlers: tuple[str, ...] = ()
    all_handlers: bool = False
    platform: str = ""
    all_platforms: bool = False
    format: ArchiveFormat = ArchiveFormat.OCI_ARCHIVE
    shape: ExportShape = ExportShape.INDEX


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export: the images, and the size of the archive in bytes."""

    images: tuple[ExportedImage, ...]
    size: int


def find_records(
    metadata: MetadataStore, names: Iterable[str], options: ExportOptions, *, default_handler: str
) -> dict[str, list[ImageRecord]]:
    """The records to export, by reference.

    Args:
        names: references, image ids, beginnings of ids.
        options: says whose.
        default_handler: used if the options name none; with all handlers, its record comes first.

    Raises:
        ImageNotFoundError: a name has no record, or a handler has none of it.
        InvalidInputError: the beginning of an id fits several images.
    """
    found: dict[str, dict[str, ImageRecord]] = {}
    for name in names:
        records = record_lookup.by_name_or_id(metadata, name)
        handlers = {handler or default_handler for handler in options.runtime_handlers}
        if handlers:
            records = [record for record in records if record.handler in handlers]
            lacking = sorted(handlers - {record.handler for record in records})
            if lacking:
                raise ImageNotFoundError(
                    f"image {name!r} is not in the store under runtime handler {lacking[0]!r}",
                    hint=record_lookup.missing_hint(name),
                )
        elif not (options.all_handlers or options.all_platforms or options.platform):
            record = record_lookup.find(metadata, name, None, default_handler)
            records = [] if record is None else [record]
        if not records:
            raise ImageNotFoundError(
                f"image {name!r} is not in the store",
                hint=f"{record_lookup.missing_hint(name)}, or say which runtime handler's it is",
            )
        for record in sorted(records, key=lambda each: each.handler != default_handler):
            found.setdefault(record.reference, {})[record.handler] = record
    return {reference: list(each.values()) for reference, each in sorted(found.items())}


def write_archive(
    path: str,
    form: ArchiveFormat,
    images: Sequence[ExportedImage],
    origin: ImageSource,
    *,
    observer: Observer,
    cancel: CancelToken,
) -> int:
    """Write images as an archive or a folder.

    Args:
        path: the destination; ``-`` for standard output.
        origin: has their content.

    Raises:
        InvalidInputError, PreconditionError, AlreadyExistsError: the place can't be written; nothing stays.
    """
    read = functools.partial(origin.pieces, cancel=cancel)
    if form is ArchiveFormat.DOCKER_ARCHIVE:
        members = docker_members(images, read, cancel=cancel)
    else:
        members = layout_members(images, read)
    write = write_folder if form is ArchiveFormat.OCI_FOLDER else write_tar
    return write(path, members, observer=observer, cancel=cancel)


@contextlib.contextmanager
def stored_images(
    parts: StoreParts, names: Iterable[str], options: ExportOptions, *, purpose: str, cancel: CancelToken
) -> Iterator[tuple[ExportedImage, ...]]:
    """What the store has of images, under a lease for a block of work.

    Args:
        purpose: the first part of the lease's id.

    Raises:
        UnknownRuntimeHandlerError, InvalidPlatformError, ImageNotFoundError: as find_records(), or an option is wrong.
        InvalidInputError: one name has different content under several handlers.
        NoMatchingManifestError: the store has nothing for the wanted platform.
        ContentNotFoundError, IntegrityError: the store was damaged from outside.
    """
    for handler in options.runtime_handlers:
        parts.known_handler(handler)
    default, wanted = parts.config.default_handler, None
    records = find_records(parts.metadata, names, options, default_handler=default)
    platform = parts.platform(options.platform or None)
    if platform is not None:
        wanted = platform, parts.config.handler_platform(default, host=parts.host, explicit=platform).matcher
    with leases.held_to_read(parts.metadata, purpose=purpose) as held:
        chooser = _StoredChooser(options, wanted, parts.content, held, cancel)
        yield tuple(chooser.image(Reference.parse(name), found) for name, found in records.items())


def export(
    parts: StoreParts, names: Iterable[str], path: str, options: ExportOptions, observer: Observer, cancel: CancelToken
) -> ExportReport:
    """Write images of the store into an archive.

    Args:
        path: see write_archive().

    Raises:
        ImageStoreError: as stored_images() and write_archive().
    """
    with stored_images(parts, names, options, purpose="export", cancel=cancel) as images:
        origin = in_store(parts.content, cancel)
        size = write_archive(path, options.format, images, origin, observer=observer, cancel=cancel)
    return ExportReport(images, size)


@dataclass(frozen=True, slots=True)
class _StoredChooser:
    """Chooses what the archive gets of each image.

    Attributes:
        platform: the one wanted and its matcher, or None.
    """

    options: ExportOptions
    platform: tuple[Platform, Matcher] | None
    content: ContentStore
    held: HeldLease
    cancel: CancelToken

    def image(self, reference: Reference, records: Sequence[ImageRecord]) -> ExportedImage:
        """What it gets of one, by its records, the preferred handler's first."""
        documents = Documents(self.content, None, None, self.cancel)
        surveys: dict[Digest, tuple[SurveyedManifest, ...]] = {}
        for record in records:
            if record.target.digest not in surveys:
                surveys[record.target.digest] = survey(record.target, documents, self._look)
        chosen = self._chosen(reference, records, surveys)
        targets = {each.chain[0].digest: each.chain[0] for each in chosen if each.chain}
        targets |= {each.descriptor.digest: each.descriptor for each in chosen if not each.chain}
        if self.options.shape is ExportShape.MANIFEST or self.options.format is ArchiveFormat.DOCKER_ARCHIVE:
            targets = {each.descriptor.digest: each.descriptor for each in chosen}
        if len(targets) > 1:
            raise InvalidInputError(
                f"{reference}: has {len(targets)} contents, and a name can lead to one: "
                f"{', '.join(str(digest) for digest in targets)}",
                hint="export one handler's or one platform's image",
            )
        target = next(iter(targets.values()))
        everything = next(found for found in surveys.values() if chosen[0] in found)
        return ExportedImage(
            reference=reference,
            target=target,
            manifests=tuple(chosen),
            left_out=tuple(each.label for each in everything if each not in chosen),
        )

    def _chosen(
        self, reference: Reference, records: Sequence[ImageRecord], surveys: dict[Digest, tuple[SurveyedManifest, ...]]
    ) -> list[SurveyedManifest]:
        everything = [found for each in surveys.values() for found in each]
        whole = [found for found in everything if found.is_complete]
        if self.platform is not None:
            return [self._best(reference, whole, self.platform)]
        wanted = {record.manifest.digest for record in records}
        for found in everything:
            if found.descriptor.digest in wanted and not found.is_complete:
                raise ContentNotFoundError(
                    f"{reference}: {found.label} lacks content {found.missing[0]}", hint="pull the image again"
                )
        if self.options.all_platforms:
            return whole
        return [found for found in whole if found.descriptor.digest in wanted]

    def _best(
        self, reference: Reference, whole: Sequence[SurveyedManifest], wanted: tuple[Platform, Matcher]
    ) -> SurveyedManifest:
        platform, matcher = wanted
        known = [(found, found.platform) for found in whole if found.platform is not None]
        fitting = [(found, has) for found, has in known if matcher.match(has)]
        if not fitting:
            raise NoMatchingManifestError(
                str(reference),
                format_all(platform),
                [found.label for found, _ in known],
                hint="the store has no other platforms of it; pull it with --platform first",
            )
        return min(fitting, key=lambda pair: matcher.sort_key(pair[1]))[0]

    def _look(self, wanted: Collection[Descriptor]) -> set[Digest]:
        self.held.hold([each.digest for each in wanted])
        return {each.digest for each in wanted if each.digest.is_verifiable and self.content.exists(each.digest)}
