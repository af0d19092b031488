"""Names and shorthands of the tests of CRI's image calls."""

from __future__ import annotations

from imagestore.cri.model import ImageSpec

WINDOWS = "windows(10.0.20348.1)/amd64"
CANARY = "canary-7f3a"
HOST = "registry.example"


def spec(image: str, handler: str = "") -> ImageSpec:
    return ImageSpec(image, handler)
