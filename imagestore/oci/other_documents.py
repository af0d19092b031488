"""What kind of document some JSON is, by its own word and by what was announced.

Documents that are neither an index nor a manifest are recognised and not read: an error names them, instead of the
members they lack. So it does with an index that was announced as a manifest, and the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DocumentError
from imagestore.oci import media_types
from imagestore.oci.decode import MAX_DOCUMENT_BYTES, decode, refuse_case_variants

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
_SHOWN: Final = 100
_INSPECTED: Final = ("is what 'docker inspect' prints", "give the image's reference")


def decode_index_or_manifest(
    raw: bytes, known: frozenset[str], announced: str, what: str, limit_bytes: int = MAX_DOCUMENT_BYTES
) -> dict[str, Any]:
    """Decode an index or a manifest; refuse any other document, and one of the two that was announced as the other.

    ``known`` are the members that may stand in no other case; ``announced`` is the media type that a descriptor or a
    server names, empty when none did.

    Raises:
        DocumentError: says what it is, or which rule of decode() it breaks.
    """
    document = decode(raw, what, limit_bytes=limit_bytes)
    refuse_case_variants(document, known, what)
    _refuse_others(document, what)
    said = contradiction(document, announced) if announced else ""
    if said:
        raise DocumentError(what, [f"was announced as {announced[:_SHOWN]!r}, but {said}"])
    # Null and 0 are no version, and peers ask for none; any other than 2 is refused.
    version = document.get("schemaVersion")
    if version is None or (type(version) is int and version == 0):
        document.pop("schemaVersion", None)
    elif type(version) is float:
        # An integer to schemas if it has no fraction, but not to JSON readers with types.
        raise DocumentError(what, [f"$.schemaVersion: expected an integer, found {version!r}"])
    return document


def _refuse_others(document: Mapping[str, Any], what: str) -> None:
    """Refuse a document that is surely neither an index nor a manifest of today, by its name.

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


def contradiction(document: Mapping[str, Any], announced: str) -> str:
    """What an index or a manifest says that it is, where it was announced as something else.

    The text completes "but"; it is empty where both agree, and where the document doesn't say it beyond doubt.

    >>> contradiction({"manifests": []}, "application/vnd.oci.image.manifest.v1+json")
    'it is an index'
    """
    kinds = media_types.Kind
    named = document.get("mediaType")
    if isinstance(named, str) and named:
        is_other = media_types.bare(named) != media_types.bare(announced)
        is_known = media_types.kind(named) in (kinds.INDEX, kinds.MANIFEST)
        return f"its own media type is {named[:_SHOWN]!r}" if is_other and is_known else ""
    lists, has_layers = "manifests" in document, not document.keys().isdisjoint(["config", "layers"])
    if lists is has_layers or "fsLayers" in document:
        return ""
    if lists:
        return "" if media_types.kind(announced) is kinds.INDEX else "it is an index"
    return "" if media_types.kind(announced) is kinds.MANIFEST else "it is a manifest"


def check_media_type(stated: str, expected: str, kind: media_types.Kind, what: str) -> str:
    """Agree on one media type between the descriptor (or the server's word) and the body's own.

    Args:
        stated: the body's own; empty when it states none.
        expected: what the descriptor or the Content-Type said; empty when neither said anything.
        kind: what the caller is about to read the document as.

    Raises:
        DocumentError: they disagree, or name another kind, or Docker's manifest doesn't say that it is one.
    """
    if stated and media_types.kind(stated) is not kind:
        raise DocumentError(what, [f"$.mediaType: {stated!r} is no {kind.value}"])
    if expected and stated and media_types.bare(stated) != media_types.bare(expected):
        raise DocumentError(what, [f"$.mediaType: {stated!r}, but it was announced as {expected!r}"])
    if not stated and media_types.bare(expected) == media_types.DOCKER_MANIFEST:
        raise DocumentError(what, [f"$.mediaType: missing, which only OCI manifests may do; announced as {expected!r}"])
    return stated or expected


def refuse_list(value: list[Any], what: str) -> None:
    """Refuse a document that is a list, if it is known which; no index and no manifest is one.

    Raises:
        DocumentError: says what it is.
    """
    first = value[0] if value else None
    if isinstance(first, dict):
        for member, found in (("Layers", _SAVED), ("Descriptor", _VERBOSE), ("RootFS", _INSPECTED)):
            if member in first:
                raise _named(what, found)


def _named(what: str, found: tuple[str, str]) -> DocumentError:
    fault, hint = found
    return DocumentError(what, [fault], hint=hint)
