"""Docker's ``manifest.json`` next to a layout: whether it says something else of an image that the layout describes.

The layout counts, as in containerd; but ``docker load`` goes by the other, and would have another image of that name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from imagestore.errors import DocumentError, IntegrityError, InvalidDigestError, NotFoundError
from imagestore.oci.decode import MAX_DOCUMENT_BYTES
from imagestore.oci.digest import Digest
from imagestore.store.archive import docker_archive, layout
from imagestore.store.archive.index_survey import survey
from imagestore.store.archive.source import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.oci.reference import Reference
    from imagestore.store.archive.contents import ArchiveImage
    from imagestore.store.archive.index_survey import Look
    from imagestore.store.archive.source import Source
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.sources import Documents


class Rival:
    """What ``manifest.json`` says.

    Args:
        source: the archive's files.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._configs: Mapping[Reference, list[str]] = {}
        with contextlib.suppress(DocumentError):  # docker can't load it either
            self._configs = docker_archive.configs_by_name(source)

    def contradictions(self, image: ArchiveImage, choice: Choice, documents: Documents, look: Look) -> Iterator[str]:
        """What there is to say if none of the layout's manifests of a name has the config that this one gives it.

        Nothing where that can't be told.

        Args:
            image: as the layout describes it.
            choice: what is imported of it.
            documents: reads what is at hand.
            look: says what is.
        """
        ours = choice.manifest.config.digest
        for place in self._configs.get(image.name, ()) if image.name is not None else ():
            try:
                raw = read(self._source, place, limit_bytes=MAX_DOCUMENT_BYTES)
                # It describes one platform of those that an index has.
                is_same = _is_any(raw, [ours]) or _is_any(raw, _configs(image, documents, look))
            except (DocumentError, IntegrityError, NotFoundError, InvalidDigestError):
                continue
            if not is_same:
                yield (
                    f"{self._source.what}: {layout.INDEX} and {layout.DOCKER_MANIFEST} describe different images as "
                    f"{image.name}: the one with config {ours} is imported, by {layout.INDEX}; the other's config is "
                    f"{Digest.of(raw)}"
                )


def _configs(image: ArchiveImage, documents: Documents, look: Look) -> list[Digest]:
    found = [each.manifest for entry in image.entries for each in survey(entry, documents, look)]
    return [manifest.config.digest for manifest in found if manifest is not None]


def _is_any(raw: bytes, configs: list[Digest]) -> bool:
    return any(each.is_verifiable and Digest.of(raw, each.algorithm) == each for each in configs)
