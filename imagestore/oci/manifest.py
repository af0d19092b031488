"""Image manifests, OCI and Docker schema 2 (OCI image-spec 1.1, manifest.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.oci import media_types
from imagestore.oci.decode import in_turn, parse_with_faults
from imagestore.oci.descriptor import LAYER_TYPE, STATED_TYPE, Descriptor, members_of, parse_descriptor
from imagestore.oci.other_documents import check_media_type, decode_index_or_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self


_MEMBERS: Final = frozenset(
    {"schemaVersion", "mediaType", "artifactType", "config", "layers", "subject", "annotations"}
    | {"manifests", "fsLayers"}  # other documents', refused: no reader may see them in another case
)
_MAX_LAYERS: Final = 1000
_IMAGE_LAYERS: Final = (media_types.Kind.LAYER, media_types.Kind.FOREIGN_LAYER)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One config and its layers, for one platform.

    Attributes:
        raw: the bytes as received.
        media_type: OCI or Docker manifest.
        config: points at the image config; its digest is the image id.
        layers: the file system, lowest layer first.
        artifact_type: set when this is an artifact and not an image.
        annotations: of the manifest itself.
    """

    raw: bytes = field(repr=False)
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, raw: bytes, *, media_type: str = "", what: str = "manifest") -> Self:
        """Read a manifest from its (verified) bytes.

        ``media_type`` is what the descriptor or the server announced; empty when nothing was.

        Raises:
            DocumentError: lists the faults with their JSON paths.
        """
        return in_turn(raw, lambda: cls._parse(raw, media_type, what))

    @classmethod
    def _parse(cls, raw: bytes, media_type: str, what: str) -> Self:
        document = decode_index_or_manifest(raw, _MEMBERS, media_type, what)
        return parse_with_faults(document, "manifest", what, lambda: cls._typed(raw, document, media_type, what))

    @classmethod
    def _typed(cls, raw: bytes, document: Mapping[str, Any], media_type: str, what: str) -> Self:
        found = members_of(document, what)
        found.check_version()
        found.refuse_any_of("manifests", "fsLayers")
        found.mapping("subject")
        stated = check_media_type(found.media_type(), media_type, media_types.Kind.MANIFEST, what)
        return cls(
            raw,
            stated or media_types.OCI_MANIFEST,
            parse_descriptor(found.object("config"), STATED_TYPE),
            tuple(parse_descriptor(layer, LAYER_TYPE) for layer in found.objects("layers", _MAX_LAYERS)),
            found.artifact_type(),
            found.labels("annotations"),
        )

    @property
    def is_image(self) -> bool:
        """Whether the config is an image config, so that there is a platform and an image id.

        A config with a generic media type counts as one if all layers are those of images, as peers read it. Its bytes
        may still say otherwise (``image_config``).
        """
        if self.config.kind is media_types.Kind.CONFIG:
            return True
        if self.artifact_type or media_types.bare(self.config.media_type) not in media_types.GENERIC_CONFIGS:
            return False
        return bool(self.layers) and all(layer.kind in _IMAGE_LAYERS for layer in self.layers)

    @property
    def children(self) -> tuple[Descriptor, ...]:
        """Config and layers: what this manifest keeps alive."""
        return (self.config, *self.layers)
