"""Descriptors: typed pointers to content, and how documents write them (OCI image-spec 1.1, descriptor.md)."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import IntegrityError
from imagestore.oci import media_types
from imagestore.oci.digest import Digest, verify
from imagestore.platforms.platform import Platform

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from imagestore.oci.typed_members import DocumentMembers

#: Docker's mark on an index entry that describes another entry instead of being an image.
ATTESTATION_TYPE_KEY: Final = "vnd.docker.reference.type"
ATTESTATION_TYPE: Final = "attestation-manifest"
_DESCRIPTOR_MEMBERS: Final = frozenset(
    {"mediaType", "digest", "size", "urls", "annotations", "data", "artifactType", "platform"}
)
_PLATFORM_MEMBERS: Final = frozenset({"os", "architecture", "variant", "os.version", "os.features"})

_INGEST_PREFIX: Final = {
    media_types.Kind.INDEX: "index",
    media_types.Kind.MANIFEST: "manifest",
    media_types.Kind.CONFIG: "config",
    media_types.Kind.LAYER: "layer",
    media_types.Kind.FOREIGN_LAYER: "layer",
}

_MAX_NAME: Final = 256
_MAX_TEXT: Final = 1024
_MAX_URL: Final = 8192
_MAX_TEXTS: Final = 64
# Inline data is a convenience for tiny contents; the whole document is bounded anyway.
_MAX_INLINE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Media type, digest and size of some content, and what a document says about it.

    Attributes:
        media_type: as written in the document.
        digest: of the content.
        size: of the content in bytes.
        platform: which platform the content is for; only on index entries.
        annotations: free text by key.
        urls: other places to fetch from (foreign layers).
        data: the content itself, when the document carries it inline.
        artifact_type: what an artifact is.
    """

    media_type: str
    digest: Digest
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    urls: tuple[str, ...] = ()
    data: bytes | None = None
    artifact_type: str = ""

    def __str__(self) -> str:
        """Digest, media type and size, for people."""
        return f"{self.digest} ({self.media_type}, {self.size} bytes)"

    @property
    def kind(self) -> media_types.Kind:
        """What kind of content this points at."""
        return media_types.kind(self.media_type)

    @property
    def ingest_ref(self) -> str:
        """The ingest's name for fetched content, in containerd's form (remotes.MakeRefKey): kind, hyphen, digest."""
        return f"{_INGEST_PREFIX.get(self.kind, 'unknown')}-{self.digest}"

    def members(self) -> dict[str, str | int]:
        """Media type, digest and size, as documents name them."""
        return {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}

    @property
    def is_attestation(self) -> bool:
        """Whether this index entry is a build attestation and never runs."""
        return self.annotations.get(ATTESTATION_TYPE_KEY) == ATTESTATION_TYPE


def parse_descriptor(found: DocumentMembers, grammar: re.Pattern[str]) -> Descriptor:
    """A descriptor in a document; ``grammar`` is that of its media type.

    Raises:
        DocumentError: it isn't one.
    """
    found.refuse_case_variants(_DESCRIPTOR_MEMBERS)
    digest, size = found.digest("digest"), found.size()
    platform = found.object("platform") if "platform" in found else None
    if platform is not None:
        platform.refuse_case_variants(_PLATFORM_MEMBERS)
        platform.texts("features", longest=_MAX_TEXT, most=_MAX_TEXTS)
    return Descriptor(
        media_type=found.media_type(grammar),
        digest=digest,
        size=size,
        platform=None if platform is None else parse_platform(platform),
        annotations=found.labels("annotations"),
        urls=tuple(url for url in found.texts("urls", longest=_MAX_URL, most=_MAX_TEXTS) if url),
        data=_inline(found, digest, size),
        artifact_type=found.artifact_type(),
    )


def parse_platform(found: DocumentMembers) -> Platform:
    """The platform members of an index entry or an image config; absent and null are empty, as peers read them."""
    features = found.texts("os.features", longest=_MAX_TEXT, most=_MAX_TEXTS)
    return Platform(
        os=found.text("os", _MAX_NAME),
        architecture=found.text("architecture", _MAX_NAME),
        variant=found.text("variant", _MAX_TEXT),
        os_version=found.text("os.version", _MAX_TEXT),
        # An empty text asks for nothing that a sandbox could provide.
        os_features=tuple(text for text in features if text and not text.isspace()),
    )


def _inline(found: DocumentMembers, digest: Digest, size: int) -> bytes | None:
    text = found.text("data")
    if not text and (size or "data" not in found):
        return None  # no text is no data, as peers read it
    if size > _MAX_INLINE or len(text) > 2 * _MAX_INLINE:
        found.refuse("data", f"longer than {_MAX_INLINE} bytes")
    try:
        data = base64.b64decode(text, validate=True)
        if digest.is_verifiable:
            verify(data, digest, size)
    except IntegrityError as error:
        found.refuse("data", f"contradicts digest and size: {error}")
    except ValueError:
        found.refuse("data", "is not base64")
    return data if digest.is_verifiable else None
