"""Image indexes and Docker manifest lists (OCI image-spec 1.1, image-index.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore import media_types
from imagestore.documents.decode import MAX_DOCUMENT_BYTES, decode, in_turn, refuse_case_variants, validate
from imagestore.documents.fields import (
    check_media_type,
    leave_out_unstated_version,
    parse_annotations,
    parse_descriptor,
    plain_entry,
)
from imagestore.documents.kinds import refuse_mislabelled, refuse_others

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from imagestore.descriptor import Descriptor

#: Entries that the schema allows.
MAX_ENTRIES: Final = 10_000
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
        return in_turn(raw, lambda: cls._parse(raw, media_type, what, limit_bytes))

    @classmethod
    def _parse(cls, raw: bytes, media_type: str, what: str, limit_bytes: int) -> Self:
        document = decode(raw, what, limit_bytes=limit_bytes)
        refuse_case_variants(document, _MEMBERS, what)
        refuse_others(document, what)
        refuse_mislabelled(document, media_type, what)
        leave_out_unstated_version(document, what)
        plain = _judge(document, what)
        stated = check_media_type(document, media_type, media_types.Kind.INDEX, what)
        # Go writes a list without entries as null, or leaves it out.
        listed = document.get("manifests") or ()
        entries = tuple(
            parse_descriptor(entry, f"$.manifests[{position}]", what) if found is None else found
            for position, (entry, found) in enumerate(zip(listed, plain, strict=True))
        )
        return cls(raw, stated or media_types.OCI_INDEX, entries, parse_annotations(document))


def _judge(document: Mapping[str, Any], what: str) -> list[Descriptor | None]:
    """Let the schema judge all but the plain entries; what these say, and None in place of each other one."""
    listed = document.get("manifests")
    if type(listed) is not list:
        listed = []
    is_long = len(listed) > MAX_ENTRIES  # which only the schema may say
    plain = [None if is_long else plain_entry(entry) for entry in listed]
    others = [entry for entry, found in zip(listed, plain, strict=True) if found is None]
    left = document if len(others) == len(listed) else {**document, "manifests": others}
    validate(document, "index", what, left=left)
    return plain
