"""Descriptors: typed pointers to content (OCI image-spec 1.1, descriptor.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.oci import media_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.oci.digest import Digest
    from imagestore.platforms.platform import Platform

#: Docker's mark on an index entry that describes another entry instead of being an image.
ATTESTATION_TYPE_KEY: Final = "vnd.docker.reference.type"
ATTESTATION_TYPE: Final = "attestation-manifest"


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

    def members(self) -> dict[str, str | int]:
        """Media type, digest and size, as documents name them."""
        return {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}

    @property
    def is_attestation(self) -> bool:
        """Whether this index entry is a build attestation and never runs."""
        return self.annotations.get(ATTESTATION_TYPE_KEY) == ATTESTATION_TYPE
