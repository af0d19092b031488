"""Media types of image content: names, and what kind of thing each names.

OCI image-spec 1.1 (media-types.md) and Docker's schema 2. Comparison is on the type without parameters, in lower case
(RFC 9110 section 8.3.1).
"""

from __future__ import annotations

import enum
from typing import Final

OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
OCI_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_LAYER_ZSTD: Final = "application/vnd.oci.image.layer.v1.tar+zstd"
OCI_FOREIGN_LAYER: Final = "application/vnd.oci.image.layer.nondistributable.v1.tar"
OCI_EMPTY: Final = "application/vnd.oci.empty.v1+json"

DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG: Final = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_LAYER_GZIP: Final = "application/vnd.docker.image.rootfs.diff.tar.gzip"
DOCKER_LAYER_ZSTD: Final = "application/vnd.docker.image.rootfs.diff.tar.zstd"
DOCKER_FOREIGN_TAR: Final = "application/vnd.docker.image.rootfs.foreign.diff.tar"
DOCKER_FOREIGN_LAYER: Final = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"

DOCKER_SCHEMA1: Final = "application/vnd.docker.distribution.manifest.v1+json"
DOCKER_SCHEMA1_SIGNED: Final = "application/vnd.docker.distribution.manifest.v1+prettyjws"

#: Bytes of any kind.
OCTETS: Final = "application/octet-stream"

#: Media types of any file that some tools and registries give to image configs; Docker takes these, too.
GENERIC_CONFIGS: Final = frozenset({"", OCTETS, "application/json", "text/html"})

#: Layers that are tar archives as they are.
PLAIN_LAYERS: Final = frozenset({OCI_LAYER, OCI_FOREIGN_LAYER})
#: Docker's types of such layers, which some writers gave to compressed ones.
DOUBTFUL_LAYERS: Final = frozenset({DOCKER_LAYER, DOCKER_FOREIGN_TAR})


class Kind(enum.Enum):
    """What the bytes of a media type are."""

    INDEX = "index"
    MANIFEST = "manifest"
    CONFIG = "config"
    LAYER = "layer"
    FOREIGN_LAYER = "foreign layer"
    SCHEMA1 = "schema 1 manifest"
    OTHER = "other"


_KINDS: Final = {
    OCI_INDEX: Kind.INDEX,
    DOCKER_LIST: Kind.INDEX,
    OCI_MANIFEST: Kind.MANIFEST,
    DOCKER_MANIFEST: Kind.MANIFEST,
    OCI_CONFIG: Kind.CONFIG,
    DOCKER_CONFIG: Kind.CONFIG,
    DOCKER_LAYER: Kind.LAYER,
    DOCKER_LAYER_GZIP: Kind.LAYER,
    DOCKER_LAYER_ZSTD: Kind.LAYER,
    DOCKER_FOREIGN_LAYER: Kind.FOREIGN_LAYER,
    DOCKER_FOREIGN_TAR: Kind.FOREIGN_LAYER,
    DOCKER_SCHEMA1: Kind.SCHEMA1,
    DOCKER_SCHEMA1_SIGNED: Kind.SCHEMA1,
}

#: What a client asks for at the manifests endpoint, in order of preference. No ``*/*``: a server without these forms
#: should say 404 or 406, which can be explained, and not send schema 1.
MANIFEST_ACCEPT: Final = (OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST)


def bare(media_type: str) -> str:
    """Drop parameters, blanks and upper case.

    >>> bare("Application/JSON; charset=utf-8")
    'application/json'
    """
    return media_type.partition(";")[0].strip().lower()


def kind(media_type: str) -> Kind:
    """What kind of content a media type names; OTHER when unknown.

    >>> kind("application/vnd.oci.image.layer.v1.tar+gzip")
    <Kind.LAYER: 'layer'>
    """
    name = bare(media_type)
    known = _KINDS.get(name)
    if known is not None:
        return known
    if name.startswith("application/vnd.oci.image.layer.nondistributable."):
        return Kind.FOREIGN_LAYER
    if name.startswith("application/vnd.oci.image.layer."):
        return Kind.LAYER
    return Kind.OTHER
