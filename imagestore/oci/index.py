"""Image indexes and Docker manifest lists (OCI image-spec 1.1, image-index.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.oci import media_types
from imagestore.oci.decode import MAX_INDEX_BYTES, in_turn, parse_with_faults
from imagestore.oci.descriptor import ENTRY_TYPE, Descriptor, members_of, parse_descriptor
from imagestore.oci.other_documents import check_media_type, decode_index_or_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self


#: Entries that are read.
MAX_ENTRIES: Final = 10_000
_MEMBERS: Final = frozenset(
    {"schemaVersion", "mediaType", "artifactType", "manifests", "subject", "annotations"}
    | {"config", "layers", "fsLayers"}  # a manifest's, refused: no reader may see them in another case
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
        cls, raw: bytes, *, media_type: str = "", what: str = "index", limit_bytes: int = MAX_INDEX_BYTES
    ) -> Self:
        """Read an index from its (verified) bytes.

        ``media_type`` is what the descriptor or the server announced; empty when nothing was.

        Raises:
            DocumentError: lists the faults with their JSON paths.
        """
        return in_turn(raw, lambda: cls._parse(raw, media_type, what, limit_bytes))

    @classmethod
    def _parse(cls, raw: bytes, media_type: str, what: str, limit_bytes: int) -> Self:
        document = decode_index_or_manifest(raw, _MEMBERS, media_type, what, limit_bytes)
        return parse_with_faults(document, "index", what, lambda: cls._typed(raw, document, media_type, what))

    @classmethod
    def _typed(cls, raw: bytes, document: Mapping[str, Any], media_type: str, what: str) -> Self:
        found = members_of(document, what)
        found.check_version()
        found.refuse_any_of("config", "layers", "fsLayers")
        found.artifact_type()
        found.mapping("subject")
        stated = check_media_type(found.media_type(), media_type, media_types.Kind.INDEX, what)
        entries = tuple(parse_descriptor(entry, ENTRY_TYPE) for entry in found.objects("manifests", MAX_ENTRIES))
        return cls(raw, stated or media_types.OCI_INDEX, entries, found.labels("annotations"))
