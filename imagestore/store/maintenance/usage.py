"""How much space a store takes: for each image and handler its bytes, and how many of them it shares."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import disk_of
from imagestore.metadata.marking import mark
from imagestore.util.disk_errors import translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Set
    from pathlib import Path

    from imagestore.content.api import ContentStore, Disk
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest


# A folder with the data, the name, two times and the size.
_INGEST_INODES: Final = 6


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """One record's compressed content, in bytes.

    Attributes:
        record: the record.
        blobs: size by digest of what it reaches and the store has.
        unique_bytes: what no other record reaches: freed if only this record is removed, but for what is linked.
        shared_bytes: the rest.
        linked: those of the blobs whose files have a name elsewhere too; removing them frees nothing.
    """

    record: ImageRecord
    blobs: Mapping[Digest, int]
    unique_bytes: int
    shared_bytes: int
    linked: Set[Digest] = frozenset()

    @property
    def size(self) -> int:
        """The sum."""
        return self.unique_bytes + self.shared_bytes

    @property
    def freeing(self) -> dict[Digest, int]:
        """Bytes by digest that become free when the blob is deleted."""
        return {digest: 0 if digest in self.linked else size for digest, size in self.blobs.items()}


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """The whole store, in bytes.

    Attributes:
        images: one for each record, ordered by reference and handler.
        blobs: how many.
        content_bytes: their size; each counts once, however many names its file has.
        linked_bytes: the part whose files have a name elsewhere too, as in containerd's content folder.
        kept_bytes: the part that records reach.
        other_bytes: the part that no record reaches: leased, or free for the next collection.
        ingests: how many.
        ingest_bytes: their size so far.
        metadata_bytes: the database, without its copies.
        disk: where the content is.
    """

    images: tuple[ImageUsage, ...]
    blobs: int
    content_bytes: int
    linked_bytes: int
    kept_bytes: int
    other_bytes: int
    ingests: int
    ingest_bytes: int
    metadata_bytes: int
    disk: Disk


def measure(metadata: MetadataStore, content: ContentStore, root: Path | None) -> StoreUsage:
    """Measure everything once; reads no blob. Without the store's folder ``metadata_bytes`` is 0.

    Raises:
        StoreError: a folder can't be read.
    """
    # In text form: nodes are looked up several times for each image, and a text caches its hash.
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
        linked = frozenset(here[text].digest for text in texts if here[text].is_linked)
        images.append(ImageUsage(record, blobs, unique, sum(blobs.values()) - unique, linked))
    ingests = list(content.statuses())
    total, kept = sum(info.size for info in here.values()), sum(here[text].size for text in owners)
    return StoreUsage(
        images=tuple(images),
        blobs=len(here),
        content_bytes=total,
        linked_bytes=sum(info.size for info in here.values() if info.is_linked),
        kept_bytes=kept,
        other_bytes=total - kept,
        ingests=len(ingests),
        ingest_bytes=sum(status.offset for status in ingests),
        metadata_bytes=0 if root is None else _metadata_bytes(root),
        disk=content.disk(),
    )


def nothing(root: Path) -> StoreUsage:
    """The usage of a store that doesn't exist, on the disk where its folder would be.

    Raises:
        StoreError: the disk can't be looked at.
    """
    folders = (root.absolute(), *root.absolute().parents)
    disk = disk_of(next(each for each in folders if os.path.isdir(each)))
    return StoreUsage((), 0, 0, 0, 0, 0, 0, 0, 0, disk)


@dataclass(frozen=True, slots=True)
class ContentUse:
    """Bytes and inodes of blobs and ingests."""

    size: int
    inodes: int


def content_use(content: ContentStore) -> ContentUse:
    """Add up blobs and ingests, without a look at the records; a blob counts once, however many names its file has.

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
