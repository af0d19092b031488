"""What kind of document some JSON is, by its own word and by what was announced.

Documents that are neither an index nor a manifest are recognised and not read: an error names them, instead of the
members they lack. So it does with an index that was announced as a manifest, and the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DocumentError
from imagestore.oci import media_types

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


def refuse_others(document: Mapping[str, Any], what: str) -> None:
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


def refuse_mislabelled(document: Mapping[str, Any], announced: str, what: str) -> None:
    """Refuse an index or a manifest that was announced as something else.

    Raises:
        DocumentError: says both.
    """
    found = contradiction(document, announced) if announced else ""
    if found:
        raise DocumentError(what, [f"was announced as {announced[:_SHOWN]!r}, but {found}"])


def leave_out_unstated_version(document: dict[str, Any], what: str) -> None:
    """Null and 0 are no version, and peers ask for none; any other than 2 is refused.

    Raises:
        DocumentError: it is no integer as JSON readers with types know them, though schemas do.
    """
    version = document.get("schemaVersion")
    if version is None or (type(version) is int and version == 0):
        document.pop("schemaVersion", None)
    elif type(version) is float:
        raise DocumentError(what, [f"$.schemaVersion: expected an integer, found {version!r}"])


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
