"""Image indexes and Docker manifest lists (OCI image-spec 1.1, image-index.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore import media_types
from imagestore.documents.decode import MAX_DOCUMENT_BYTES, decode, refuse_case_variants, validate
from imagestore.documents.fields import check_media_type, parse_descriptor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from imagestore.descriptor import Descriptor

_MEMBERS: Final = frozenset(
    {"schemaVersion", "mediaType", "artifactType", "manifests", "subject", "annotations"}
    | {"config", "layers", "fsLayers"}  # a manifest's, refused by the schema: no reader may see them in another case
)


@dataclass(frozen=True, slots=True)
class Index:
    """A list of manifests, usually one for each platform.

    Attributes:
        raw: the bytes as received.
        media_type: OCI index or Docker manifest list.
        manifests: the entries in order.
        annotations: of the index itself.

    >>> Index.parse(b'{"schemaVersion": 2, "manifests": []}').manifests
    ()
    """

    raw: bytes = field(repr=False)
    media_type: str
    manifests: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(
        cls, raw: bytes, *, media_type: str = "", what: str = "index", limit_bytes: int = MAX_DOCUMENT_BYTES
    ) -> Self:
        """Read an index from its (verified) bytes.

        Args:
            raw: the bytes as received.
            media_type: what the descriptor or the server announced; empty when nothing was.
            what: names the document in errors.
            limit_bytes: the longest that is read.

        Raises:
            DocumentError: lists the faults with their JSON paths.
        """
        document = decode(raw, what, limit_bytes=limit_bytes)
        refuse_case_variants(document, _MEMBERS, what)
        validate(document, "index", what)
        found = check_media_type(
            document, media_type, media_types.Kind.INDEX, what, docker_requires=media_types.DOCKER_LIST
        )
        entries = tuple(
            parse_descriptor(entry, f"$.manifests[{position}]", what)
            for position, entry in enumerate(document["manifests"])
        )
        return cls(raw, found or media_types.OCI_INDEX, entries, dict(document.get("annotations") or {}))
