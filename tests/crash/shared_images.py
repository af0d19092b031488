"""The images that workers of the shared store pull and import; the same in every process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from imagestore import Digest
from imagestore.content.direct_io import LEAST_LARGE_BYTES
from imagestore.testing import Image, build_image, synthetic_layer

REFERENCES: Final = tuple(f"registry.example/shared/{number}:1" for number in range(8))
PLATFORM: Final = "linux/amd64"
_SMALL_BYTES: Final = 512 * 24


@functools.cache
def images() -> Mapping[str, Image]:
    """Each reference's image. Each layer is in two images, so its content is wanted while the other one goes."""
    sizes = [LEAST_LARGE_BYTES + 512, *[_SMALL_BYTES] * (len(REFERENCES) - 1)]
    layers = [synthetic_layer(f"shared {number}", size) for number, size in enumerate(sizes)]
    return {
        reference: build_image(PLATFORM, seed=reference, layers=[layers[number], layers[number - 1]])
        for number, reference in enumerate(REFERENCES)
    }


@functools.cache
def content_of(reference: str) -> frozenset[Digest]:
    """All that a record of an image needs."""
    image = images()[reference]
    return frozenset({*image.documents, *image.blobs})
