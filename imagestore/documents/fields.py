"""Typed parsing of what documents share: descriptors and platforms. Runs after the schema has judged the shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore import media_types
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest, verify
from imagestore.documents.decode import refuse_case_variants
from imagestore.errors import DocumentError, IntegrityError, InvalidDigestError
from imagestore.platforms.spec import Platform

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_DESCRIPTOR_MEMBERS: Final = frozenset(
    {"mediaType", "digest", "size", "urls", "annotations", "data", "artifactType", "platform"}
)
_PLAIN_MEMBERS: Final = frozenset({"mediaType", "digest", "size", "platform", "annotations"})
_PLATFORM_MEMBERS: Final = frozenset({"os", "architecture", "variant", "os.version", "os.features"})
# The schema allows at least these lengths.
_MAX_PLAIN_TEXT: Final = 256
_MAX_PLAIN_FEATURES: Final = 64
# Inline data is a convenience for tiny contents; the whole document is bounded anyway.
_MAX_INLINE: Final = 1024 * 1024


def parse_descriptor(value: Mapping[str, Any], path: str, what: str) -> Descriptor:
    """A descriptor at ``path`` of a document.

    Raises:
        DocumentError: digest, inline data or member names break a rule the schema can't express.
    """
    refuse_case_variants(value, _DESCRIPTOR_MEMBERS, what, path=path)
    try:
        digest = Digest.parse(value["digest"])
    except InvalidDigestError as error:
        raise DocumentError(what, [f"{path}.digest: {error}"]) from error
    size = value["size"]
    if not isinstance(size, int) or isinstance(size, bool):
        raise DocumentError(what, [f"{path}.size: expected an integer, found {size!r}"])
    platform = value.get("platform")
    if platform is not None:
        refuse_case_variants(platform, _PLATFORM_MEMBERS, what, path=f"{path}.platform")
    return Descriptor(
        media_type=value.get("mediaType") or "",
        digest=digest,
        size=size,
        platform=None if platform is None else parse_platform(platform),
        annotations=parse_annotations(value),
        urls=tuple(url for url in value.get("urls") or () if url),
        data=_inline(value.get("data"), digest, size, path, what),
        artifact_type=value.get("artifactType") or "",
    )


def parse_platform(value: Mapping[str, Any]) -> Platform:
    """The platform members of an index entry or an image config; absent and null are empty, as peers read them."""
    return Platform(
        os=value.get("os") or "",
        architecture=value.get("architecture") or "",
        variant=value.get("variant") or "",
        os_version=value.get("os.version") or "",
        # An empty text asks for nothing that a sandbox could provide.
        os_features=tuple(text for text in value.get("os.features") or () if text and not text.isspace()),
    )


def parse_annotations(value: Mapping[str, Any]) -> Mapping[str, str]:
    """The annotations of a document or a descriptor; null is an empty text, as peers read it."""
    return {name: text or "" for name, text in (value.get("annotations") or {}).items()}


def plain_entry(value: Any) -> Descriptor | None:
    """An index entry as nearly all are, in which nothing is left for the schema to judge; None for any other value.

    It has a usual media type, a good digest and a size, perhaps a platform in short texts and annotations, and no other
    members.
    """
    if type(value) is not dict or not value.keys() <= _PLAIN_MEMBERS:
        return None
    media_type, text, size = value.get("mediaType"), value.get("digest"), value.get("size")
    if type(media_type) is not str or type(text) is not str or type(size) is not int:
        return None
    # decode() refuses what 64 bits don't hold.
    if media_type not in media_types.MANIFEST_ACCEPT or size < 0:
        return None
    platform = value.get("platform")
    if platform is not None:
        platform = _plain_platform(platform)
        if platform is None:
            return None
    annotations = value.get("annotations", {})
    if type(annotations) is not dict or not all(type(note) is str for note in annotations.values()):
        return None
    try:
        return Descriptor(media_type, Digest.parse(text), size, platform, annotations)
    except InvalidDigestError:
        return None


def _plain_platform(value: Any) -> Platform | None:
    if type(value) is not dict or not value.keys() <= _PLATFORM_MEMBERS:
        return None
    if "os" not in value or "architecture" not in value:
        return None
    os, architecture = value["os"], value["architecture"]
    variant, os_version = value.get("variant", ""), value.get("os.version", "")
    for text in (os, architecture, variant, os_version):
        if type(text) is not str or len(text) > _MAX_PLAIN_TEXT:
            return None
    features = value.get("os.features")
    if features is None:
        return Platform(os, architecture, variant, os_version)
    if type(features) is not list or len(features) > _MAX_PLAIN_FEATURES:
        return None
    for text in features:
        if type(text) is not str or len(text) > _MAX_PLAIN_TEXT:
            return None
    return Platform(
        os, architecture, variant, os_version, tuple(text for text in features if text and not text.isspace())
    )


def leave_out_unstated_version(document: dict[str, Any], what: str) -> None:
    """Null and 0 are no version, and peers ask for none; whoever states another one than 2 is refused.

    Raises:
        DocumentError: it is no integer as JSON readers with types know them, though schemas do.
    """
    version = document.get("schemaVersion")
    if version is None or (type(version) is int and version == 0):
        document.pop("schemaVersion", None)
    elif type(version) is float:
        raise DocumentError(what, [f"$.schemaVersion: expected an integer, found {version!r}"])


def check_media_type(document: Mapping[str, Any], expected: str, kind: media_types.Kind, what: str) -> str:
    """Agree on one media type between the descriptor (or the server's word) and the body's own.

    Args:
        expected: what the descriptor or the Content-Type said; empty when nobody said anything.
        kind: what the caller is about to read the document as.

    Returns:
        The media type.

    Raises:
        DocumentError: they disagree, or name another kind, or Docker's manifest doesn't say that it is one.
    """
    stated = document.get("mediaType") or None
    if stated is not None and media_types.kind(stated) is not kind:
        raise DocumentError(what, [f"$.mediaType: {stated!r} is no {kind.value}"])
    if expected and stated is not None and media_types.bare(stated) != media_types.bare(expected):
        raise DocumentError(what, [f"$.mediaType: {stated!r}, but it was announced as {expected!r}"])
    if stated is None and media_types.bare(expected) == media_types.DOCKER_MANIFEST:
        raise DocumentError(what, [f"$.mediaType: missing, which only OCI manifests may do; announced as {expected!r}"])
    return stated or expected


def _inline(text: str | None, digest: Digest, size: int, path: str, what: str) -> bytes | None:
    if text is None or (not text and size):
        return None  # no text is no data, as peers read it
    if size > _MAX_INLINE or len(text) > 2 * _MAX_INLINE:
        raise DocumentError(what, [f"{path}.data: longer than {_MAX_INLINE} bytes"])
    import base64  # hardly any document has inline data

    try:
        data = base64.b64decode(text, validate=True)
        if digest.is_verifiable:
            verify(data, digest, size)
    except IntegrityError as error:
        raise DocumentError(what, [f"{path}.data: contradicts digest and size: {error}"]) from error
    except ValueError as error:
        raise DocumentError(what, [f"{path}.data: is not base64"]) from error
    return data if digest.is_verifiable else None
