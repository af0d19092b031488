"""Images that run: an index whose entries' programs say in the container's log which of them was started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore import platforms
from imagestore.testing import build_image, build_index, layer, program_layer
from imagestore.testing.builders.images import read_platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.testing import Image, Layer

#: What the kernel of each architecture runs: its own programs, and those of its 32-bit brother.
PAIRS: Final = {"amd64": ("linux/amd64", "linux/386"), "arm64": ("linux/arm64", "linux/arm/v7")}
#: The host's platform and the guest's.
HOST, GUEST = PAIRS.get(platforms.host.detect().architecture, PAIRS["amd64"])


def runnable_image(
    platform: str, *, line: str = "", user: str = "", layers: Sequence[Layer] = (), seed: str = ""
) -> Image:
    """An image of one platform whose program writes a line and waits.

    Args:
        platform: as an index writes it, for example ``linux/arm/v7``.
        line: what its program writes; the platform if empty.
        user: of the image config.
        layers: below the program's layer.
        seed: makes it another image with the same line.
    """
    own = [layer(f"{seed} of {platform}", size=512)] if seed else []
    parts = [*layers, *own, program_layer(read_platform(platform).architecture, line or platform)]
    config = {"Entrypoint": ["/run"], "User": user} if user else {"Entrypoint": ["/run"]}
    return build_image(platform, layers=parts, config={"config": config})


def runnable_index(
    chosen: Sequence[str] = (HOST, GUEST),
    *,
    line: str = "",
    users: Sequence[str] = (),
    layers: int = 0,
    shared: Sequence[Layer] = (),
    seed: str = "",
) -> Image:
    """An index of such images.

    Args:
        chosen: platform of each entry.
        line: what all programs write; each its own platform if empty.
        users: of each entry's config.
        layers: how many layers of its own each entry has below its program's.
        shared: layers below these, the same for all entries.
        seed: makes it another index with the same lines.
    """
    images = []
    for platform, user in zip(chosen, users or [""] * len(chosen), strict=True):
        own = [layer(f"{seed} {platform} {number}", size=4096) for number in range(layers)]
        images.append(runnable_image(platform, line=line, user=user, layers=[*shared, *own], seed=seed))
    return build_index(images)


#: A sandbox image for both handlers.
PAUSE: Final = runnable_index(line="pause")
