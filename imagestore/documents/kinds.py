"""Documents that are recognised and not read: an error names them, instead of the members they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from imagestore import media_types
from imagestore.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OCI_ARTIFACT: Final = "application/vnd.oci.artifact.manifest.v1+json"
_PUSH_AGAIN: Final = "push the image again with today's tools"
#: By a media type that the document states, or by a member that only this kind has: what it is, and a hint.
_SCHEMA1: Final = ("is a schema 1 manifest, a format from before 2017 that can't be verified", _PUSH_AGAIN)
_ARTIFACT: Final = ("is an OCI artifact manifest, a format that image-spec 1.1 gave up", _PUSH_AGAIN)
_CONFIG: Final = ("is an image config, which names no content", "give the manifest or index that leads to it")
_MARK: Final = ("is the file oci-layout, which names no content", "give the layout's index.json")
_STATEMENT: Final = ("is an attestation, which is no image", "")
_SAVED: Final = ("is manifest.json of a docker-archive", "import the archive that it is from")
_VERBOSE: Final = (
    "is what 'docker manifest inspect --verbose' prints",
    "leave out --verbose, or give the image's reference",
)
_INSPECTED: Final = ("is what 'docker inspect' prints", "give the image's reference")


def refuse_others(document: Mapping[str, Any], what: str) -> None:
    """Refuse a document that is surely neither an index nor a manifest of today, by its name.

    Args:
        document: decoded, not judged yet.
        what: names the document in errors.

    Raises:
        DocumentError: says what it is.
    """
    stated = document.get("mediaType")
    kind = media_types.kind(stated) if isinstance(stated, str) else media_types.Kind.OTHER
    points_on = not document.keys().isdisjoint(["layers", "manifests"])
    if kind is media_types.Kind.SCHEMA1 or (document.get("schemaVersion") == 1 and not points_on):
        raise _named(what, _SCHEMA1)
    if isinstance(stated, str) and media_types.bare(stated) == _OCI_ARTIFACT:
        raise _named(what, _ARTIFACT)
    if points_on or stated:
        return
    for member, found in (
        ("fsLayers", _SCHEMA1),
        ("rootfs", _CONFIG),
        ("imageLayoutVersion", _MARK),
        ("payloadType", _STATEMENT),
        ("predicateType", _STATEMENT),
        ("SchemaV2Manifest", _VERBOSE),
        ("OCIManifest", _VERBOSE),
    ):
        if member in document:
            raise _named(what, found)


def refuse_list(value: list[Any], what: str) -> None:
    """The same of a document that is a list, as no index and no manifest is.

    Raises:
        DocumentError: says what it is, where that is known.
    """
    first = value[0] if value else None
    if isinstance(first, dict):
        for member, found in (("Layers", _SAVED), ("Descriptor", _VERBOSE), ("RootFS", _INSPECTED)):
            if member in first:
                raise _named(what, found)


def _named(what: str, found: tuple[str, str]) -> DocumentError:
    fault, hint = found
    return DocumentError(what, [fault], hint=hint)
