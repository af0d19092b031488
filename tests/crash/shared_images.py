"""The images that workers of the shared store pull and import; the same in every process."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Final

from imagestore import Digest
from imagestore.content.direct_io import LEAST_LARGE_BYTES
from imagestore.testing import Image, build_image, synthetic_layer

REFERENCES: Final = tuple(f"registry.example/shared/{number}:1" for number in range(12))
PLATFORM: Final = "linux/amd64"
#: Few layers for many images, so that records which come and go need the same content.
_LAYERS: Final = 8
_LARGE_LAYERS: Final = 1
_SMALL_BYTES: Final = 512 * 24


@functools.cache
def images() -> Mapping[str, Image]:
    """Each reference's image."""
    chance = random.Random(7)
    sizes = [LEAST_LARGE_BYTES + 512] * _LARGE_LAYERS + [_SMALL_BYTES] * (_LAYERS - _LARGE_LAYERS)
    layers = [synthetic_layer(f"shared {number}", size) for number, size in enumerate(sizes)]
    return {
        reference: build_image(PLATFORM, seed=reference, layers=chance.sample(layers, 3)) for reference in REFERENCES
    }


@functools.cache
def content_of(reference: str) -> frozenset[Digest]:
    """All that a record of an image needs."""
    image = images()[reference]
    return frozenset({*image.documents, *image.blobs})
