"""Where an image is copied to. The store is none of these: there a pull or an import records what each handler gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from imagestore.errors import InvalidInputError
from imagestore.oci.reference import Reference
from imagestore.store.archive import exporting
from imagestore.store.archive.contents import NAMELESS
from imagestore.store.copy.options import CopiedBlob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.events import Observer
    from imagestore.store.archive.index_survey import ExportedImage
    from imagestore.store.copy.options import CopyOptions, ImageLocation
    from imagestore.store.copy.referrers import Referrer
    from imagestore.store.image_source import ImageSource
    from imagestore.util.cancel import CancelToken


class Target(Protocol):
    """A registry, a layout or an archive."""

    def write(self, image: ExportedImage, source: ImageSource, referrers: Sequence[Referrer]) -> tuple[CopiedBlob, ...]:
        """Write what was chosen of an image, and what refers to it; in a dry run, only find out what would be sent.

        Returns:
            All blobs that are needed, each once.

        Raises:
            ImageStoreError: it can't be read or written; under the image's name nothing has changed.
        """


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """A layout's folder or an archive."""

    place: ImageLocation
    options: CopyOptions
    observer: Observer
    cancel: CancelToken

    def write(self, image: ExportedImage, source: ImageSource, referrers: Sequence[Referrer]) -> tuple[CopiedBlob, ...]:
        """See Target; raises InvalidInputError if the image has no name."""
        name = Reference.parse(self.options.name) if self.options.name else image.reference
        if name.host == NAMELESS.host:
            raise InvalidInputError(f"{self.place}: the image needs a name there", hint="give it one with --name")
        image = replace(image, reference=name, referrers=tuple(each.surveyed for each in referrers))
        written = (*image.manifests, *image.referrers)
        wanted = {child.digest: child for each in written for child in each.descriptors[1:]}
        if not self.options.dry_run:
            path, form = self.place.name, self.place.archive_format
            exporting.write_archive(path, form, (image,), source, observer=self.observer, cancel=self.cancel)
        return tuple(CopiedBlob(each, each.size) for each in wanted.values())
