"""The images that are pulled: the same bytes on every machine, in layers as registries have them (gzip around a tar).

The layers are random bytes that don't compress, packed in gzip's stored form (RFC 1951 section 3.2.4), one member for
each mebibyte, so that making two gibibytes takes seconds and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagestore import Digest
from imagestore.oci import new_hash
from imagestore.testing import Image, Layer, build_image
from imagestore.testing.builders.bodies import SyntheticBody
from imagestore.testing.builders.layers import stored_gzip

_MIB = 1 << 20
#: Layers in MiB, by image.
SIZES: dict[str, tuple[int, ...]] = {
    "S": (2,),
    "M": (60, 40, 30, 25, 20, 12, 8, 5),
    "MANY": (1,) * 60,
    "L": (256, 1536, 256),
    "MIXED": (70, 40, 20, 66, 5, 5, 5, 2, 2, 2, 1, 1),
    "ONE": (192,),
}
TITLES = {
    "S": "S, 1 layer of 2 MiB",
    "M": "M, 8 layers, 200 MiB",
    "MANY": "MANY, 60 layers of 1 MiB",
    "L": "L, 3 layers, 2 GiB",
    "MIXED": "MIXED, 12 layers of 1 to 70 MiB",
    "ONE": "1 layer of 192 MiB",
}


@dataclass(frozen=True, slots=True)
class PackedBody:
    """A tar of random bytes, packed."""

    archive: SyntheticBody
    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes in pieces."""
        end, offset = self.size if stop is None else min(stop, self.size), 0
        for piece in _members(self.archive):
            part = memoryview(piece)[max(start - offset, 0) : max(end - offset, 0)]
            offset += len(piece)
            if part:
                yield bytes(part)


def packed_layer(seed: str, mebibytes: int) -> Layer:
    """A layer of about that size."""
    archive = SyntheticBody(seed, mebibytes * _MIB, "tar")
    inside, outside, size = new_hash("sha256"), new_hash("sha256"), 0
    for piece in archive.chunks():
        inside.update(piece)
    for piece in _members(archive):
        outside.update(piece)
        size += len(piece)
    digest, diff_id = (Digest("sha256", each.hexdigest()) for each in (outside, inside))
    return Layer(PackedBody(archive, size), digest, diff_id)


def make_image(name: str) -> Image:
    """One of the images, by its name."""
    layers = [packed_layer(f"bench {name} {number}", size) for number, size in enumerate(SIZES[name])]
    return build_image("linux/amd64", layers=layers)


def _members(archive: SyntheticBody) -> Iterator[bytes]:
    return map(stored_gzip, archive.chunks())
