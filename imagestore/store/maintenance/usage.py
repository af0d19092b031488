"""Who takes how much space: for each image and handler its bytes, and how many of them it shares."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import disk_of, translated
from imagestore.metadata.marking import mark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from imagestore.content.api import ContentStore, Disk
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest


# A folder with the data, the name, two times and the size.
_INGEST_INODES: Final = 6


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """One record's content as it travels (compressed), in bytes.

    Attributes:
        record: the record.
        blobs: size by digest of what it reaches and the store has.
        unique_bytes: what no other record reaches: freed when this one alone goes.
        shared_bytes: the rest.
    """

    record: ImageRecord
    blobs: Mapping[Digest, int]
    unique_bytes: int
    shared_bytes: int

    @property
    def size(self) -> int:
        """All of it."""
        return self.unique_bytes + self.shared_bytes


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """The whole store, in bytes.

    Attributes:
        images: for each record, ordered by reference and handler.
        blobs: how many blobs there are.
        content_bytes: their size.
        kept_bytes: the part that records reach.
        other_bytes: the part that no record reaches: leased, or free for the next collection.
        ingests: how many unfinished writes there are.
        ingest_bytes: what they have so far.
        metadata_bytes: database and journal.
        disk: where the content lives.
    """

    images: tuple[ImageUsage, ...]
    blobs: int
    content_bytes: int
    kept_bytes: int
    other_bytes: int
    ingests: int
    ingest_bytes: int
    metadata_bytes: int
    disk: Disk


def measure(metadata: MetadataStore, content: ContentStore, root: Path | None) -> StoreUsage:
    """Measure everything once; reads no blob.

    Args:
        metadata: records and edges.
        content: the blobs.
        root: the store's folder; None for a shared store, whose database counts its own bytes.

    Raises:
        StoreError: a folder can't be read.
    """
    # In text form: nodes are looked up several times for each image, and texts know their hash.
    here = {str(info.digest): info for info in content.walk()}
    edges = metadata.graph.edges_as_written()
    reached = [
        (record, sorted(mark(map(str, record.held), lambda text: edges.get(text, ())) & here.keys()))
        for record in metadata.images.find()
    ]
    owners = Counter(text for _, texts in reached for text in texts)
    images = []
    for record, texts in reached:
        blobs = {here[text].digest: here[text].size for text in texts}
        unique = sum(here[text].size for text in texts if owners[text] == 1)
        images.append(ImageUsage(record, blobs, unique, sum(blobs.values()) - unique))
    ingests = list(content.statuses())
    total, kept = sum(info.size for info in here.values()), sum(here[text].size for text in owners)
    return StoreUsage(
        images=tuple(images),
        blobs=len(here),
        content_bytes=total,
        kept_bytes=kept,
        other_bytes=total - kept,
        ingests=len(ingests),
        ingest_bytes=sum(status.offset for status in ingests),
        metadata_bytes=0 if root is None else _metadata_bytes(root),
        disk=content.disk(),
    )


def nothing(root: Path) -> StoreUsage:
    """What a store takes that isn't there; its disk is the one it would be on.

    Args:
        root: its folder.

    Raises:
        StoreError: the disk can't be looked at.
    """
    folders = (root.absolute(), *root.absolute().parents)
    disk = disk_of(next(each for each in folders if os.path.isdir(each)))
    return StoreUsage((), 0, 0, 0, 0, 0, 0, 0, disk)


@dataclass(frozen=True, slots=True)
class ContentUse:
    """What content takes of its file system: bytes and inodes, unfinished writes included."""

    size: int
    inodes: int


def content_use(content: ContentStore) -> ContentUse:
    """Add up blobs and ingests, without asking the records who needs them.

    Raises:
        StoreError: a folder can't be read.
    """
    size = inodes = 0
    for info in content.walk():
        size, inodes = size + info.size, inodes + 1
    for status in content.statuses():
        size, inodes = size + status.offset, inodes + _INGEST_INODES
    return ContentUse(size, inodes)


def _metadata_bytes(root: Path) -> int:
    total = 0
    with translated("read", root), os.scandir(root) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                try:
                    total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    return total
