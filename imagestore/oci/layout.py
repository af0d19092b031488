"""Names and small documents of an OCI layout (image-spec 1.1, image-layout.md), and how containerd names images in it.

``io.containerd.image.name`` has the full reference; ``org.opencontainers.image.ref.name`` the tag, or the whole
reference where it has a digest. ``manifest.json`` next to the layout lets ``docker load`` read the same archive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.oci.media_types import DOCKER_MANIFEST as DOCKER_MANIFEST_TYPE
from imagestore.oci.rendering import render, render_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference

MARK: Final = "oci-layout"
INDEX: Final = "index.json"
BLOBS: Final = "blobs"
DOCKER_MANIFEST: Final = "manifest.json"
VERSION: Final = "1.0.0"
NAME_KEY: Final = "io.containerd.image.name"
REF_KEY: Final = "org.opencontainers.image.ref.name"
#: The annotations that name an image.
NAME_KEYS: Final = frozenset({NAME_KEY, REF_KEY})
#: Ours, on an index of which only some manifests are in the archive: their platforms.
PRESENT_KEY: Final = "imagestore.present-platforms"


def blob_name(digest: Digest) -> str:
    """Where a blob is in a layout.

    >>> from imagestore.oci.digest import Digest
    >>> blob_name(Digest.of(b""))[:18]
    'blobs/sha256/e3b0c'
    """
    return f"{BLOBS}/{digest.algorithm}/{digest.encoded}"


def name_annotations(reference: Reference) -> dict[str, str]:
    """The two annotations that name an image, as containerd writes them.

    >>> from imagestore.oci.reference import Reference
    >>> sorted(name_annotations(Reference.parse("python:3")).values())
    ['3', 'docker.io/library/python:3']
    """
    whole = str(reference)
    return {NAME_KEY: whole, REF_KEY: whole if reference.digest is not None else reference.tag}


def render_mark() -> bytes:
    """The file ``oci-layout``."""
    return render({"imageLayoutVersion": VERSION})


def render_docker_manifest(
    config: Descriptor, layers: Iterable[Descriptor], media_type: str = DOCKER_MANIFEST_TYPE
) -> bytes:
    """A manifest for an image without one; Docker's is byte for byte the one that containerd's import makes."""
    # Members in the order in which Go's encoder writes containerd's structure.
    return render(
        {
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": render_descriptor(config),
            "layers": [render_descriptor(layer) for layer in layers],
        }
    )
